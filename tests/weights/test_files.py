"""A folder that several machines share: epochs, what the dead left, and a folder that is not it."""

from pathlib import Path

import pytest
import torch
from receiver import Receiver, published
from tied import Tied, manifest_of

from pipeline import plugins
from pipeline.errors import ConfigError, WeightsError
from pipeline.families import TRANSPORTS
from pipeline.weights.files import FilesTransport

ONE = [("a", torch.ones(1))]


def opened(folder: Path, run: str = "run") -> FilesTransport:
    return FilesTransport(folder=str(folder), run=run)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_names_its_run_its_version_and_its_senders_epoch(tmp_path: Path) -> None:
    location = opened(tmp_path, "demo").send(12, ONE, epoch=3)
    assert Path(location) == tmp_path / "demo" / "v12.e3.safetensors"


def test_versions_of_one_number_by_two_epochs_are_two(tmp_path: Path) -> None:
    """The trainer that was replaced had sent a version that nobody heard of."""
    tensors = {epoch: {"a": torch.full((2,), float(epoch))} for epoch in (1, 2)}
    locations = {e: opened(tmp_path).send(5, tensors[e].items(), epoch=e) for e in (2, 1)}
    for epoch, location in locations.items():
        manifest = manifest_of(tensors[epoch], version=5, location=location)
        received = dict(opened(tmp_path).receive(manifest))
        assert torch.equal(received["a"], tensors[epoch]["a"])


def test_a_senders_last_two_stay_when_it_has_gone(tmp_path: Path) -> None:
    transport = opened(tmp_path)
    for version in (1, 2, 3):
        transport.send(version, ONE, epoch=1)
    del transport
    assert names(tmp_path / "run") == {"v2.e1.safetensors", "v3.e1.safetensors"}


def test_a_new_sender_removes_what_lower_epochs_left_but_the_newest_two(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "run-2"
    for folder in (run, other):
        folder.mkdir()
        for name in ("v7.e1.x.partial", "v8.e3.x.partial"):
            (folder / name).mkdir()
            (folder / name / "tensors").write_bytes(b"half")
        for name in ("v3.e1", "v4.e1", "v4.e2", "v5.e2", "notes", "v1.e2.old"):
            (folder / f"{name}.safetensors").touch()
    before = names(other)
    transport = opened(tmp_path)
    assert names(run) == before, "opening one removes nothing: engines open one too"
    transport.send(6, ONE, epoch=3)
    assert names(run) == {
        "notes.safetensors",
        "v1.e2.old.safetensors",
        "v4.e2.safetensors",
        "v5.e2.safetensors",
        "v6.e3.safetensors",
        "v8.e3.x.partial",
    }
    for version in (7, 8):
        transport.send(version, ONE, epoch=3)
    assert names(run) == {
        "notes.safetensors",
        "v1.e2.old.safetensors",
        "v7.e3.safetensors",
        "v8.e3.safetensors",
        "v8.e3.x.partial",
    }
    assert names(other) == before, "another run's"


def test_what_a_higher_epoch_sent_is_never_touched(tmp_path: Path) -> None:
    """By a trainer that was replaced, and by a run that begins anew under an old name."""
    newer, older = opened(tmp_path), opened(tmp_path)
    newer.send(1, ONE, epoch=5)
    for version in (7, 8, 9):
        older.send(version, ONE, epoch=2)
    kept = {"v1.e5.safetensors", "v8.e2.safetensors", "v9.e2.safetensors"}
    assert names(tmp_path / "run") == kept


def test_a_version_that_cannot_be_removed_stops_no_later_one(tmp_path: Path) -> None:
    sender = opened(tmp_path)
    first = Path(published(sender, 1, Tied().named_parameters()).location)
    first.unlink()
    first.mkdir()
    for version in (2, 3, 4):
        published(sender, version, Tied().named_parameters())
    assert {"v3.e1.safetensors", "v4.e1.safetensors"} <= names(tmp_path / "run")


def test_another_mount_point_is_no_matter(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3.0)}
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.symlink_to(there)
    location = opened(there).send(1, tensors.items(), epoch=1).replace("there", "elsewhere")
    received = dict(opened(here).receive(manifest_of(tensors, version=1, location=location)))
    assert torch.equal(received["a"], tensors["a"])


def test_C039_a_folder_that_is_not_shared_is_named_and_the_old_version_serves(
    tmp_path: Path,
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    receiver = Receiver(Tied(), opened(here))
    before = receiver.live.fingerprint()
    error = receiver.follow(published(opened(there), 1, Tied().named_parameters()))
    assert f"version 1 cannot be read from {here}/run/v1.e1.safetensors: " in error
    assert f"sees nothing of the run in {here}/run" in error
    assert error.endswith("mount the trainer's weights.folder here, or name one that both share")
    assert (receiver.live.version, receiver.live.fingerprint()) == (-1, before)


def test_a_version_that_is_gone_is_told_from_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    transport = opened(tmp_path)
    manifests = [published(transport, v, Tied().named_parameters()) for v in (1, 2, 3)]
    with pytest.raises(WeightsError, match=r"sees v2\.e1\.safetensors, v3\.e1\.safetensors in"):
        dict(opened(tmp_path).receive(manifests[0]))


def test_a_folder_that_is_absent_is_refused_before_anything_starts(tmp_path: Path) -> None:
    spec = {"use": "files", "folder": str(tmp_path / "absent")}
    with pytest.raises(ConfigError, match=r"folder = .*absent': there is no such folder on"):
        plugins.make(TRANSPORTS, spec, at="weights", run="run")


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("files", "weights.folder: is required"),
        ({"use": "files", "folder": 3}, "weights.folder = 3: Expected `str`"),
        ({"use": "files", "folder": ""}, "weights.folder = '': there is no such folder"),
        ({"use": "files", "floder": "x"}, "weights.floder = 'x': no such option; did you mean"),
        ("file", "weights = 'file': no such plug-in; did you mean 'files'"),
    ],
)
def test_its_options_are_checked(spec: str | dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.make(TRANSPORTS, spec, at="weights", run="run")
    assert str(caught.value).startswith(line)
