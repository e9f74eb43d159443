"""What a checkpoint holds of a back end, copied to host memory so that training goes on. † torch

How the state is laid out on disk is in `state`; when a checkpoint counts, in `checkpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.model.fingerprint import Named, fingerprint
from services.training.backends.folder import write_model
from services.training.backends.state import PARAMETER, parted, write


class Snapshot:
    """Implements `pipeline.protocols.Snapshot`; no training changes it."""

    def __init__(self, model: Any, state: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> None:
        """`state` is in entries, `rest` what of the model is never trained, by its names there.

        Of the model itself only its structure and its config are read.
        """
        self.state = state
        self._model, self._rest = model, rest

    def fingerprint(self) -> str:
        """Of the float32 parameters that are trained."""
        return fingerprint(self._parameters().items())

    def write(self, folder: str) -> None:
        """`model/`, a Hugging Face folder, and `state/`, into a folder that has neither."""
        inside = Path(folder)
        write_model(self._model, str(inside / "model"), self._parameters() | {**self._rest})
        (inside / "state").mkdir()
        write(str(inside / "state"), self.state.items())  # it refers to the model, so afterwards

    def _parameters(self) -> dict[str, Tensor]:
        parts = ((*parted(key), tensor) for key, tensor in self.state.items())
        return {name: tensor for kind, name, tensor in parts if kind == PARAMETER}


def copied(named: Named) -> dict[str, Tensor]:
    """In host memory, apart from what training goes on with."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in named}
