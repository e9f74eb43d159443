"""What changed since the version before, in front of a transport that moves tensors. † torch

A patch is itself named tensors, and travels as a version does, in a lane of its own. Which patches
lead to a version, and from which, is in its location, so that a receiver sees what each way costs
before it fetches anything. What comes out is verified in `staging` by the manifest's own checksums.
How a tensor's bits are told apart is `patch`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.protocols import Held, Transport
from pipeline.weights.patch import apply, encode
from pipeline.weights.store import Store

log = logging.getLogger(__name__)

_CHANGED, _WHOLE = "changed:", "whole:"
Tensors = Mapping[str, Tensor]


class Station(Struct, frozen=True, array_like=True):
    """A version on the way; the patch that leads to it from the one before, which the first lacks.

    The fingerprint is its manifest's, so that a receiver can tell whether it has just this one.
    """

    version: int
    fingerprint: str
    patch: str
    num_bytes: int


class Route(Struct, frozen=True):
    """A location: the last version that travelled whole, and the stations up to this one."""

    version: int
    whole: str
    num_bytes: int
    stations: tuple[Station, ...]

    @property
    def rest(self) -> tuple[Station, ...]:
        """The stations behind the version that is whole."""
        return tuple(station for station in self.stations if station.version > self.version)

    def since(self, held: Held) -> tuple[Station, ...] | None:
        """The stations behind the one that is held; None where it is none of them."""
        for number, station in enumerate(self.stations):
            if (station.version, station.fingerprint) == (held.version, held.fingerprint):
                return self.stations[number + 1 :]
        return None

    def to(self, station: Station) -> Route:
        """One station further."""
        return replace(self, stations=(*self.stations, station))

    def anew(self, version: int, whole: str, num_bytes: int) -> Route:
        """From a later version that travelled whole; what led to the former one is forgotten."""
        kept = tuple(station for station in self.stations if station.version >= self.version)
        return Route(version, whole, num_bytes, kept)


class Make(Protocol):
    """Opens the store of one lane."""

    def __call__(self, *, lane: str = ..., kept: int | None = ...) -> Store: ...


def layered(make: Make, whole_every: int) -> Transport:
    """The store itself where every version travels whole, else patches in front of two."""
    return Delta(make, whole_every) if whole_every > 1 else make()


class Delta:
    """Whole versions in one lane, patches in another; the newest two versions can be had from both.

    A version travels whole as well where it is the first, or the `whole_every`th since the last
    that did; where the patches since then would be larger than it is; and where something that was
    sent is gone, or the tensors are others. The patches since the older of the two whole versions
    that are kept stay as well, for receivers that missed some. The version sent last stays in the
    sender's memory.
    """

    def __init__(self, make: Make, whole_every: int) -> None:
        self._versions, self._patches = make(), make(lane="patches", kept=None)
        self._whole_every = whole_every
        self._last: Tensors = {}
        self._route: Route | None = None
        self._patched: list[int] = []

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        epoch: int,
        fingerprint: str = "",
    ) -> str:
        """Whole, as a patch, or both; where that is. Raises WeightsError: then it was not sent."""
        new = dict(tensors)
        former = self._base(version, new)
        patch = difference(self._last, new) if former else {}
        num_bytes, place = _size(patch), ""
        is_whole = former is None or self._is_due(former, num_bytes)
        try:
            whole = self._versions.send(version, new.items(), epoch=epoch) if is_whole else ""
            if former is not None:
                place = self._patches.send(version, patch.items(), epoch=epoch)
        except WeightsError:
            self._versions.drop(version)
            raise
        log.info("version=%d patch_bytes=%d whole=%s", version, num_bytes, is_whole)
        station = Station(version, fingerprint, place, num_bytes)
        route = former.to(station) if former else Route(version, whole, _size(new), (station,))
        if is_whole and former is not None:
            route = route.anew(version, whole, _size(new))
        self._went(new, route)
        return msgspec.json.encode(route).decode()

    def receive(self, manifest: Manifest, held: Held | None = None) -> Iterator[tuple[str, Tensor]]:
        """By whatever takes the fewest bytes: from what is held, or from a whole version."""
        route = _decoded(manifest)
        chain = route.since(held) if held else None
        if held is None or chain is None or _sum(chain) >= route.num_bytes + _sum(route.rest):
            at = replace(manifest, version=route.version, location=route.whole)
            tensors, chain = dict(self._versions.receive(at)), route.rest
        else:
            tensors = dict(held.tensors)
        for station in chain:
            at = replace(manifest, version=station.version, location=station.patch)
            _patch(tensors, self._patches.receive(at), station)
        while tensors:  # what was taken to another device need not stay here
            yield tensors.popitem()

    def drop(self, version: int) -> None:
        """Nothing: what is needed of it for others stays, and goes with them."""

    def is_intact(self) -> bool:
        """Whether all that was sent from here, and was not dropped, is there still."""
        return self._versions.is_intact() and self._patches.is_intact()

    def _base(self, version: int, new: Tensors) -> Route | None:
        """The way to the version that a patch can be based on."""
        route, kinds = self._route, [_kinds(self._last), _kinds(new)]
        if route is None or version <= route.stations[-1].version or kinds[0] != kinds[1]:
            return None
        return route if self.is_intact() else None

    def _is_due(self, former: Route, num_bytes: int) -> bool:
        many = len(former.rest) + 1 >= self._whole_every
        return many or _sum(former.rest) + num_bytes > former.num_bytes

    def _went(self, new: Tensors, route: Route) -> None:
        if self._route is None:
            log.info("the version sent last is kept for patches: %.0f MB", _size(new) / 1e6)
        elif self._route.version < route.version:  # what was whole before it is the older of two
            for version in [v for v in self._patched if v <= self._route.version]:
                self._patches.drop(version)
                self._patched.remove(version)
        if (station := route.stations[-1]).patch:
            self._patched.append(station.version)
        self._last, self._route = new, route


def difference(old: Tensors, new: Tensors) -> dict[str, Tensor]:
    """The patch from one version to another of the same names, dtypes and shapes."""
    patch: dict[str, Tensor] = {}
    for name, tensor in new.items():
        if changed := encode(old[name], tensor):
            if len(changed) < tensor.nbytes:
                patch[_CHANGED + name] = torch.frombuffer(bytearray(changed), dtype=torch.uint8)
            else:
                patch[_WHOLE + name] = tensor
    return patch


def _patch(tensors: dict[str, Tensor], patch: Iterable[tuple[str, Tensor]], to: Station) -> None:
    for key, tensor in patch:
        kind, _, name = key.partition(":")
        if name not in tensors or kind not in ("changed", "whole"):
            raise WeightsError(f"version {to.version}: {to.patch} is no patch of what is here")
        if kind == "whole":
            tensors[name] = tensor
            continue
        try:
            tensors[name] = apply(tensors[name], tensor.numpy().tobytes())
        except WeightsError as exc:
            raise WeightsError(f"{name}: its patch to version {to.version} {exc}") from exc


def _decoded(manifest: Manifest) -> Route:
    try:
        return msgspec.json.decode(manifest.location, type=Route)
    except msgspec.MsgspecError as exc:
        raise WeightsError(
            f"version {manifest.version} cannot be read from {manifest.location}: the trainer sends"
            " no patches (weights.whole_every), and this engine expects them"
        ) from exc


def _kinds(tensors: Tensors) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def _size(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _sum(stations: Iterable[Station]) -> int:
    return sum(station.num_bytes for station in stations)
