"""Cargo that is too large for a script: cut into pieces under keys of their own, and read back.

A script is told which pieces its cargo refers to. Where one is missing it says so before its first
write, and only then do they travel; so a delivery that nobody wants, or a repeat, sends none. Until
a script has stored the reference a piece expires by itself. When pieces go: lua/_group.lua.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.bus.errors import MemoryFull, TooLarge
from pipeline.bus.scripts import Arg, Scripts
from pipeline.codec import Cargo, decode, decode_cargo, encode
from pipeline.errors import DecodeError, SluiceError
from pipeline.messages import Blob, Completion, Score

PIECE_BYTES = 1 << 20
MOST_PIECES = 64
"""So 64 MiB, or 2 KiB for each token of a member of 32K: its id, its log-prob, a kept set of 256
ids, and two bytes for each of 8 experts in 58 layers take 1,964."""

UNCLAIMED_SECONDS = 120
"""How long pieces wait for their script; well above what sending the most of them may take."""

_TRIES = 3
# One round trip carries at most so many pieces, lest they fill the socket's buffers.
_AT_ONCE = 8
_MISSING = b"missing"


class Load(NamedTuple):
    """What a script stores of a message: all of it, or a reference and what that refers to."""

    stored: bytes
    blob: Blob | None = None
    payload: bytes = b""

    @property
    def args(self) -> list[Arg]:
        """As the scripts read it: what is stored, and the name and number of its pieces, or ''."""
        return [self.stored, f"{self.blob.name} {self.blob.pieces}" if self.blob else ""]


class Act(NamedTuple):
    """A script's arguments, with the load in their midst."""

    head: Sequence[Arg]
    load: Load
    tail: Sequence[Arg] = ()

    @property
    def args(self) -> list[Arg]:
        """All of them, in order."""
        return [*self.head, *self.load.args, *self.tail]


class Blobs:
    """Sends and reads cargo of any size. What fits into one piece costs no more than itself."""

    def __init__(self, scripts: Scripts, piece_bytes: int = PIECE_BYTES) -> None:
        self._scripts, self._piece_bytes = scripts, piece_bytes

    def load(self, message: Completion | Score, at: str, what: str) -> Load:
        """The message for the field `at` ("GROUP:FIELD"); raises TooLarge, with `what` it is."""
        payload, most = encode(message), MOST_PIECES * self._piece_bytes
        if len(payload) <= self._piece_bytes:
            return Load(payload)
        if len(payload) > most:
            raise TooLarge(
                f"{what} has {len(payload)} bytes: it may have {most} at most; "
                "lower max_tokens, or keep fewer ids (top_k, top_p, min_p)"
            )
        digest = _digest(payload)
        number = -(-len(payload) // self._piece_bytes)
        # The name tells the bytes apart as well, so pieces of one name never differ.
        blob = Blob(name=f"{at}:{digest}", pieces=number, digest=digest)
        return Load(encode(blob), blob, payload)

    def send(self, name: str, acts: Sequence[Act]) -> list[bytes]:
        """The script once an act, all in one round trip; again for those whose pieces it lacks."""
        replies = self._scripts.call_many(name, [act.args for act in acts])
        return [
            self._with_pieces(name, act) if reply == _MISSING else reply
            for act, reply in zip(acts, replies, strict=True)
        ]

    def decode(self, kind: type[Cargo], payload: bytes) -> Cargo:
        """The message that was stored, read from its pieces where it is a reference.

        Raises DecodeError, also where a piece is gone or is not what was sent.
        """
        found = decode_cargo(kind, payload)
        return decode(kind, self._read(found)) if isinstance(found, Blob) else found

    def _with_pieces(self, name: str, act: Act) -> bytes:
        """Pieces of a former attempt can expire between two steps of this one, hence the loop."""
        blob = act.load.blob
        assert blob, "only the pieces of a blob can be missing"
        for _ in range(_TRIES):
            self._write(blob, act.load.payload)
            reply: bytes = self._scripts.call(name, *act.args)
            if reply != _MISSING:
                return reply
        raise SluiceError(f"pieces of {blob.name} do not stay on the server")

    def _write(self, blob: Blob, payload: bytes) -> None:
        """Set if absent: a copy that arrives late must not make a piece expire that is in use."""
        size, keys = self._piece_bytes, self._keys(blob)
        for first in range(0, len(keys), _AT_ONCE):
            pieces = [
                (keys[i], payload[i * size : (i + 1) * size])
                for i in range(first, min(first + _AT_ONCE, len(keys)))
            ]
            try:
                self._scripts.write(
                    *(("SET", *piece, "NX", "EX", UNCLAIMED_SECONDS) for piece in pieces)
                )
            except MemoryFull:
                # Beyond maxmemory only a script may write, and what was admitted may finish.
                self._scripts.call_many("put", [[*piece, UNCLAIMED_SECONDS] for piece in pieces])

    def _read(self, blob: Blob) -> bytes:
        keys, pieces = self._keys(blob), []
        for first in range(0, len(keys), _AT_ONCE):
            pieces += self._scripts.read(*(("GET", key) for key in keys[first : first + _AT_ONCE]))
        if lost := pieces.count(None):
            raise DecodeError(f"blob_missing: {lost} of {len(keys)} pieces of {blob.name} are gone")
        payload = b"".join(pieces)
        if _digest(payload) != blob.digest:
            raise DecodeError(f"blob_damaged: {blob.name} is not what was sent")
        return payload

    def _keys(self, blob: Blob) -> list[str]:
        return [self._scripts.keys.piece(blob.name, i) for i in range(blob.pieces)]


def _digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
