"""The door of a direct transport and those who ask at it: engines pull, none waits for another, and
what breaks off half-way is said to be no version. The bytes travel in the calls themselves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from tied import manifest_of
from torch import Tensor

from pipeline.errors import ConfigError, WeightsError
from pipeline.messages import Manifest
from pipeline.run import Inference, Model, Run
from pipeline.weights.direct import Direct, check_fits
from pipeline.weights.door import Session, Source, own_address
from pipeline.weights.line import Ask, Call
from pipeline.weights.publisher import Publisher
from pipeline.weights.visit import Broken, Caller

SECONDS = 20.0
SHORT = 0.3
NAMES = ("a", "b", "c")


class Sender:
    """Each tensor in a call of its own; `before` is asked before each act.

    As with NCCL the call runs in another thread, and what sends waits for a peer who may never
    come: an error of the call's does not reach it, only `shutdown` does.
    """

    def __init__(self, session: Session, source: Source, before: Callable[[str], bool]) -> None:
        self.session, self.source, self.before = session, source, before
        self.ended = threading.Event()
        session.init_weight_transfer_engine({"of": "tests"})

    def send_weights(self) -> None:
        if self.before("start"):
            self.session.start_weight_update()
        for name, tensor in self.source:
            if self.before(name):
                self.broadcast({"names": [name], "raw": tensor.numpy().tobytes()})
        self.session.finish_weight_update()

    def broadcast(self, info: dict[str, Any]) -> None:
        came, errors = threading.Event(), list[WeightsError]()

        def call() -> None:
            try:
                self.session.update_weights(info)
                came.set()
            except WeightsError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while not (came.is_set() or self.ended.is_set()):
            came.wait(0.002)
        thread.join()
        if errors:
            raise errors[0]

    def shutdown(self) -> None:
        self.ended.set()


class Carried(Direct):
    backend = "carried"

    def __init__(self, *, timeout_seconds: float = SECONDS, port: int = 0) -> None:
        super().__init__(run="run", port=port, timeout_seconds=timeout_seconds)
        self.senders: list[Sender] = []
        self.before: Callable[[str], bool] = lambda _: True

    def open_sender(self, ask: Ask, session: Session, source: Source) -> Sender:
        self.senders.append(Sender(session, source, lambda act: self.before(act)))
        return self.senders[-1]

    def prepare(self, tensor: Tensor) -> Tensor:
        return tensor

    def memory(self, largest: int) -> str:
        return "nothing"


class Engine:
    """What is live, whole or not; `before` is asked before each act."""

    made: ClassVar[list[Engine]] = []

    def __init__(self, transport: Direct, location: str, boot: str = "engine-1") -> None:
        self.made.append(self)
        self.acts: list[str] = []
        self.live: dict[str, Tensor] = {}
        self.before: Callable[[Call], None] = lambda _: None
        self.visit = transport.visit(location, Caller(boot, 1, ("cpu",)), self.perform)

    def perform(self, call: Call) -> None:
        self.before(call)
        self.acts.append(call.act)
        for name in call.info.get("names", ()):
            self.live[name] = torch.frombuffer(bytearray(call.info["raw"]), dtype=torch.float32)

    def take(self, manifest: Manifest) -> None:
        self.visit.ask(manifest)
        self.visit.fetch(manifest)


def values(version: int) -> dict[str, Tensor]:
    return {name: torch.full((4,), float(version)) for name in NAMES}


def sent(transport: Direct, version: int) -> Manifest:
    location = transport.send(version, values(version).items(), epoch=1)
    return manifest_of(values(version), version=version, location=location)


def has(engine: Engine, version: int) -> bool:
    expected = values(version)
    same = (torch.equal(engine.live[name], tensor) for name, tensor in expected.items())
    return engine.live.keys() == expected.keys() and all(same)


@pytest.fixture(autouse=True)
def leaving() -> Iterator[None]:
    yield
    while Engine.made:
        Engine.made.pop().visit.close()


@pytest.fixture
def opened() -> Iterator[Callable[..., Carried]]:
    made: list[Carried] = []

    def open_one(**options: Any) -> Carried:
        made.append(Carried(**options))
        return made[-1]

    yield open_one
    for transport in made:
        transport.close()


@pytest.fixture
def transport(opened: Callable[..., Carried]) -> Carried:
    return opened()


def test_each_version_that_is_asked_for_arrives_whole_by_one_group(transport: Carried) -> None:
    manifests = [sent(transport, 1)]
    engine = Engine(transport, manifests[0].location)
    for version in (1, 2, 3):
        manifests.append(sent(transport, version))
        engine.take(manifests[-1])
        assert has(engine, version)
    assert engine.acts == ["init", *["start", *["update"] * 3, "finish"] * 3]
    assert len(transport.senders) == 1


def test_the_newest_two_versions_stay_for_whoever_asks(transport: Carried) -> None:
    manifests = {version: sent(transport, version) for version in (1, 2, 3)}
    engine = Engine(transport, manifests[3].location)
    for version in (2, 3, 2):
        engine.take(manifests[version])
        assert has(engine, version)
    with pytest.raises(WeightsError, match=r"version 1 is not kept, only \[2, 3\] are"):
        engine.take(manifests[1])
    engine.take(manifests[3])
    assert has(engine, 3)


def test_a_version_superseded_before_the_pause_costs_nothing(transport: Carried) -> None:
    old = sent(transport, 1)
    engine = Engine(transport, old.location)
    engine.visit.ask(old)
    newest = [sent(transport, version) for version in (2, 3)][-1]
    with pytest.raises(WeightsError, match="version 1 is not kept") as refused:
        engine.visit.fetch(old)
    assert not isinstance(refused.value, Broken)
    assert engine.acts == ["init"]
    engine.take(newest)
    assert has(engine, 3)


def test_a_version_superseded_while_it_is_sent_arrives_whole(transport: Carried) -> None:
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location)

    def supersede(call: Call) -> None:
        if call.act == "update" and call.info["names"] == ["b"]:
            for version in (2, 3):
                sent(transport, version)

    engine.before = supersede
    engine.take(manifest)
    assert has(engine, 1)


def test_a_hung_engine_holds_up_neither_the_trainer_nor_another_engine(transport: Carried) -> None:
    manifest = sent(transport, 1)
    hung, free = (Engine(transport, manifest.location, boot) for boot in ("hung", "free"))
    inside, over = threading.Event(), threading.Event()

    def hang(call: Call) -> None:
        if call.act == "update":
            inside.set()
            over.wait(SECONDS)

    hung.before = hang
    thread = threading.Thread(target=hung.take, args=(manifest,))
    thread.start()
    assert inside.wait(SECONDS)
    started = time.perf_counter()
    newest = sent(transport, 2)
    assert time.perf_counter() - started < 1
    free.take(newest)
    assert has(free, 2)
    assert thread.is_alive()
    over.set()
    thread.join(SECONDS)
    assert has(hung, 1)


def test_an_engine_that_hangs_for_too_long_is_given_up_by_name(
    opened: Callable[..., Carried], caplog: pytest.LogCaptureFixture
) -> None:
    transport, over = opened(timeout_seconds=SHORT), threading.Event()
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location, "inference-7")
    engine.before = lambda call: over.wait(SECONDS) if call.act == "update" else None  # type: ignore[assignment, return-value]
    thread = threading.Thread(target=broken, args=(engine, manifest))
    with caplog.at_level("INFO", "pipeline.weights.door"):
        thread.start()
        assert transport_sender(transport).ended.wait(SECONDS), "a peer of NCCL's is let go"
        assert wait_for(lambda: "engine inference-7 said nothing for 0.3 s" in caplog.text)
    over.set()
    thread.join(SECONDS)


def test_an_engine_that_dies_in_mid_transfer_ends_its_own_transfer_alone(
    transport: Carried,
) -> None:
    manifest = sent(transport, 1)
    dying = Engine(transport, manifest.location)
    dying.before = lambda call: dying.visit.close() if call.act == "update" else None
    assert isinstance(broken(dying, manifest), Broken)
    assert transport_sender(transport).ended.wait(SECONDS)
    following = Engine(transport, manifest.location)
    following.take(manifest)
    assert has(following, 1)


def test_a_door_that_is_silent_before_it_touched_anything_is_named(
    opened: Callable[..., Carried],
) -> None:
    transport, over = opened(timeout_seconds=SHORT), threading.Event()
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location)
    transport.before = lambda act: over.wait(SECONDS)
    error = broken(engine, manifest)
    over.set()
    assert "door at 127.0.0.1" in str(error)
    assert "said nothing for 0.3 s" in str(error)
    assert not isinstance(error, Broken)
    assert engine.acts == ["init"]


def test_a_door_that_falls_silent_half_way_leaves_no_version(
    opened: Callable[..., Carried],
) -> None:
    transport, over = opened(timeout_seconds=SHORT), threading.Event()
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location)
    transport.before = lambda act: over.wait(SECONDS) if act == "b" else True
    error = broken(engine, manifest)
    over.set()
    assert isinstance(error, Broken)
    assert "version 1 broke off half-way" in str(error)
    assert "said nothing for 0.3 s" in str(error)


def test_a_trainer_that_ends_half_way_leaves_no_version(transport: Carried) -> None:
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location)
    engine.before = lambda call: transport.close() if call.act == "update" else None
    error = broken(engine, manifest)
    assert isinstance(error, Broken)
    assert "is gone" in str(error)


@pytest.mark.parametrize("case", ["C026"])
def test_a_tensor_that_never_came_is_named_before_the_version_counts(
    transport: Carried, case: str
) -> None:
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location)
    transport.before = lambda act: act != "b"
    error = broken(engine, manifest)
    assert isinstance(error, Broken)
    assert "b never came (1 missing)" in str(error)
    assert "finish" not in engine.acts


@pytest.mark.parametrize("act", ["init", "start", "update", "finish"])
def test_what_fails_in_an_engine_ends_the_transfer_at_both_ends(
    transport: Carried, act: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location, "inference-7")

    def fail(call: Call) -> None:
        if call.act == act:
            raise RuntimeError("out of memory")

    engine.before = fail
    with caplog.at_level("INFO", "pipeline.weights.door"):
        error = broken(engine, manifest)
        assert wait_for(lambda: f"engine inference-7: {act} failed" in caplog.text)
    assert isinstance(error, Broken) == (act != "init")
    assert f"{act} failed here: RuntimeError: out of memory" in str(error)
    following = Engine(transport, manifest.location)
    following.take(manifest)
    assert has(following, 1)


@pytest.mark.parametrize("case", ["C040"])
def test_an_engine_that_never_joins_the_group_is_given_up(
    opened: Callable[..., Carried], case: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport, over = opened(timeout_seconds=SHORT), threading.Event()
    manifest = sent(transport, 1)
    engine = Engine(transport, manifest.location, "inference-7")
    engine.before = lambda call: over.wait(SECONDS) and None
    thread = threading.Thread(target=broken, args=(engine, manifest))
    with caplog.at_level("INFO", "pipeline.weights.door"):
        thread.start()
        assert wait_for(lambda: "engine inference-7 said nothing for 0.3 s" in caplog.text)
    over.set()
    thread.join(SECONDS)


def test_strangers_are_turned_away_and_others_served_on(transport: Carried) -> None:
    manifest = sent(transport, 1)
    address, token = manifest.location.removeprefix("tcp://").split("/")
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""
    guessed = f"tcp://{address}/{'0' * len(token)}"
    with pytest.raises(WeightsError, match="another trainer's door"):
        Engine(transport, guessed).take(manifest)
    engine = Engine(transport, manifest.location)
    engine.take(manifest)
    assert has(engine, 1)


def test_a_stranger_who_says_nothing_is_not_waited_for(opened: Callable[..., Carried]) -> None:
    address = sent(opened(timeout_seconds=SHORT), 1).location.removeprefix("tcp://").split("/")[0]
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as stranger:
        assert stranger.recv(1) == b""


def test_an_engine_may_take_its_time_between_versions(opened: Callable[..., Carried]) -> None:
    transport = opened(timeout_seconds=SHORT)
    engine = Engine(transport, sent(transport, 1).location)
    for version in (2, 3):
        engine.take(sent(transport, version))
        time.sleep(2 * SHORT)
    assert len(transport.senders) == 1


@pytest.mark.parametrize("case", ["C114"])
def test_a_door_that_cannot_be_reached_is_named_with_its_port(
    transport: Carried, case: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(WeightsError, match=rf"127.0.0.1:{port} cannot be reached .*weights.port"):
        transport.visit(f"tcp://127.0.0.1:{port}/0", Caller("e"), lambda _: None)
    with pytest.raises(WeightsError, match="is no address of a door"):
        transport.visit("/dev/shm/v1.e1.safetensors", Caller("e"), lambda _: None)


@pytest.mark.parametrize("case", ["C113"])
def test_a_port_that_is_taken_is_refused_by_number(
    opened: Callable[..., Carried], case: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"weights.port = '127.0.0.1:{port}'.*in use"):
            sent(opened(port=port), 1)


def test_a_publisher_announces_the_door(transport: Carried) -> None:
    announced: list[Manifest] = []
    publisher = Publisher(announced.append, transport, epoch=1)
    publisher.publish(4, 4, values(4).items())
    publisher.flush()
    engine = Engine(transport, announced[0].location)
    engine.take(announced[0])
    assert has(engine, 4)


@pytest.mark.parametrize(
    ("redis", "address"),
    [("", "127.0.0.1"), ("unix:///tmp/x", "127.0.0.1"), ("redis://localhost:6379", "127.0.0.1")],
)
def test_the_door_is_where_others_reach_the_runs_server(redis: str, address: str) -> None:
    assert own_address(redis) == address


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("inference", Inference(engine="hf"), "goes straight into a live model of vLLM's"),
        ("model", Model(path="m", adapter="lora"), "only the adapter travels"),
    ],
)
def test_what_cannot_be_written_into_directly_is_refused_at_start(
    transport: Carried, key: str, value: object, said: str
) -> None:
    parts = {"model": Model(path="m"), "inference": Inference(engine="vllm"), key: value}
    run = Run(name="r", steps=1, weights="nccl", data="d", **parts)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"^weights = 'nccl': .*{said}"):
        check_fits(run, transport)


def broken(engine: Engine, manifest: Manifest) -> WeightsError | None:
    try:
        engine.take(manifest)
    except WeightsError as error:
        return error
    return None


def transport_sender(transport: Carried) -> Sender:
    assert wait_for(lambda: bool(transport.senders))
    return transport.senders[0]


def wait_for(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.005)
    return False
