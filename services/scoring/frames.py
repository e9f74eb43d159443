"""What the scoring process and its workers say to each other: frames over a socket.

A frame is its length (4 bytes, little-endian) and then JSON: references are JSON, and their whole
numbers know no 64 bits, which msgpack's do. Nothing here waits or starts anything.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from pipeline.messages import Teaching
from pipeline.protocols import Answer, Verdict
from pipeline.run import Spec
from pipeline.verdicts import Fault, Passing

F = TypeVar("F", bound=Struct)

HEADER_BYTES = 4


class Setup(Struct, frozen=True, kw_only=True):
    """A worker's first frame: its scorers, and the bytes of memory that it may ask for.

    `policy` is where the run's model comes from, for scorers that have one of their own. Of one
    that `is_async` the only scorer is, and it is asked for many answers at once.
    """

    specs: tuple[Spec, ...]
    memory_bytes: int
    policy: str = ""
    is_async: bool = False


class Ready(Struct, frozen=True, kw_only=True):
    """Its reply: every scorer was built, of these versions; or one was not, as a ConfigError's
    parts.

    `batches` is how many answers each may be given in one call; 0: one, and not as a list.
    `seconds` is what each says that an answer may take it; 0: it says nothing.
    """

    versions: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    where: str = ""
    rule: str = ""
    remedy: str = ""


class Job(Struct, frozen=True, array_like=True):
    """Answers for one scorer, by its number in the setup: one, but for a batched scorer.

    A `number` tells its reply from that to another. An async scorer's say how long each may take;
    no answer at all: nobody waits any more for the one of that number.
    """

    scorer: int
    answers: tuple[Answer, ...]
    number: int = 0
    seconds: float = 0.0


class Reply(Struct, frozen=True, array_like=True):
    """A verdict, or with a `fault` none: its reason, and its detail.

    One that is `passing` may be gone at the next try, after so many seconds if that was told.
    """

    reward: float = 0.0
    outcome: float = 0.0
    reason: str = ""
    teaching: Teaching | None = None
    fault: str = ""
    detail: str = ""
    passing: bool = False
    after: float | None = None


class Replies(Struct, frozen=True, array_like=True):
    """One for each answer of a job; or one for several of them: the call as a whole failed."""

    replies: Annotated[tuple[Reply, ...], Meta(min_length=1)]
    number: int = 0


def reply_of(found: Verdict | Fault) -> Reply:
    """A checked verdict, or a fault, as it travels."""
    if isinstance(found, Fault):
        passing = isinstance(found, Passing)
        after = found.after if isinstance(found, Passing) else None
        return Reply(fault=found.reason, detail=found.detail, passing=passing, after=after)
    assert found.outcome is not None, "a checked verdict has an outcome"
    return Reply(found.reward, found.outcome, found.reason, found.teaching)


def read_reply(reply: Reply) -> Verdict | Fault:
    """What travelled as the reply."""
    if reply.passing:
        return Passing(reply.detail, after=reply.after, reason=reply.fault)
    if reply.fault:
        return Fault(reply.fault, reply.detail)
    return Verdict(
        reward=reply.reward, outcome=reply.outcome, reason=reply.reason, teaching=reply.teaching
    )


def pack(frame: Struct) -> bytes:
    """The frame with its length in front."""
    payload = msgspec.json.encode(frame)
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


def length(header: bytes) -> int:
    """How many bytes follow the header."""
    return int.from_bytes(header, "little")


def unpack(payload: bytes, kind: type[F]) -> F:
    """The frame, its header cut off."""
    return msgspec.json.decode(payload, type=kind)
