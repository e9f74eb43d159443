"""A place that fsspec has a URL for; what all transports have in common is in the contract."""

from pathlib import Path

import pytest
import torch
from receiver import Receiver, published, same
from tied import Tied

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.families import TRANSPORTS
from pipeline.protocols import Transport
from pipeline.weights.files import FilesTransport
from pipeline.weights.remote import RemoteTransport


def made(folder: str, **options: object) -> Transport:
    spec = {"use": "files", "folder": folder, **options}
    transport: Transport = plugins.make(TRANSPORTS, spec, at="weights", run="run", redis="")
    return transport


@pytest.mark.parametrize("whole_every", [1, 3])
def test_a_version_travels_through_a_url(whole_every: int, tmp_path: Path) -> None:
    url = f"memory://{tmp_path}"
    sender, receiver = (made(url, whole_every=whole_every) for _ in range(2))
    engine = Receiver(Tied(), receiver)
    for version in range(1, 6):
        model = Tied()
        manifest = published(sender, version, model.named_parameters())
        assert f"memory://{tmp_path}/run/" in manifest.location
        assert engine.follow(manifest) == ""
        assert same(engine.values(), dict(model.named_parameters()))


def test_a_url_of_this_machines_files_is_a_folder(tmp_path: Path) -> None:
    assert isinstance(made(f"file://{tmp_path}"), FilesTransport)
    assert isinstance(made(f"memory://{tmp_path}"), RemoteTransport)
    with pytest.raises(ConfigError, match="absent': there is no such folder on"):
        made(f"file://{tmp_path}/absent")


REFUSED = {
    "nosuch://bucket/x": "has no way to such a URL",
    "ftp://127.0.0.1:9/weights": "(has no way to such a URL|cannot be reached from)",
}


@pytest.mark.parametrize(("url", "rule"), REFUSED.items(), ids=REFUSED)
def test_a_url_that_leads_nowhere_is_refused_before_anything_starts(url: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"weights\.folder = '{url}': .*{rule}") as caught:
        made(url)
    assert "\n" not in str(caught.value)


def test_C039_two_places_that_are_not_the_same_are_both_named(tmp_path: Path) -> None:
    there, here = made(f"memory://{tmp_path}/there"), made(f"memory://{tmp_path}/here")
    engine = Receiver(Tied(), here)
    error = engine.follow(published(there, 1, Tied().named_parameters()))
    assert f"version 1 cannot be read from memory://{tmp_path}/here/run/v1.e1.safetensors" in error
    assert f"the trainer wrote memory://{tmp_path}/there/run/v1.e1.safetensors, and " in error
    assert f"sees nothing of the run in memory://{tmp_path}/here/run" in error
    assert engine.live.version == -1


def test_what_lower_epochs_left_goes_but_the_newest_two(tmp_path: Path) -> None:
    url, one = f"memory://{tmp_path}", [("a", torch.ones(1))]
    former, follows = made(url), made(url)
    for version in (1, 2, 3):
        former.send(version, one, epoch=1)
    follows.send(4, one, epoch=2)
    assert isinstance(follows, RemoteTransport)
    assert set(follows._names()) == {f"v{v}.safetensors" for v in ("2.e1", "3.e1", "4.e2")}
    follows.send(5, one, epoch=2)
    assert set(follows._names()) == {f"v{v}.safetensors" for v in ("3.e1", "4.e2", "5.e2")}
    former.send(9, one, epoch=1)
    assert {"v4.e2.safetensors", "v5.e2.safetensors"} <= set(follows._names())


def test_a_password_in_a_url_is_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        made("ftp://user:secret@127.0.0.1:9/weights")
    assert "secret" not in str(caught.value) and "user:***@127.0.0.1" in str(caught.value)
