"""Work in hand, and how one waits for it. What the work is lives with each desk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from pipeline.bus.errors import TooLarge
from pipeline.bus.scripts import Arg
from pipeline.codec import encode
from pipeline.errors import Gone
from pipeline.messages import Completion, Message, Prompt, Span, Work

W = TypeVar("W")
R = TypeVar("R")
POLL_SECONDS = 0.02
MAX_CARGO_BYTES = 1 << 20


class Lease(Struct, Generic[W], frozen=True):
    """A ticket in hand and its work. It lives while its owner's beat does.

    `entry` is the ticket's id; `strikes` how many owners died with it; `member` is None for a
    whole group.
    """

    entry: str
    group: str
    work: W
    strikes: int = 0
    member: int | None = None


class Answerable(Struct, frozen=True):
    """A completion to be scored, and the prompt that it answers."""

    prompt: Prompt
    completion: Completion


class Taken(Struct, frozen=True):
    """What an engine got. `flip`: new prompts need fresher weights than it runs; `unproven`: its
    version is not confirmed yet; `quarantined`: it gets nothing any more."""

    status: Literal["ok", "flip", "unproven", "quarantined"]
    leases: list[Lease[Work]]


def poll(once: Callable[[], R], is_done: Callable[[R], bool], wait: float) -> R:
    """Repeat `once` every 20 ms until it is done or `wait` seconds are over; the last reply."""
    deadline = time.monotonic() + wait
    while True:
        reply = once()
        left = deadline - time.monotonic()
        if is_done(reply) or left <= 0:
            return reply
        time.sleep(min(POLL_SECONDS, left))


def cargo(message: Message, what: str) -> bytes:
    """The message encoded; raises TooLarge, naming it, before anything is sent."""
    payload = encode(message)
    if len(payload) > MAX_CARGO_BYTES:
        raise TooLarge(
            f"{what} has {len(payload)} bytes: a message may have {MAX_CARGO_BYTES} at most; "
            "lower max_tokens or the prompt's length"
        )
    return payload


def span_args(spans: Sequence[Span]) -> list[Arg]:
    """Spans as the scripts read them: version, tokens, boot of each."""
    return [arg for span in spans for arg in (span.version, span.tokens, span.boot)]


def unless_gone(status: bytes, boot: str) -> str:
    """The status as text; raises Gone where the server says so."""
    if status == b"gone":
        raise Gone(f"boot {boot} was declared dead: drop all work and start under a new boot")
    return status.decode()
