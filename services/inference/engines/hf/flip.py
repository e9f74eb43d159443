"""The live parameters of a model and the version that they are; one swap, all tensors or none.

Receiving and verifying is `pipeline.weights.staging`'s; what becomes of the sequences in flight is
the engine's.
"""

from __future__ import annotations

import threading

from torch import Tensor, nn

from pipeline.messages import Manifest
from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.protocols import Transport
from pipeline.weights.staging import Staging


class LiveWeights:
    """Owned by the engine's thread, except for `fingerprint`."""

    def __init__(self, model: nn.Module) -> None:
        self.version = -1
        self._parameters: dict[str, Tensor] = dict(named_parameters(model))
        self._staging = Staging(
            {name: (p.dtype, tuple(p.shape)) for name, p in self._parameters.items()},
            device=next(iter(self._parameters.values())).device,
        )
        self._lock = threading.Lock()
        self._same: Manifest | None = None
        self._fingerprints: dict[int, str] = {}
        self._live = self.fingerprint()

    def stage(self, manifest: Manifest, transport: Transport) -> None:
        """Receive in the background; the very weights that are live need not travel."""
        if manifest.version <= self.version:
            return
        if manifest.fingerprint == self._live:
            self._same = manifest
        else:
            self._fingerprints[manifest.version] = manifest.fingerprint
            self._staging.begin(manifest, transport)

    def error(self) -> str | None:
        """Why the last staging failed, once."""
        return self._staging.error()

    def swap(self) -> bool | None:
        """Adopt what is staged: whether the weights changed, or None where nothing is staged.

        Pointers only, and every tensor was verified before: nothing in here can fail half-way.
        """
        if self._same:
            self._adopt(self._same.version, self._same.fingerprint)
            return False
        staged = self._staging.take()
        if staged is None or staged.version <= self.version:
            return None
        pairs = [(self._parameters[name], tensor) for name, tensor in staged.tensors.items()]
        assert len(pairs) == len(self._parameters), "a staged version is whole"
        with self._lock:
            for parameter, tensor in pairs:
                parameter.data = tensor
        self._adopt(staged.version, self._fingerprints[staged.version])
        return True

    def fingerprint(self) -> str:
        """Of the live parameters, from any thread.

        A swap replaces pointers and writes into no tensor, so the tensors seen under the lock are
        one version for as long as they are held.
        """
        with self._lock:
            seen = [(name, parameter.data) for name, parameter in self._parameters.items()]
        return fingerprint(seen)

    def _adopt(self, version: int, live: str) -> None:
        self.version, self._live, self._same = version, live, None
        self._fingerprints = {v: f for v, f in self._fingerprints.items() if v > version}
