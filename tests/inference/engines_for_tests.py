"""The fake engine, with a hand on what a real one does in its own time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from pipeline.errors import EngineLost
from pipeline.messages import Completion, Manifest, Sampling, Work
from pipeline.protocols import Transport
from pipeline.run import Model
from services.inference.engines.fake import FakeEngine

PATIENCE_SECONDS = 20.0


class Paced(FakeEngine):
    """Makes as many steps as it is allowed; its fingerprints may be held back, or be wrong as often
    as `wrong_flips` says for the version, and its log-probs `off` by so many nats."""

    def __init__(self, *, boot: str, slots: int = 64, steps: int | None = None) -> None:
        """`steps` None is no bound; no token ends a member but its last."""
        super().__init__(boot=boot, slots=slots, end_ids=frozenset())
        self._allowed = threading.Semaphore(0)
        self._bounded = steps is not None
        self.allow(steps or 0)
        self.may_prove = threading.Event()
        self.may_prove.set()
        self.wrong_flips: dict[int, int] = {}
        self.off: dict[int, float] = {}
        self.off_once: dict[int, float] = {}
        self.failing: dict[int, int] = {}
        self.large_members: set[int] = set()
        self.lost = ""
        self.at_stage: Callable[[], None] = lambda: None
        self._failed: str | None = None

    def allow(self, steps: int) -> None:
        """So many steps more."""
        for _ in range(steps):
            self._allowed.release()

    def step(self) -> list[Completion]:
        if self.lost:
            raise EngineLost(self.lost)
        if self._bounded and not self._allowed.acquire(timeout=0.005):
            return []
        return [self._blown_up(completion) for completion in super().step()]

    def stage(self, manifest: Manifest, transport: Transport) -> None:
        """Fails as often as `failing` says for the version; calls `at_stage` before."""
        self.at_stage()
        if self.failing.get(manifest.version, 0) > 0:
            self.failing[manifest.version] -= 1
            self._failed = f"version {manifest.version} not staged: a checksum is off"
        else:
            super().stage(manifest, transport)

    def staging_error(self) -> str | None:
        failed, self._failed = self._failed, None
        return failed

    def fingerprint(self) -> str:
        version, live = self.version, super().fingerprint()
        assert self.may_prove.wait(PATIENCE_SECONDS), "the proof was held back for too long"
        if self.wrong_flips.get(version, 0) > 0:
            self.wrong_flips[version] -= 1
            return "other"
        return live

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        off = self.off.get(self.version, 0.0) + self.off_once.pop(self.version, 0.0)
        return [value + off for value in super().logprobs(ids)]

    def _blown_up(self, completion: Completion) -> Completion:
        if completion.member not in self.large_members:
            return completion
        return replace(completion, routes="x" * (1 << 26))


class Noting(FakeEngine):
    """Notes how its work is to be sampled, by group."""

    asked: ClassVar[dict[str, Sampling]] = {}

    def __init__(self, model: Model, *, boot: str, swap: str = "keep") -> None:
        super().__init__(boot=boot, vocabulary=20)

    def add(self, work: Work) -> None:
        self.asked[work.prompt.group] = work.prompt.sampling
        super().add(work)
