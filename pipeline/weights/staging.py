"""Stages a version beside the one that serves: received, verified, and whole before it is seen.

The one place where a version is verified. The flip is the engine's, the bytes are a transport's.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline import messages
from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.model.fingerprint import Named, checksum, dtype_name, fingerprint_of
from pipeline.protocols import Held, StagingCost, Transport

log = logging.getLogger(__name__)

Expected = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


class Staged(NamedTuple):
    """A whole and verified version, and what that took."""

    version: int
    tensors: dict[str, Tensor]
    cost: StagingCost


class Staging:
    """Receives in a thread of its own. Nothing of a version that failed is ever visible."""

    def __init__(
        self,
        expected: Expected,
        *,
        device: torch.device | None = None,
        frozen: Iterable[messages.Tensor] = (),
        held: Callable[[], Held | None] | None = None,
        keep: bool = False,
    ) -> None:
        """`expected` has name to (dtype, shape) of every tensor, in the transport's dtype.

        `frozen` are those that never travel, as they are here; a manifest must name the same.
        A tensor is verified where it was received, and staged on `device`: where the live ones
        are, so that a flip copies nothing. `held` tells, in the staging thread, what is here
        already, for a transport that sends what changed. Where no live tensor is as it was
        received, `keep` has the last version stay in memory for that.
        """
        self._expected = {name: (dtype, tuple(shape)) for name, (dtype, shape) in expected.items()}
        self._device = device or torch.device("cpu")
        self._frozen = {entry.name: entry for entry in frozen}
        self._keep = keep
        self._kept: Held | None = None
        self._held = held or self._last
        if keep:
            log.info("the version received last is kept for patches: %.0f MB", self._bytes / 1e6)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted = -1
        self._staged: Staged | None = None
        self._error: str | None = None

    def begin(self, manifest: Manifest, transport: Transport) -> None:
        """Start to receive. A newer version supersedes one that is still being received.

        An older one than was ever begun is ignored; the same one is tried again if it failed.
        """
        with self._lock:
            running = self._thread is not None
            if manifest.version < self._wanted + running:
                return
            again = manifest.version == self._wanted
            self._wanted = manifest.version
            self._thread = threading.Thread(
                target=self._run, args=(manifest, transport, again), name="staging", daemon=True
            )
            self._thread.start()

    def take(self) -> Staged | None:
        """The staged version, once."""
        with self._lock:
            staged, self._staged = self._staged, None
            return staged

    @property
    def ready(self) -> int:
        """The version that is staged, or -1."""
        with self._lock:
            return self._staged.version if self._staged else -1

    def error(self) -> str | None:
        """Why the last staging failed, once: it names the tensor and the rule."""
        with self._lock:
            error, self._error = self._error, None
            return error

    def wait(self, timeout_seconds: float) -> bool:
        """Whether nothing is being received any more, after at most so long."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)
        return thread is None or not thread.is_alive()

    def _run(self, manifest: Manifest, transport: Transport, again: bool) -> None:
        staged, error = None, None
        try:
            # What failed may have done so by what is held, so a second time nothing is.
            held = None if again else self._held()
            staged = self._receive(manifest, transport.receive(manifest, held))
        except Exception as exc:  # whatever it was, the old version serves on and the engine tells
            error = _sentence(manifest.version, exc)
        with self._lock:
            if self._superseded():
                return
            self._thread = None
            self._staged = staged or self._staged
            self._error = error
            if staged and self._keep:
                self._kept = Held(manifest.version, manifest.fingerprint, staged.tensors)

    def _receive(self, manifest: Manifest, received: Named) -> Staged | None:
        started, verifying, num_bytes = perf_counter(), 0.0, 0
        entries = self._entries(manifest)
        tensors: dict[str, Tensor] = {}
        for name, tensor in received:
            if self._superseded():
                return None
            if name not in entries:
                raise WeightsError(f"{name}: unknown to this model")
            arrived = perf_counter()
            self._check(tensor, entries[name])
            verifying += perf_counter() - arrived
            num_bytes += tensor.nbytes
            tensors[name] = tensor.to(self._device)
        _none_missing(entries.keys() - tensors.keys(), "received")
        cost = StagingCost(perf_counter() - started, verifying, num_bytes)
        return Staged(manifest.version, tensors, cost)

    def _entries(self, manifest: Manifest) -> dict[str, messages.Tensor]:
        """The manifest's entries by name: all that are expected to travel, and nothing else."""
        entries = {entry.name: entry for entry in manifest.tensors}
        for name, own in self._frozen.items():
            _check_frozen(own, entries.pop(name, None))
        if unknown := sorted(entries.keys() - self._expected.keys()):
            raise WeightsError(f"{unknown[0]}: unknown to this model")
        _none_missing(self._expected.keys() - entries.keys(), "announced")
        if fingerprint_of(manifest.tensors) != manifest.fingerprint:
            raise WeightsError("fingerprint: the manifest's is not that of its tensors")
        return entries

    def _check(self, tensor: Tensor, entry: messages.Tensor) -> None:
        dtype, shape = self._expected[entry.name]
        if (got := tuple(tensor.shape)) != shape:
            raise WeightsError(f"{entry.name}: shape {got}, expected {shape}")
        if tensor.dtype != dtype:
            raise WeightsError(
                f"{entry.name}: dtype {dtype_name(tensor.dtype)}, expected {dtype_name(dtype)}"
            )
        if (got_sum := checksum(tensor)) != entry.checksum:
            raise WeightsError(f"{entry.name}: checksum {got_sum}, expected {entry.checksum}")
        if not all_finite(tensor):
            raise WeightsError(f"{entry.name}: not all values are finite")

    def _last(self) -> Held | None:
        return self._kept

    @property
    def _bytes(self) -> int:
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._expected.values())

    def _superseded(self) -> bool:
        return self._thread is not threading.current_thread()


def all_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite, by the least and the greatest: NaN is both.

    In one pass and without memory of its own: on a CPU `isfinite` takes a hundred times as long,
    and the engine decodes beside it.
    """
    return not tensor.numel() or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())


def _check_frozen(own: messages.Tensor, announced: messages.Tensor | None) -> None:
    if announced != own:
        other = f"the trainer has {announced.checksum}" if announced else "the trainer trains it"
        raise WeightsError(
            f"{own.name}: frozen here with checksum {own.checksum}, and {other}; model.path and"
            " model.adapter must name the same on both sides"
        )


def _none_missing(names: set[str], act: str) -> None:
    if names:
        raise WeightsError(f"{', '.join(sorted(names)[:5])}: not {act} ({len(names)} missing)")


def _sentence(version: int, exc: Exception) -> str:
    kind = "" if isinstance(exc, WeightsError) else f"{type(exc).__name__}: "
    return f"version {version} not staged: {kind}{exc}"
