"""A run on a real server, with completions planted as an engine would deliver them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pipeline.bus.bus import Bus
from pipeline.life import Life
from pipeline.messages import Beat, Completion, Group, Manifest, Prompt, Sampling, Span
from pipeline.metrics import Metrics
from pipeline.run import Distillation, Model, Objective, Run
from pipeline.run import Scoring as ScoringKeys
from services.scoring.build import build
from services.scoring.drift import Golden
from services.scoring.ensemble import make_ensemble
from services.scoring.metrics import Numbers
from services.scoring.service import Scoring

ENGINE = "engine:1"


def ids_of(text: str) -> bytes:
    return array("i", map(ord, text)).tobytes()


def text_of(ids: bytes) -> str:
    return "".join(map(chr, array("i", ids)))


class Plant:
    """Stands for prompting, an engine and the trainer of one run."""

    def __init__(self, url: str, run: str) -> None:
        self.url, self.run = url, run
        self.bus = Bus.connect(url, run)
        self.bus.open({}, window=1000, per_step=4, lag_max=1000, members=4)
        self.bus.groups.lead(1, "training:1")
        manifest = Manifest(version=0, step=0, epoch=1, fingerprint="f", location="here")
        self.bus.versions.announce(manifest, min_version=0)
        self.bus.beat(Beat(service="inference", instance="engine", boot=ENGINE))
        assert self.bus.versions.confirm(ENGINE, 0, "f") == "ok"
        self.cursor = 0

    def group(
        self,
        texts: Sequence[str],
        reference: bytes | object = "good",
        prompt_text: str = "the prompt",
    ) -> str:
        """One delivered group, a member a text; a reference given as bytes is put in raw."""
        raw = reference if isinstance(reference, bytes) else msgspec.json.encode(reference)
        prompt = Prompt(
            group=f"{self.cursor:08d}",
            seq=self.cursor,
            ids=ids_of(prompt_text),
            members=len(texts),
            sampling=Sampling(),
            task="a task",
            reference=raw,
        )
        admitted = self.bus.prompts.admit(
            [prompt], cursor=self.cursor, next_cursor=self.cursor + 1, eof=False
        )
        assert admitted == "ok"
        self.cursor += 1
        (lease,) = self.bus.prompts.take(ENGINE, version=0, held=[], count=1).leases
        done = [(lease, _completion(prompt.group, m, text)) for m, text in enumerate(texts)]
        assert self.bus.prompts.deliver(ENGINE, done) == ["ok"] * len(texts)
        return prompt.group

    def ready(self, count: int, seconds: float = 20.0) -> list[Group]:
        """The released groups, once there are `count`."""
        wait_until(lambda: len(self.bus.groups.collect(1).groups) >= count, seconds)
        tickets = self.bus.groups.collect(1).groups
        assert len(tickets) == count
        return self.bus.groups.fetch([ticket.group for ticket in tickets])

    def rewards(self, group: Group) -> dict[int, float | None]:
        return {m: member.score.reward for m, member in group.members.items() if member.score}


def _completion(group: str, member: int, text: str) -> Completion:
    return Completion(
        group=group,
        member=member,
        ids=ids_of(text),
        logprobs=array("f", [-1.0] * len(text)).tobytes(),
        spans=(Span(0, len(text), ENGINE),),
        engine="engine",
        finish="stop",
    )


class Running:
    """A scoring service that runs in a thread, under a beat of its own."""

    def __init__(self, plant: Plant, keys: ScoringKeys, model: str | None) -> None:
        """With a model the service is built whole; without, ids are the text's code points."""
        self.metrics = Metrics("scoring")
        self.bus = Bus.connect(plant.url, plant.run)
        self.life = Life(self.bus, "scoring", "scoring-1", metrics=self.metrics)
        if model:
            run = Run(
                name=plant.run,
                steps=1,
                data="none",
                model=Model(path=model),
                scoring=keys,
                objective=Objective(distillation=Distillation()),
            )
            self.service = build(run, self.bus, life=self.life, metrics=self.metrics)
        else:
            numbers = Numbers(self.metrics)
            ensemble = make_ensemble(keys, numbers=numbers)
            golden = Golden(ensemble, numbers)
            self.service = Scoring(
                self.bus, self.life, ensemble, golden=golden, decode=text_of, numbers=numbers
            )
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.service.run()
        except BaseException as exc:
            self.errors.append(exc)

    def stop(self) -> None:
        signal.raise_signal(signal.SIGTERM)
        self.thread.join(20)
        assert not self.thread.is_alive(), "scoring does not stop"


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def start_process(plant: Plant, instance: str, scoring: object) -> subprocess.Popen[bytes]:
    """A scoring process of its own, with this [scoring]."""
    arguments = [plant.url, plant.run, instance, json.dumps(scoring)]
    script = Path(__file__).with_name("scoring_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, script, *arguments], env=environment)
