"""Writes a transformers model as a Hugging Face folder, whole or not at all. † torch"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.disk import new_folder
from pipeline.model.merged import has_adapters, merged


def write_model(model: Any, folder: str, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Save to a folder that does not exist yet: these tensors, or the model's own.

    Adapters are merged in, so that whoever loads the folder needs to know of none.
    """
    if has_adapters(model):
        tensors = merged(model, tensors)
    with new_folder(Path(folder)) as partial:
        model.save_pretrained(partial, state_dict=tensors)
