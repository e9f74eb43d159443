"""Which weights are live and under which version, and the way back. † torch

Owned by the engine's thread, except for `fingerprint`. How tensors come into the model is the
loader's, and what becomes of sequences in flight the engine's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.protocols import StagingCost
from services.inference.engines.vllm.host import Host
from services.inference.engines.vllm.proof import proof
from services.inference.engines.vllm.swaps import AS_LOADED, Loader

log = logging.getLogger(__name__)


class Serving(NamedTuple):
    """A version, what it was announced as, and whose tensors they are for the loader.

    `tensors` is another version where the two are the same weights.
    """

    version: int
    fingerprint: str
    tensors: int
    manifest: Manifest | None


class Live:
    """One version at a time; `adopt` and `revert` are called in a pause."""

    def __init__(self, host: Host, loader: Loader, first: str, *, canary_gap: float) -> None:
        """`first` is the fingerprint of the weights that vLLM started with; `canary_gap` is how far
        off log-probs of a canary may be, in nats.
        """
        self._host, self._loader, self._canary_gap = host, loader, canary_gap
        self._now = Serving(-1, first, AS_LOADED, None)
        self._former: Serving | None = None
        self._same: Manifest | None = None
        self._announced: dict[int, Manifest] = {}
        self._error: str | None = None
        self.salt = self._new_salt()
        """Of whatever keys are shared by: another one for each time that weights came in."""
        self.is_same = False  # whether the last flip gave another name only

    @property
    def version(self) -> int:
        return self._now.version

    def stage(self, manifest: Manifest) -> None:
        """Get it ready; the very weights that are live need not travel."""
        if manifest.version <= self.version:
            return
        self._former = None
        if manifest.fingerprint == self._now.fingerprint:
            self._same = manifest
        else:
            self._announced[manifest.version] = manifest
            self._loader.begin(manifest)

    def error(self) -> str | None:
        """Why the last version could not be had, once."""
        error, self._error = self._error or self._loader.error(), None
        return error

    @property
    def has_other(self) -> bool:
        """Whether other weights than the live ones could be adopted."""
        ready = self._loader.ready
        return not self._same and ready is not None and ready.version > self.version

    @property
    def is_ready(self) -> bool:
        """Whether anything could be adopted."""
        return bool(self._same) or self.has_other

    def adopt(self) -> StagingCost | None:
        """What is ready becomes live; None where it could not be loaded, and the old one serves.

        Raises WeightsError if that cannot be had back either.
        """
        if self._same:
            manifest, cost = self._same, StagingCost()
            new = Serving(manifest.version, manifest.fingerprint, self._now.tensors, manifest)
        else:
            ready = self._loader.ready
            assert ready, "only what is ready is adopted"
            manifest, cost = self._announced[ready.version], ready.cost
            new = Serving(ready.version, manifest.fingerprint, ready.version, manifest)
            if not self._load(new):
                return None
        self.is_same, self._same, self._former = bool(self._same), None, self._now
        self._serve(new)
        self._announced = {v: m for v, m in self._announced.items() if v > self.version}
        return cost

    def check_former(self) -> None:
        """Raises WeightsError where the weights before the last flip are gone."""
        if self._former is None:
            raise WeightsError(f"version {self.version} is wrong, and the former weights are gone")

    def revert(self) -> StagingCost:
        """What was live before the last flip is again."""
        former, self._former = self._former, None
        assert former, "asked by check_former before the pause"
        if former.tensors != self._now.tensors:
            self._host.call(self._loader.load(former.tensors))
        self.salt = self._new_salt()  # also where they are the same: keys are made anew
        self._serve(former)
        return StagingCost()

    def fingerprint(self, logprobs: Callable[[Sequence[int]], list[float]]) -> str:
        """The announced one, where the live weights are proven to be those; else what differs."""
        now = self._now
        if now.manifest is None:
            return now.fingerprint
        differing = self._host.call(self._loader.differs(now.tensors))
        if differing is None and now.tensors == AS_LOADED and now.manifest.canary is None:
            return now.fingerprint  # no swap brought them
        wrong = proof(now.manifest, differing, logprobs, canary_gap=self._canary_gap)
        return wrong or now.fingerprint

    def _load(self, new: Serving) -> bool:
        try:
            self._host.call(self._loader.load(new.tensors))
        except WeightsError as exc:
            self._error = str(exc)
            log.error("%s; version=%d serves on", exc, self.version)
            self._host.call(self._loader.load(self._now.tensors))
            return False
        finally:
            self.salt = self._new_salt()
        return True

    def _new_salt(self) -> str:
        return f"weights {next(self._host.numbers)}"

    def _serve(self, new: Serving) -> None:
        self._host.call(self._host.llm.update_weight_version(str(new.version)))
        self._now = new
