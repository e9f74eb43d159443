"""Writes a transformers model as a Hugging Face folder, whole or not at all. † torch"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def write_model(model: Any, folder: str, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Save to a folder that does not exist yet; `tensors` where the model's own are not whole."""
    final = Path(folder)
    partial = final.with_name(f"{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial, state_dict=tensors)
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    partial.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
