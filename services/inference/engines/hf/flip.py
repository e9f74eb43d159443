"""The live parameters of a model and the version that they are; one swap, all tensors or none.

Receiving and verifying is `pipeline.weights.staging`'s; what becomes of the sequences in flight is
the engine's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.model.fingerprint import (
    describe_all,
    fingerprint,
    frozen_parameters,
    named_parameters,
)
from pipeline.protocols import Held, StagingCost, Transport
from pipeline.weights.staging import Staging


class Former(NamedTuple):
    """What was live before the last flip, kept until the next version is received."""

    version: int
    fingerprint: str
    tensors: dict[str, Tensor]


class Pinned(NamedTuple):
    """What was live when it was pinned."""

    version: int
    tensors: dict[str, Tensor]


class Swapped(NamedTuple):
    """Whether the weights changed, or have another name only, and what their staging took."""

    changed: bool
    staging: StagingCost


class LiveWeights:
    """Owned by the engine's thread, except for `fingerprint`."""

    def __init__(self, model: nn.Module) -> None:
        self.version = -1
        self._former: Former | None = None
        self._parameters: dict[str, Tensor] = dict(named_parameters(model))
        self._frozen = frozen_parameters(model)
        self._staging = Staging(
            {name: (p.dtype, tuple(p.shape)) for name, p in self._parameters.items()},
            device=next(iter(self._parameters.values())).device,
            frozen=describe_all(self._frozen),
            held=self._held,
        )
        self._lock = threading.Lock()  # of the pointers, and of which version they are
        self._away: dict[str, Tensor] = {}  # the live tensors, while others are lent their place
        self._same: Manifest | None = None
        self._fingerprints: dict[int, str] = {}
        self._live = ""
        self._live = self.fingerprint()

    def stage(self, manifest: Manifest, transport: Transport) -> None:
        """Receive in the background; the very weights that are live need not travel."""
        if manifest.version <= self.version:
            return
        self._former = None
        if manifest.fingerprint == self._live:
            self._same = manifest
        else:
            self._fingerprints[manifest.version] = manifest.fingerprint
            self._staging.begin(manifest, transport)

    def error(self) -> str | None:
        """Why the last staging failed, once."""
        return self._staging.error()

    @property
    def is_staged(self) -> bool:
        """Whether other weights than the live ones could be adopted."""
        return not self._same and self._staging.ready > self.version

    def swap(self) -> Swapped | None:
        """Adopt what is staged, or None where nothing is.

        Pointers only, and every tensor was verified before: nothing in here can fail half-way.
        """
        if self._same:
            self._adopt(self._same.version, self._same.fingerprint, {})
            return Swapped(False, StagingCost())
        staged = self._staging.take()
        if staged is None or staged.version <= self.version:
            return None
        assert staged.tensors.keys() == self._parameters.keys(), "a staged version is whole"
        self._adopt(staged.version, self._fingerprints[staged.version], staged.tensors)
        return Swapped(True, staged.cost)

    def revert(self) -> None:
        """Back to what was live before the last flip; raises WeightsError where that is gone."""
        former, self._former = self._former, None
        if former is None:
            raise WeightsError(f"version {self.version} is wrong, and the former weights are gone")
        with self._lock:
            self._point(former.tensors)
            self.version, self._live = former.version, former.fingerprint

    def fingerprint(self) -> str:
        """Of the live parameters, from any thread.

        A swap replaces pointers and writes into no tensor, so the tensors seen under the lock are
        one version for as long as they are held.
        """
        return fingerprint([*self._held().tensors.items(), *self._frozen])

    def pin(self) -> Pinned:
        """What is live now; it stays in memory for as long as this is held."""
        return Pinned(self.version, {name: p.data for name, p in self._parameters.items()})

    @contextmanager
    def lent(self, tensors: dict[str, Tensor]) -> Iterator[None]:
        """Have the model run other tensors for a while; pointers only, as in a swap."""
        with self._lock:
            self._away = {name: self._parameters[name].data for name in tensors}
            self._point(tensors)
        try:
            yield
        finally:
            with self._lock:
                self._point(self._away)
                self._away = {}

    def _held(self) -> Held:
        """What serves, for a transport that sends what changed; asked by the staging thread."""
        with self._lock:
            seen = {name: self._away.get(name, p.data) for name, p in self._parameters.items()}
            return Held(self.version, self._live, seen)

    def _point(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._parameters[name].data = tensor

    def _adopt(self, version: int, live: str, tensors: dict[str, Tensor]) -> None:
        with self._lock:
            former = {name: self._parameters[name].data for name in tensors}
            self._point(tensors)
            self._former = Former(self.version, self._live, former)
            self.version, self._live = version, live
        self._same = None
        self._fingerprints = {v: f for v, f in self._fingerprints.items() if v > version}
