"""A run's policy, as engines and trainer load it: the model, and its adapter. † torch"""

from __future__ import annotations

from typing import Any

from pipeline import plugins
from pipeline.families import ADAPTERS
from pipeline.model.load import load_model
from pipeline.run import Model


def load_policy(model: Model, *, dtype: str) -> Any:
    """With parameters in `dtype`, in evaluation mode. Raises ConfigError."""
    loaded = load_model(model.path, dtype=dtype)
    if model.adapter is None:
        return loaded
    return plugins.make(ADAPTERS, model.adapter, loaded, at="model.adapter")
