"""A member in flight: its tokens so far, and which weights sampled them. † torch

A request is one attempt of vLLM's at a member; the next one goes on from the tokens of the last.
"""

from __future__ import annotations

from array import array

from pipeline.errors import SluiceError
from pipeline.messages import Completion, Finish
from pipeline.model.sampling import member_key
from services.inference.engines.members import Member
from services.inference.engines.vllm.events import Told


class Flight:
    """`closed` is the number of tokens that have their span, `start` of those before the request.

    `keys_of` is the version whose weights made its oldest keys.
    """

    def __init__(self, member: Member, max_length: int) -> None:
        prefix = member.prefix
        self.member = member
        self.ids = array("i", prefix.ids if prefix else b"")
        self.logprobs = array("f", prefix.logprobs if prefix else b"")
        self.limit = member.limit(max_length) - len(member.prompt.ids) // 4
        self.closed = self.start = len(self.ids)
        self.request, self.keys_of = "", -1
        self.finish: Finish | None = None
        self._counted: list[tuple[str, int]] = []

    @property
    def group(self) -> str:
        return self.member.prompt.group

    @property
    def is_spent(self) -> bool:
        """Whether a resumed prefix has all the tokens that it may have."""
        return len(self.ids) >= self.limit

    @property
    def context(self) -> list[int]:
        """What a request reads before it samples: the prompt and all tokens so far."""
        return [*array("i", self.member.prompt.ids), *self.ids]

    def seed(self) -> int:
        """Of the request's noise: from run seed, group, member and place, and of 63 bits.

        The place is in it, so that a member that goes on does not draw by the same noise again.
        """
        prompt = self.member.prompt
        group = prompt.noise or prompt.group
        return member_key(prompt.seed, f"{group}@{len(self.ids)}", self.member.number) >> 1 & _BITS

    def begin(self, request: str, version: int) -> None:
        """A request goes on from here, under this version."""
        self.request, self.keys_of = request, version
        self.start, self._counted = len(self.ids), []

    def take(self, told: Told, *, vocabulary: int) -> None:
        """Its next tokens. Raises SluiceError where they are not whole."""
        kept = len(told.kept) if self.member.trail else len(told.ids)
        if not len(told.ids) == len(told.logprobs) == kept:
            raise SluiceError(
                f"vLLM gave {len(told.ids)} tokens, {len(told.logprobs)} log-probs and"
                f" {len(told.kept)} kept sets of group {self.group} member {self.member.number}"
            )
        self.ids.extend(told.ids)
        greedy = self.member.prompt.sampling.temperature == 0
        self.logprobs.extend([0.0] * len(told.ids) if greedy else told.logprobs)
        if self.member.trail:
            for drawable in told.kept:
                ids = sorted(drawable) if len(drawable) < vocabulary else []
                self.member.trail.add(array("i", ids).tobytes())

    def close_span(self, version: int, boot: str) -> None:
        """What came since the last call, this version sampled."""
        tokens = len(self.ids) - self.closed
        self.member.ran(version, tokens, boot)
        if tokens:
            self._counted.append((str(version), tokens))
        self.closed = len(self.ids)

    def cut_back(self, version: int, boot: str) -> int:
        """Drop what this version sampled last; how many tokens."""
        self.close_span(version, boot)
        dropped = self.member.cut_back(version, boot)
        self.closed -= dropped
        del self.ids[self.closed :], self.logprobs[self.closed :]
        return dropped

    def reopen(self) -> None:
        """Not finished yet: whoever goes on with it ends it. One that stopped is as before its last
        token, since a prefix does not tell that it did."""
        stopped, self.finish = self.finish == "stop", None
        if not stopped:
            return
        last = self.member.spans.pop()
        self.member.ran(last.version, last.tokens - 1, last.boot)
        if self.member.trail:
            self.member.trail.cut(1)
        self.closed -= 1
        del self.ids[-1], self.logprobs[-1]

    def check(self, versions: tuple[tuple[str, int], ...]) -> None:
        """vLLM's own labels of a request's tokens are those that were counted here.

        Raises SluiceError: one of the two is wrong, and so may be spans that were saved.
        """
        counted = _joined(self._counted)
        if (told := _joined(list(versions))) != counted:
            raise SluiceError(
                f"spans of group {self.group} member {self.member.number}: counted {counted},"
                f" and vLLM says {told}"
            )

    def completion(self, boot: str) -> Completion:
        """All tokens so far."""
        return self.member.completion(
            self.ids.tobytes(), self.logprobs.tobytes(), engine=boot, finish=self.finish
        )


_BITS = (1 << 63) - 1


def _joined(runs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Neighbours of one version as one, and no empty ones."""
    joined: list[tuple[str, int]] = []
    for version, tokens in runs:
        if joined and joined[-1][0] == version:
            tokens += joined.pop()[1]
        if tokens:
            joined.append((version, tokens))
    return joined
