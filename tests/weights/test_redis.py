"""Weights in the run's own Redis: its keys, its memory, its rights."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
import torch
from receiver import Receiver, published, same
from safetensors import safe_open
from tied import Tied, manifest_of

from pipeline.bus.acl import rules
from pipeline.bus.bus import Bus
from pipeline.bus.connection import client_of
from pipeline.bus.keys import Keys
from pipeline.errors import ConfigError, WeightsError
from pipeline.fit import check_memory
from pipeline.run import Groups, Model, Run, Sampling
from pipeline.weights.origin import Origin
from pipeline.weights.redis import PIECE_BYTES, RedisTransport, build
from pipeline.weights.size import version_bytes

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "model"
BIG = [("a", torch.arange(900_000.0)), ("b", torch.ones(3))]  # 3.6 MB


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    with client_of(server_url) as client:
        yield client


@pytest.fixture
def transport(server_url: str, run_name: str, client: redis.Redis) -> Iterator[RedisTransport]:
    yield RedisTransport(run=run_name, url=server_url)
    for key in client.scan_iter(match=f"{Keys(run_name).prefix}*"):
        client.unlink(key)


def keys(client: redis.Redis, run: str) -> set[str]:
    return {key.decode() for key in client.scan_iter(match=f"*{run}*")}


def test_the_pieces_are_bounded_and_lie_in_the_runs_slot(
    transport: RedisTransport, client: redis.Redis, run_name: str
) -> None:
    location = transport.send(7, BIG, epoch=2)
    prefix = f"sluice:{{{run_name}}}:weights:versions:"
    assert location == prefix + "v7.e2"
    assert keys(client, run_name) == {location, prefix + "index"}
    sizes = [client.hstrlen(location, name) for name in client.hkeys(location)]
    assert max(sizes) == PIECE_BYTES and sum(sizes) > 3_600_000


def test_a_purge_takes_them_too(
    transport: RedisTransport, client: redis.Redis, server_url: str, run_name: str
) -> None:
    transport.send(7, BIG, epoch=2)
    with closing(Bus.connect(server_url, run_name)) as bus:
        assert bus.purge() == 2
    assert not keys(client, run_name)


def test_a_server_that_is_full_is_told_and_the_next_version_goes_out(
    transport: RedisTransport, client: redis.Redis, run_name: str
) -> None:
    engine = Receiver(Tied(), transport)
    model = Tied()
    assert engine.follow(published(transport, 1, model.named_parameters())) == ""
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 2_000_000)
    try:
        with pytest.raises(WeightsError, match=r"version 2 cannot be written .* full"):
            published(transport, 2, iter(BIG))
        assert not [key for key in keys(client, run_name) if "v2" in key], "what was begun is gone"
        assert same(engine.values(), dict(model.named_parameters()))
        assert engine.follow(published(transport, 3, Tied().named_parameters())) == ""
    finally:
        client.config_set("maxmemory", 0)


def test_a_server_that_has_lost_a_version_is_named(
    transport: RedisTransport, client: redis.Redis, run_name: str
) -> None:
    manifest = published(transport, 1, Tied().named_parameters())
    client.unlink(*keys(client, run_name))
    error = Receiver(Tied(), transport).follow(manifest)
    assert f"cannot be read from {manifest.location} at unix://" in error
    assert error.endswith("it is not there; there is nothing of the run")


@pytest.fixture
def users(client: redis.Redis, run_name: str) -> Iterator[None]:
    for rule in rules(run_name):
        client.execute_command(*rule.split(), "resetpass", ">open")
    yield
    client.acl_deluser(*(rule.split()[2] for rule in rules(run_name)))


@pytest.mark.parametrize("whole_every", [1, 3])
@pytest.mark.usefixtures("users", "transport")
def test_training_may_write_them_and_inference_read_them_and_no_more(
    server_url: str, run_name: str, whole_every: int
) -> None:
    def of(user: str) -> Any:
        url = server_url.replace("unix://", f"unix://{run_name}-{user}:open@")
        return build(whole_every=whole_every, run=run_name, redis=url)

    trainer, engine = of("training"), Receiver(Tied(), of("inference"))
    for version in range(1, 8):
        assert engine.follow(published(trainer, version, Tied().named_parameters())) == ""
    for user in ("inference", "scoring", "prompting"):
        with pytest.raises(ConfigError, match=f"{run_name}-{user}|lacks a right"):
            of(user).send(9, BIG, epoch=9)
    never = manifest_of(dict(BIG), version=9, location=Keys(run_name).weights("versions", "v9.e9"))
    with pytest.raises(WeightsError, match="it is not there"):
        dict(RedisTransport(run=run_name, url=server_url).receive(never))


def run_with(weights: Any, **sections: Any) -> Run:
    model = Model(path=str(MODEL), dtype="bfloat16")
    return Run(name="r", steps=1, model=model, data="jsonl", weights=weights, **sections)


def test_three_versions_of_the_weights_must_fit_into_the_server_beside_the_groups() -> None:
    run = run_with("redis", groups=Groups(members=2, per_step=2), sampling=Sampling(max_tokens=10))
    size = version_bytes(run)
    with safe_open(MODEL / "model.safetensors", "pt") as file:
        elements = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert size == 2 * elements
    enough = (3 * size + 10_000) * 4 // 3
    assert check_memory(run, enough, version_bytes=size) is None
    said = rf"maxmemory of the server = {size}: .*3 versions of the weights {3 * size / 1e6:.0f} MB"
    with pytest.raises(ConfigError, match=said):
        check_memory(run, size, version_bytes=size)


def test_what_does_not_travel_through_the_server_takes_nothing_there() -> None:
    assert version_bytes(run_with("shm")) == 0
    assert version_bytes(run_with({"use": "redis", "whole_every": 5})) > 0


def test_an_origin_makes_it_in_any_process_and_tells_whether_patches_travel(
    server_url: str, run_name: str
) -> None:
    origin = Origin({"use": "redis", "whole_every": 3}, run_name, server_url)
    assert origin.patches and not Origin("redis", run_name, server_url).patches
    manifest = published(origin.transport(), 1, Tied().named_parameters())
    assert Receiver(Tied(), origin.transport()).follow(manifest) == ""
    with pytest.raises(ConfigError, match=r"weights\.redis = 'x': no such option"):
        Origin({"use": "redis", "redis": "x"}, run_name, server_url).transport()
