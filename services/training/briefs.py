"""What is known of a group without its cargo: all that a step is planned from. Torch-free.

Whoever reads the cargo makes the brief, and looks for flaws on the way; what becomes of the group
is in `considered`, where its cargo lies meanwhile in `cargo`.
"""

from __future__ import annotations

import hashlib

from msgspec import Struct

from pipeline.flaws import flaw
from pipeline.messages import Finish, Group, Member, Prompt, Span, Teaching
from pipeline.verdicts import teaching_flaw

SCORER_ERROR = "scorer_error"
DIGEST_BYTES = 8


class Told(Struct, frozen=True, kw_only=True):
    """A member: its completion's length, spans and masks, and what scorers made of it.

    `flaw` says why none of its tokens can be used, however fresh. `likeliest` is how many ids a
    teacher has named for each token; None: nothing was taught. `shadow` has the rewards of scorers
    that only watch, and `digest` is of its ids: answers that are the same have the same.
    """

    tokens: int
    spans: tuple[Span, ...]
    finish: Finish | None = None
    mask: tuple[tuple[int, int], ...] = ()
    reward: float | None = None
    outcome: float | None = None
    flaw: str | None = None
    likeliest: int | None = None
    shadow: dict[str, float] = {}
    digest: bytes = b""


class Brief(Struct, frozen=True, kw_only=True):
    """A group that is ready; `room` is how many tokens all of its members could have had.

    `digest` is of its prompt's ids.
    """

    group: str
    seq: int
    task: str
    start_step: int
    prompt_tokens: int
    room: int
    members: dict[int, Told]
    digest: bytes = b""


def brief(group: Group, vocabulary: int) -> Brief:
    """Of a group whose members are to be learnt from by a model that knows so many ids."""
    prompt = group.prompt
    return Brief(
        group=prompt.group,
        seq=prompt.seq,
        task=prompt.task,
        start_step=group.start_step,
        prompt_tokens=len(prompt.ids) // 4,
        room=prompt.members * prompt.sampling.max_tokens,
        members={m: _told(member, prompt, vocabulary) for m, member in group.members.items()},
        digest=_digest(prompt.ids),
    )


def width_of(teaching: Teaching) -> int:
    """How many of the likeliest ids it has for each token."""
    return len(teaching.top_ids) // max(1, len(teaching.logprobs))


def _told(member: Member, prompt: Prompt, vocabulary: int) -> Told:
    completion, score = member.completion, member.score
    teaching = score.teaching if score else None
    return Told(
        tokens=completion.tokens,
        spans=completion.spans,
        finish=completion.finish,
        mask=completion.mask,
        reward=score.reward if score else None,
        outcome=score.outcome if score else None,
        flaw=_flaw(member, prompt, vocabulary),
        likeliest=width_of(teaching) if teaching else None,
        shadow=score.shadow if score else {},
        digest=_digest(completion.ids),
    )


def _digest(ids: bytes) -> bytes:
    return hashlib.blake2b(ids, digest_size=DIGEST_BYTES).digest()


def _flaw(member: Member, prompt: Prompt, vocabulary: int) -> str | None:
    completion, score = member.completion, member.score
    teaching = score.teaching if score else None
    if teaching and teaching_flaw(teaching, tokens=completion.tokens, vocabulary=vocabulary):
        return SCORER_ERROR
    return flaw(completion, prompt, vocabulary)
