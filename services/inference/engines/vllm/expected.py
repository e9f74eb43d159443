"""What the run's model is made of: names, shapes and dtypes, and the fingerprint of its first
weights. † torch

Both come from the model's own configuration and files through transformers, as the trainer's do, so
that another model is refused with both sides' values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from pipeline.model.fingerprint import dtype_name, fingerprint, named_parameters
from pipeline.model.load import DTYPES, load_model
from pipeline.model.source import check_model, refuse
from pipeline.run import Model


class Entry(NamedTuple):
    """A tensor that travels, in plain values, so that it can travel to another process itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def expected(model: Model) -> list[Entry]:
    """Every tensor of a version, in the transport's dtype; tied ones once. Nothing is loaded.

    Raises ConfigError where the model's configuration cannot be read.
    """
    check_model(model.path)
    try:
        config = AutoConfig.from_pretrained(model.path)
        with torch.device("meta"):
            auto: Any = AutoModelForCausalLM
            made = auto.from_config(config, dtype=DTYPES[model.dtype])
    except (OSError, ValueError, KeyError) as exc:
        refuse(model.path, "no causal language model is described there", exc)
    made.tie_weights()
    return [
        Entry(name, dtype_name(tensor.dtype), tuple(tensor.shape))
        for name, tensor in named_parameters(made)
    ]


def first_fingerprint(model: Model) -> str:
    """Of the weights in the model's own files, which vLLM starts with; raises ConfigError.

    They are loaded for this once, in the host's memory, and let go.
    """
    return fingerprint(named_parameters(load_model(model.path, dtype=model.dtype)))
