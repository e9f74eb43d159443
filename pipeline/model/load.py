"""A causal language model, or a reward model, from a folder or a Hugging Face name, ready to run.

Whatever keeps it from loading is the input's fault and ends as one ConfigError. The tokenizer is
in `tokens`.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers.utils import logging as hf_logging

from pipeline.errors import ConfigError
from pipeline.model.source import WHERE, check_model, refuse

# The last line of a log is what a death shows.
hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(path: str, *, dtype: str = "float32") -> PreTrainedModel:
    """The model in evaluation mode, its parameters in `dtype`. Raises ConfigError.

    A checkpoint that lacks a tensor is refused: transformers would fill it with noise.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            "model.dtype", dtype, rule="unknown", remedy=f"choose one of {', '.join(DTYPES)}"
        )
    check_model(path)
    return _load(AutoModelForCausalLM, "causal language model", path, dtype=dtype, at=WHERE)


def load_classifier(path: str, *, dtype: str = "float32", at: str) -> PreTrainedModel:
    """A sequence classifier likewise; `at` is the key that names it. Raises ConfigError."""
    check_model(path, at=at)
    return _load(
        AutoModelForSequenceClassification, "sequence classifier", path, dtype=dtype, at=at
    )


def _load(auto: Any, kind: str, path: str, *, dtype: str, at: str) -> PreTrainedModel:
    try:
        model, loading = auto.from_pretrained(path, dtype=DTYPES[dtype], output_loading_info=True)
    except Exception as exc:  # its libraries have no common error, and none is ours
        refuse(path, f"no {kind} could be loaded from it", exc, at=at)
    _check_complete(path, loading, kind=kind, at=at)
    assert isinstance(model, PreTrainedModel)
    model.train(False)
    return model


def _check_complete(path: str, loading: dict[str, Any], *, kind: str, at: str) -> None:
    wrong = sorted(
        str(key) for kind in ("missing_keys", "mismatched_keys") for key in loading[kind]
    )
    if wrong:
        raise ConfigError(
            at,
            path,
            rule=f"its weights lack {len(wrong)} tensors of the model ({', '.join(wrong[:3])})",
            remedy=f"give a complete checkpoint of a {kind}",
        )
