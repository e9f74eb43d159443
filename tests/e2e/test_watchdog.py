"""Real processes, starved on purpose at each service: who is to blame is named within 10 s."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import Server, running
from stream import MODEL, ROOT

from pipeline.bus.bus import Bus
from pipeline.config import dump
from pipeline.run import Groups, Inference, Model, Run, Sampling, Scoring
from pipeline.watch import Places, explain, present

HERE = Path(__file__).parent
NAMED_SECONDS = 10.0
HEALTHY_SECONDS = 40.0


class Stream:
    """Four processes of a run on a server of their own. A file `held-NAME` stops a part."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.path = folder / "run.toml"
        self.path.write_text(dump(_run(folder)))
        self.bus = Bus.connect(server.url, "run")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, service: str) -> None:
        words = ["-m", "services.cli", service, str(self.path), "--instance", f"{service}-0"]
        if service == "training":
            words = [str(HERE / "watched.py"), str(self.path), self.server.url]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
            "SLUICE_REDIS": self.server.url,
        }
        with (self.folder / f"{service}.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def kill(self, service: str) -> None:
        """As a supervisor that sees it end."""
        process = self.processes.pop(service)
        process.kill()
        process.wait()
        self.bus.bury(f"{service}-0")

    @contextmanager
    def held(self, part: str) -> Iterator[None]:
        mark = self.folder / f"held-{part}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    @contextmanager
    def full(self) -> Iterator[None]:
        with redis.Redis.from_url(self.server.url, protocol=2) as client:
            client.config_set("maxmemory", "1mb")
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)

    @property
    def places(self) -> Places:
        return self.bus.snapshot().places

    def drains(self) -> None:
        """Whatever was on its way arrives."""
        self.until(lambda: not (self.places.prompts or self.places.open), "end", HEALTHY_SECONDS)

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()

    def until(self, claim: Callable[[], object], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not claim():
            assert time.monotonic() < deadline, f"no {what} within {seconds} s: {self._said()}"
            time.sleep(0.05)

    def _said(self) -> list[str]:
        return explain(self.bus.snapshot()) if self.bus.is_open() else ["the run is not open"]

    def named(self, *patterns: str) -> None:
        """Each is found among the sentences at one time, soon enough."""

        def all_said() -> bool:
            said = self._said()
            return all(any(re.fullmatch(p, line) for line in said) for p in patterns)

        self.until(all_said, " and ".join(patterns), NAMED_SECONDS)

    def flows(self) -> None:
        """Steps are made, and nothing is wrong."""
        step = self._step()
        self.until(lambda: self._step() > step + 1, "steps", HEALTHY_SECONDS)
        self.until(lambda: not self._wrong(), "end of what was wrong", HEALTHY_SECONDS)

    def _step(self) -> int:
        return self.bus.state().step

    def _wrong(self) -> list[str]:
        """All but the waits of a stream that flows."""
        return [s for s in self._said() if not re.search(r" waits for \w", s)]

    def addresses(self) -> dict[str, str]:
        beats = [seen.beat for seen in present(self.bus.snapshot())]
        return {beat.service: beat.http for beat in beats if beat.http}


def _run(folder: Path) -> Run:
    part: Callable[[str, str], dict[str, Any]] = lambda use, name: {  # noqa: E731
        "use": f"watched:{use}",
        "held": str(folder / f"held-{name}"),
    }
    return Run(
        name="run",
        steps=1_000_000,
        model=Model(path=str(MODEL)),
        data=part("Data", "data"),
        weights="watched:Nowhere",
        groups=Groups(members=2, per_step=2),
        sampling=Sampling(max_tokens=8),
        inference=Inference(engine={"use": "fake", "slots": 8}),
        scoring=Scoring(scorers=[part("judge", "judge")], timeout_seconds=60),
    )


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    with running() as server:
        stream = Stream(tmp_path_factory.mktemp("watched"), server)
        for service in ("scoring", "prompting", "inference", "training"):
            stream.start(service)
        try:
            stream.until(lambda: stream.bus.is_open(), "run", HEALTHY_SECONDS)
            yield stream
        finally:
            for process in stream.processes.values():
                process.kill()
                process.wait()
            stream.bus.close()


@pytest.fixture
def stream(started: Stream) -> Stream:
    """It flows."""
    started.flows()
    return started


def test_a_data_set_that_hangs_starves_all_the_others(stream: Stream) -> None:
    stalled = r"prompting-0 \(no turn of its loop for \d+ s\)"
    with stream.held("data"):
        stream.drains()
        stream.named(
            r"prompting-0 has made no turn of its loop for \d+ s",
            rf"inference has waited for prompts for \d+ s; starved by {stalled}",
            rf"scoring has waited for completions for \d+ s; starved by {stalled}",
            rf"training has waited for groups for \d+ s: .*; starved by {stalled}",
        )


def test_without_any_prompting_the_others_say_so(stream: Stream) -> None:
    stream.kill("prompting")
    stream.named(
        "no process of prompting is alive",
        r"inference .*prompts.*; starved by prompting-0 \(silent for \d+ s\)",
        r"training .*groups.*; starved by prompting-0 \(silent for \d+ s\)",
    )
    stream.start("prompting")


def test_a_scorer_that_hangs_is_named_with_what_it_holds(stream: Stream) -> None:
    scorers = r"the scorers of scoring-0 \(no verdict for \d+ s\)"
    with stream.held("judge"):
        stream.until(lambda: stream.places.open > 4, "completions", HEALTHY_SECONDS)
        stream.named(
            r"the scorers of scoring-0 have judged none of the \d+ members that they have for .*",
            rf"training has waited for groups for \d+ s: .*; starved by {scorers}",
        )


def test_a_trainer_that_is_stopped_is_named_by_all_that_wait_for_it(stream: Stream) -> None:
    silent = r"training-0 \(silent for \d+ s\)"
    with _frozen(stream.processes["training"].pid):
        stream.named(
            r"training-0 has been silent for \d+ s",
            rf"prompting has waited for window for \d+ s: \d+ of 6 places .*; starved by {silent}",
            rf"scoring has waited for completions for \d+ s; starved by {silent}",
        )


def test_a_redis_that_is_full_is_named_by_all_that_it_starves(stream: Stream) -> None:
    full = r"Redis \(\d+ MB of 1 MB are used\)"
    with stream.full():
        stream.drains()
        stream.named(
            r"Redis is full: \d+ MB of 1 MB are used, and beyond 75% nothing is admitted",
            r"prompting has waited for memory for \d+ s: \d+ MB of 1 MB are used.*",
            rf"training has waited for groups for \d+ s: .*; starved by {full}",
        )


def test_a_redis_that_does_not_answer_is_in_each_log_and_at_each_door(stream: Stream) -> None:
    doors = stream.addresses()
    assert set(doors) == {"prompting", "inference", "scoring"}
    assert {_ready(door) for door in doors.values()} == {(200, "ok")}
    with _frozen(_pid_of(stream.server)):
        deadline = time.monotonic() + NAMED_SECONDS
        while any(_ready(door)[0] == 200 for door in doors.values()):
            assert time.monotonic() < deadline, "all are ready still"
            time.sleep(0.2)
        said = rf"no beat was answered for \d+ s: {stream.server.url} does not answer: TimeoutError"
        for service, door in doors.items():
            assert re.fullmatch(said, _ready(door)[1])
            assert f"beat failed: {stream.server.url} does not answer" in stream.log(service)


def test_dead_engines_are_named_with_what_they_hold(stream: Stream) -> None:
    """The last one, since without a supervisor its leases are others' after 15 s only."""
    stream.processes["inference"].kill()
    dead = r"inference-0 \(silent for \d+ s\)"
    stream.named(
        r"inference-0 (holds \d+ leases? and )?has been silent for \d+ s",
        rf"scoring has waited for completions for \d+ s; starved by {dead}",
        rf"training has waited for groups for \d+ s: .*; starved by {dead}",
    )


def test_up_names_a_redis_that_does_not_answer_and_goes_on_when_it_does(tmp_path: Path) -> None:
    with running() as server, _up(tmp_path, server) as up:
        assert up.stdout
        lines = iter(up.stdout.readline, "")
        with closing(Bus.connect(server.url, "run")) as bus:
            while not bus.is_open() or len(bus.snapshot().beats) < 2:
                time.sleep(0.05)
        with _frozen(_pid_of(server)):
            began = time.monotonic()
            alarm = f"alarm: {server.url} does not answer: TimeoutError\n"
            assert alarm in iter(lambda: next(lines), "")
            assert time.monotonic() - began < NAMED_SECONDS
        assert any(line.startswith("the server answers again, after") for line in lines)
        up.terminate()
        assert up.wait(timeout=20) == 0


@contextmanager
def _up(folder: Path, server: Server) -> Iterator[subprocess.Popen[str]]:
    roles = {"training-0": "idles", "inference-0": "idles", "redis": server.url}
    driver = [str(HERE / "up_driver.py"), "run", json.dumps(roles)]
    words = [sys.executable, "-u", *driver]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as up:
        try:
            yield up
        finally:
            up.kill()


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _pid_of(server: Server) -> int:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        return int(client.info("server")["process_id"])


def _ready(door: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(door, timeout=5)) as connection:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        return reply.status, reply.read().decode().strip()
