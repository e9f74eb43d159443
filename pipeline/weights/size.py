"""What a version of the run's weights takes where it travels through Redis. Free of torch."""

from __future__ import annotations

import json
import math
from pathlib import Path

from pipeline.plugins import name_of
from pipeline.run import Run

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_HEADER_BYTES = 8


def version_bytes(run: Run) -> int:
    """0 where Redis holds none, where an adapter alone travels, and where the model is not here."""
    if name_of(run.weights, "weights") != "redis" or run.model.adapter is not None:
        return 0
    files = [*Path(run.model.path).glob("*.safetensors")]
    return sum(map(_elements, files)) * _ITEM_BYTES.get(run.model.dtype, 4)


def _elements(file: Path) -> int:
    """Of all its tensors; 0 where it is no safetensors file, which whoever loads it will say."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_HEADER_BYTES), "little")
            header = json.loads(opened.read(length))
        return sum(math.prod(at["shape"]) for name, at in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
        return 0
