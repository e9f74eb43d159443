"""What every engine does alike: take a group's members apart, keep their spans, put them together.

Torch-free. How tokens are made is each engine's own affair.
"""

from __future__ import annotations

from array import array

from msgspec.structs import replace

from pipeline.errors import SluiceError
from pipeline.messages import Completion, Finish, Prompt, Sampling, Span, Work


class Refused(SluiceError):
    """A group that no engine of this kind can ever do; `reason` is what its dead letter says."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Member:
    """One member of a group inside an engine. Its tokens are the engine's to keep."""

    __slots__ = ("number", "prefix", "prompt", "spans")

    def __init__(self, prompt: Prompt, number: int, prefix: Completion | None) -> None:
        self.prompt = prompt
        self.number = number
        self.prefix = prefix
        self.spans: list[Span] = list(prefix.spans) if prefix else []

    @property
    def length(self) -> int:
        """Tokens that there are: the prompt's and the prefix's."""
        return len(self.prompt.ids) // 4 + (self.prefix.tokens if self.prefix else 0)

    def limit(self, max_length: int) -> int:
        """The most that prompt and completion may be together, in tokens."""
        return min(len(self.prompt.ids) // 4 + self.prompt.sampling.max_tokens, max_length)

    def ran(self, version: int, tokens: int, boot: str) -> None:
        """So many more tokens by this version; a span is the longest run of one version."""
        if not tokens:
            return
        if self.spans and (self.spans[-1].version, self.spans[-1].boot) == (version, boot):
            tokens += self.spans.pop().tokens
        self.spans.append(Span(version, tokens, boot))

    def completion(
        self, ids: bytes, logprobs: bytes, *, engine: str, finish: Finish | None
    ) -> Completion:
        """All tokens so far, those of the prefix included; what a prefix carried is kept."""
        base = self.prefix or Completion(
            group=self.prompt.group, member=self.number, ids=b"", logprobs=b"", spans=()
        )
        return replace(
            base,
            ids=ids,
            logprobs=logprobs,
            spans=tuple(self.spans),
            engine=engine,
            finish=finish,
        )


def members(work: Work, *, max_length: int, vocabulary: int) -> list[Member]:
    """The members to do; raises Refused where the prompt can never be answered.

    `max_length` bounds prompt and completion together, in tokens; `vocabulary` is the number of
    ids, so that a wrong one is refused here and does not end the engine.
    """
    prompt = work.prompt
    tokens = len(prompt.ids) // 4
    if tokens == 0:
        raise Refused("prompt_empty", f"group {prompt.group} has no prompt tokens")
    if tokens >= max_length:
        raise Refused(
            "prompt_too_long",
            f"group {prompt.group} has {tokens} prompt tokens, the context holds {max_length}"
            " and the answer needs at least one",
        )
    _check_ids(prompt.group, prompt.ids, vocabulary)
    _check_sampling(prompt.group, prompt.sampling)
    for prefix in work.prefixes.values():
        _check_prefix(prefix, vocabulary)
    return [Member(prompt, number, work.prefixes.get(number)) for number in work.todo]


def _check_ids(group: str, raw: bytes, vocabulary: int) -> None:
    ids = array("i", raw)
    if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
        raise Refused(
            "token_unknown",
            f"group {group} has ids in {min(ids)}..{max(ids)}, the model knows 0..{vocabulary - 1}",
        )


def _check_prefix(prefix: Completion, vocabulary: int) -> None:
    _check_ids(prefix.group, prefix.ids, vocabulary)
    counts = (prefix.tokens, len(prefix.logprobs) // 4, sum(s.tokens for s in prefix.spans))
    if len(set(counts)) > 1:
        raise Refused(
            "logprob_length",
            f"the prefix of group {prefix.group} member {prefix.member} has {counts[0]} ids,"
            f" {counts[1]} log-probs, and spans of {counts[2]} tokens",
        )


def _check_sampling(group: str, sampling: Sampling) -> None:
    if (sampling.top_p, sampling.top_k, sampling.min_p) != (1.0, 0, 0.0):
        raise Refused(
            "sampling_unsupported",
            f"group {group} asks for top_p, top_k or min_p; this engine samples from the whole"
            " distribution",
        )
    if sampling.max_tokens < 1:
        raise Refused("sampling_unsupported", f"group {group} has max_tokens {sampling.max_tokens}")
