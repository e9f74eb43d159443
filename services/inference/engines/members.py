"""What every engine does alike: take a group's members apart, keep their spans, put them together.

Torch-free. How tokens are made is each engine's own affair.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from msgspec.structs import replace

from pipeline.errors import SluiceError
from pipeline.kept import LENGTH, fits
from pipeline.messages import Completion, Finish, Kept, Prompt, Sampling, Span, Work


class Refused(SluiceError):
    """A group that no engine of this kind can ever do; `reason` is what its dead letter says."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Trail:
    """The kept sets of a member, token by token: counts and ids, int32."""

    __slots__ = ("counts", "ids")

    def __init__(self, kept: Kept | None) -> None:
        self.counts = bytearray(kept.counts if kept else b"")
        self.ids = bytearray(kept.ids if kept else b"")

    def add(self, ids: bytes) -> None:
        """One token's set, ascending; empty for the whole vocabulary."""
        self.counts += (len(ids) // 4).to_bytes(4, "little")
        self.ids += ids

    def cut(self, tokens: int) -> None:
        """Forget the sets of the last tokens, one at least."""
        ids = sum(array("i", self.counts[-4 * tokens :]))
        del self.counts[-4 * tokens :]
        del self.ids[len(self.ids) - 4 * ids :]

    def kept(self) -> Kept:
        """As the wire has it."""
        return Kept(counts=bytes(self.counts), ids=bytes(self.ids))


class Member:
    """One member of a group inside an engine. Its tokens are the engine's to keep.

    `trail` is None where it draws from the whole vocabulary, and nothing is recorded.
    """

    __slots__ = ("number", "prefix", "prompt", "spans", "trail")

    def __init__(self, prompt: Prompt, number: int, prefix: Completion | None) -> None:
        self.prompt = prompt
        self.number = number
        self.prefix = prefix
        self.spans: list[Span] = list(prefix.spans) if prefix else []
        kept = prefix.kept if prefix else None
        self.trail = Trail(kept) if prompt.sampling.truncates else None

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

    def cut_back(self, version: int, boot: str) -> int:
        """Forget the tokens at the end that this version sampled on this boot; how many."""
        if not self.spans or (self.spans[-1].version, self.spans[-1].boot) != (version, boot):
            return 0
        tokens = self.spans.pop().tokens
        if self.trail:
            self.trail.cut(tokens)
        return tokens

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
            kept=self.trail.kept() if self.trail else base.kept,
        )


def members(work: Work, *, max_length: int, vocabulary: int) -> list[Member]:
    """The members to do; raises Refused where the prompt can never be answered.

    `max_length` bounds prompt and completion together, in tokens; `vocabulary` is the number of
    ids, so that a wrong one is refused here and does not end the engine.
    """
    prompt = work.prompt
    tokens = len(prompt.ids) // 4
    if prompt.error:
        reason, _, detail = prompt.error.partition(": ")
        raise Refused(reason, detail)
    if tokens == 0:
        raise Refused("prompt_empty", f"group {prompt.group} has no prompt tokens")
    if tokens >= max_length:
        raise Refused(
            "prompt_too_long",
            f"group {prompt.group} has {tokens} prompt tokens, the context holds {max_length}"
            " and the answer needs at least one",
        )
    _check_ids(f"group {prompt.group}", array("i", prompt.ids), vocabulary)
    _check_sampling(prompt.group, prompt.sampling)
    for prefix in work.prefixes.values():
        _check_prefix(prefix, vocabulary, prompt.sampling)
    return [Member(prompt, number, work.prefixes.get(number)) for number in work.todo]


def check_scored(ids: Sequence[int], *, max_length: int, vocabulary: int) -> None:
    """Raises Refused for ids of which an engine cannot tell the log-probs."""
    if not 2 <= len(ids) <= max_length:
        detail = f"the canary has {len(ids)} ids, and must have 2 to {max_length}, the context"
        raise Refused("canary_length", detail)
    _check_ids("the canary", ids, vocabulary)


def _check_ids(who: str, ids: Sequence[int], vocabulary: int) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
        raise Refused(
            "token_unknown",
            f"{who} has ids in {min(ids)}..{max(ids)}, the model knows 0..{vocabulary - 1}",
        )


def _check_prefix(prefix: Completion, vocabulary: int, sampling: Sampling) -> None:
    _check_ids(f"group {prefix.group}", array("i", prefix.ids), vocabulary)
    counts = (prefix.tokens, len(prefix.logprobs) // 4, sum(s.tokens for s in prefix.spans))
    if len(set(counts)) > 1:
        raise Refused(
            "logprob_length",
            f"the prefix of group {prefix.group} member {prefix.member} has {counts[0]} ids,"
            f" {counts[1]} log-probs, and spans of {counts[2]} tokens",
        )
    known = Kept(counts=b"", ids=b"") if prefix.kept is None else prefix.kept
    if sampling.truncates and not fits(known, prefix.tokens):
        raise Refused(
            LENGTH,
            f"the prefix of group {prefix.group} member {prefix.member} does not say from which"
            " ids each of its tokens was drawn",
        )


def _check_sampling(group: str, sampling: Sampling) -> None:
    """RUN.toml has these bounds; what came over the wire may not."""
    if not (
        0 <= sampling.temperature < math.inf
        and 0 < sampling.top_p <= 1
        and sampling.top_k >= 0
        and 0 <= sampling.min_p < 1
        and sampling.max_tokens >= 1
    ):
        raise Refused("sampling_unsupported", f"group {group} asks for {sampling}")


def share_of(slots: int) -> int:
    """Slots of an evaluation, beside those of an engine: a quarter as many."""
    return max(1, slots // 4)
