"""Scorers that hold a model of their own against what the policy sampled. † torch

Their log-probs are those of the distribution that was drawn from: at the run's temperature, and
over the kept ids where there are any, so that they compare with the engine's and the trainer's.
What is learnt from them is in the training service.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.messages import Teaching
from pipeline.model.fingerprint import fingerprint
from pipeline.model.load import DTYPES, load_model
from pipeline.model.source import check_folder
from pipeline.model.teaching import Taught, teach
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import Answer, Drawn, Verdict

Dtype = Literal["float32", "bfloat16"]
AT = "scoring.scorers.path"


class _Model:
    """A frozen model that shares the policy's tokenizer, on a GPU where there is one."""

    def __init__(self, path: str, *, policy: str, dtype: str) -> None:
        """Raises ConfigError for a model that cannot be had, or whose ids mean other tokens."""
        _check_tokenizer(path, policy)
        self._model = load_model(path, dtype=dtype).requires_grad_(False)
        self.version = f"{path}@{fingerprint(self._model.named_parameters(), DTYPES[dtype])[:12]}"
        if torch.cuda.is_available():
            self._model.to("cuda")  # type: ignore[arg-type]

    def __call__(self, answer: Answer, *, top_k: int = 0) -> Taught:
        """Log-probs of the answer's tokens. Raises ValueError for one without any."""
        if answer.drawn is None or not answer.ids:
            raise ValueError("nothing is told of how the answer's tokens were drawn")
        return teach(self._model, answer.ids, answer.drawn, top_k=top_k)


class Teacher:
    """Log-probs of every token under a model that the policy is to resemble; the reward is 0.

    With `top_k` those of its likeliest ids as well. Behind other scorers it adds to their reward
    nothing; alone it makes a run of distillation. The tokenizer must be the policy's.
    """

    reads_drawn = True

    def __init__(
        self,
        *,
        path: str,
        policy: str,
        top_k: Annotated[int, Meta(ge=0, le=256)] = 0,
        dtype: Dtype = "float32",
    ) -> None:
        """Loads the model, once in each worker. Raises ConfigError."""
        self._model, self._top_k = _Model(path, policy=policy, dtype=dtype), top_k
        self.version = self._model.version

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError for an answer without tokens."""
        taught = self._model(answer, top_k=self._top_k)
        teaching = Teaching(
            logprobs=taught.logprobs.numpy().astype("<f4").tobytes(),
            top_ids=taught.top_ids.numpy().astype("<i4").tobytes(),
            top_logprobs=taught.top_logprobs.numpy().astype("<f4").tobytes(),
        )
        return Verdict(reward=0.0, teaching=teaching)


class KlPenalty:
    """-`beta` Σ (log μ - log ref) over the answer's tokens: k1 against a frozen model.

    μ is the policy that sampled. It shapes the reward; since the outcome is that of the first
    scorer, it stands behind another.
    """

    reads_drawn = True

    def __init__(
        self,
        *,
        path: str,
        policy: str,
        beta: Annotated[float, Meta(ge=0)] = 0.001,
        dtype: Dtype = "float32",
    ) -> None:
        """Loads the model, once in each worker. Raises ConfigError."""
        self._model, self._beta = _Model(path, policy=policy, dtype=dtype), beta
        self.version = self._model.version

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError for an answer without tokens."""
        reference = self._model(answer).logprobs.double().sum().item()
        return Verdict(reward=-self._beta * (_behaviour(answer.drawn) - reference), outcome=0.0)


def _behaviour(drawn: Drawn | None) -> float:
    assert drawn, "the model has refused an answer without it"
    return float(np.frombuffer(drawn.logprobs, "<f4").astype(np.float64).sum())


def _check_tokenizer(path: str, policy: str) -> None:
    """Raises ConfigError where an id is another token to one model than to the other."""
    check_folder(path, at=AT)
    own, other = (Tokenizer(place).describe() for place in (path, policy))
    if own != other:
        raise ConfigError(
            AT,
            path,
            rule=f"its tokenizer is {own}, and that of the policy, {policy}, is {other}",
            remedy="choose a model of the policy's family: token ids must mean the same to both",
        )
