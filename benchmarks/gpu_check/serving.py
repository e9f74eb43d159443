"""An engine under load whose weights are swapped, as the service does it. † torch, vllm"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.gpu_check.setting import Failed, Setting
from pipeline.messages import Completion, Manifest, Prompt, Sampling, Work
from pipeline.model.fingerprint import Named, describe_all, fingerprint_of
from pipeline.protocols import Flip, Transport
from pipeline.run import Model, Spec, Swap
from pipeline.weights.origin import Origin
from services.inference.engines.vllm.build import start
from services.inference.engines.vllm.engine import VllmEngine

RUN = "gpu-check"
PATIENCE_SECONDS = 60.0


def shared(setting: Setting) -> dict[str, Any]:
    """The transport `shm`, in a folder of its own."""
    return {"use": "shm", "folder": tempfile.mkdtemp(dir=setting.shared)}


def started(
    setting: Setting,
    path: str,
    weights: Spec,
    *,
    dtype: str,
    swap: Swap = "keep",
    slots: int = 32,
    eager: bool = False,
) -> VllmEngine:
    """vLLM as a run starts it. The GPU may be shared with a trainer, so it gets a part."""
    args: dict[str, Any] = {"enforce_eager": eager}
    if not setting.rehearses:
        args |= {"gpu_memory_utilization": 0.5}
    return start(
        Model(path=path, dtype=dtype),  # type: ignore[arg-type]
        boot="gpu-check",
        origin=Origin(weights, RUN),
        swap=swap,
        slots=slots,
        max_length=None,
        args=args,
        ends=frozenset(),
    )


def manifest_of(transport: Transport, version: int, named: Named) -> Manifest:
    """Send these as a version."""
    named = [*named]
    entries = describe_all(named)
    return Manifest(
        version=version,
        step=version,
        epoch=1,
        fingerprint=fingerprint_of(entries),
        location=transport.send(version, named, epoch=1),
        tensors=entries,
    )


def begin(engine: VllmEngine, group: str, *, members: int, tokens: int) -> None:
    """As many sequences from one prompt."""
    prompt = Prompt(
        group=group,
        seq=0,
        ids=array("i", [3, 5, 7]).tobytes(),
        members=members,
        sampling=Sampling(max_tokens=tokens),
    )
    engine.add(Work(prompt=prompt, todo=tuple(range(members))))


class Load:
    """Sequences in flight, as many again once they have ended; what finished, and its tokens."""

    def __init__(self, engine: VllmEngine, *, members: int = 0, tokens: int = 0) -> None:
        """`members` at a time, each of so many tokens."""
        self.engine, self.members, self.length = engine, members, tokens
        self.done: list[Completion] = []
        self.tokens = self.begun = 0
        self.ending = False

    def until(self, holds: Callable[[], Any]) -> None:
        """Decode until this holds; raises Failed where it never does."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise Failed("nothing happens: neither a flip, nor tokens")
            self._feed()
            self.done += self.engine.step()
            self.tokens += self.engine.last_step.rows
            if not self.engine.busy:
                time.sleep(0.002)

    def _feed(self) -> None:
        if self.members and not (self.ending or self.engine.busy or self.engine.version < 0):
            begin(self.engine, f"load-{self.begun}", members=self.members, tokens=self.length)
            self.begun += self.members

    def draw(self, tokens: int) -> None:
        """So many tokens more, of all sequences together."""
        wanted = self.tokens + tokens
        self.until(lambda: self.tokens >= wanted)

    def drain(self) -> None:
        """To the end of every sequence."""
        self.ending = True
        self.until(lambda: not self.engine.busy)

    def take(self, manifest: Manifest, transport: Transport) -> Flip:
        """Have the version adopted, and decode meanwhile; raises Failed where it cannot be."""
        flips: list[Flip] = []

        def flipped() -> bool:
            if error := self.engine.staging_error():
                raise Failed(error)
            if flip := self.engine.flip():
                flips.append(flip)
            return bool(flips)

        self.engine.stage(manifest, transport)
        self.until(flipped)
        return flips[0]


def size_of(named: Iterable[tuple[str, Any]]) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in named)
