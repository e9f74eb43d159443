"""A reward model: a sequence classifier of one output that grades many answers at once. † torch"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from transformers import AutoConfig

from pipeline.errors import ConfigError
from pipeline.model.fingerprint import fingerprint
from pipeline.model.load import DTYPES, load_classifier
from pipeline.model.source import check_model, context_of, refuse
from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Fault, raised
from services.scoring.scorers.models.encoding import Encoding

Dtype = Literal["float32", "bfloat16"]
AT = "scoring.scorers.path"
TOKENS_AT_ONCE = 1 << 14
"""With what fills up the shorter ones; a longer answer goes alone."""


class RewardModel:
    """The one output of a `transformers` sequence classifier, for prompt and answer.

    `path` is its folder or its name, and `batch` how many answers it is given at once, which share
    the time limit of one. It reads the policy's ids where the tokenizers are alike, else the texts
    as its own chat template writes them. What its context does not hold is a fault: nothing is ever
    cut off. On a GPU where there is one.
    """

    reads_drawn = True

    def __init__(
        self,
        *,
        path: str,
        policy: str,
        batch: Annotated[int, Meta(ge=1, le=1024)] = 8,
        dtype: Dtype = "float32",
    ) -> None:
        """Loads the model, once in each worker. Raises ConfigError."""
        config = _checked(path)
        self._read, self.batch = Encoding(path, policy, at=AT), batch
        self._context = context_of(config.to_dict())
        model = load_classifier(path, dtype=dtype, at=AT).requires_grad_(False)
        self.version = f"{path}@{fingerprint(model.named_parameters(), DTYPES[dtype])[:12]}"
        self._model = model.to("cuda" if torch.cuda.is_available() else "cpu")  # type: ignore[arg-type]
        self._model.config.use_cache = False

    def __call__(self, answers: Sequence[Answer]) -> list[Verdict | Fault]:
        """One for each answer, in order."""
        found: dict[int, Verdict | Fault] = {}
        rows: dict[int, list[int]] = {}
        for number, answer in enumerate(answers):
            try:
                rows[number] = self._ids(answer)
            except Exception as exc:  # one answer that cannot be read; the worker says so of it
                found[number] = raised(exc)
        for numbers in chunks(rows):
            rewards = grade(self._model, [rows[number] for number in numbers])
            found |= {n: Verdict(reward=r) for n, r in zip(numbers, rewards, strict=True)}
        return [found[number] for number in range(len(answers))]

    def _ids(self, answer: Answer) -> list[int]:
        """Raises ValueError where there are none, or too many."""
        ids = self._read(answer)
        if not ids:
            raise ValueError("prompt and answer have no token")
        if self._context and len(ids) > self._context:
            held = f"the reward model's context holds {self._context}"
            raise ValueError(f"prompt and answer have {len(ids)} tokens, and {held}")
        return ids


@torch.no_grad()
def grade(model: Any, rows: Sequence[Sequence[int]]) -> list[float]:
    """The output for each row of ids, as it is for that row alone but for rounding.

    Shorter rows are filled up on the right and masked there. The class takes the output at the last
    token that is no pad, by the `pad_token_id` of its configuration. Where that names none, which
    transformers takes for one row only, an id with which no row ends is put there.
    """
    config = model.config.get_text_config()
    pad = config.pad_token_id
    if pad is None or pad < 0:
        ends = {row[-1] for row in rows}
        pad = next(number for number in count() if number not in ends)
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, device=model.device)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row, device=model.device)
        mask[place, : len(row)] = 1
    own, config.pad_token_id = config.pad_token_id, pad
    try:
        output = model(input_ids=ids, attention_mask=mask).logits
    finally:
        config.pad_token_id = own
    return [float(value) for value in output[:, 0].float()]


def chunks(rows: dict[int, list[int]]) -> Iterator[list[int]]:
    """Numbers of rows of about one length, so that little is filled up; longest first."""
    chunk: list[int] = []
    longest = 0
    for number in sorted(rows, key=lambda number: -len(rows[number])):
        if chunk and (len(chunk) + 1) * longest > TOKENS_AT_ONCE:
            yield chunk
            chunk = []
        longest = longest if chunk else len(rows[number])
        chunk.append(number)
    if chunk:
        yield chunk


def _checked(path: str) -> Any:
    """Its configuration; raises ConfigError unless it has one output."""
    check_model(path, at=AT)
    try:
        config = AutoConfig.from_pretrained(path)
    except Exception as exc:  # its libraries have no common error, and none is ours
        refuse(path, "it has no configuration", exc, at=AT)
    if config.num_labels != 1:
        rule = f"has {config.num_labels} outputs, and a reward is one"
        raise ConfigError(AT, path, rule=rule, remedy="name a classifier with num_labels = 1")
    return config
