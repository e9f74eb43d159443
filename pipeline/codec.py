"""Bytes to messages and back, with one strict decoder for each kind of message."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from pipeline.errors import DecodeError
from pipeline.messages import Beat, Blob, Completion, Manifest, Message, Prompt, Score

M = TypeVar("M", Prompt, Completion, Score, Manifest, Beat)
Cargo = TypeVar("Cargo", Completion, Score)

_encoder = msgspec.msgpack.Encoder()
_decoders = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Prompt, Completion, Score, Manifest, Beat)
}
_cargo: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    Completion: msgspec.msgpack.Decoder(Completion | Blob),
    Score: msgspec.msgpack.Decoder(Score | Blob),
}
_tag = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def encode(message: Message) -> bytes:
    """The message as msgpack, its tag inside."""
    return _encoder.encode(message)


def decode(kind: type[M], payload: bytes) -> M:
    """The message of this kind; raises DecodeError that names both versions otherwise."""
    return cast(M, _decode(kind, _decoders[kind], payload))


def decode_cargo(kind: type[Cargo], payload: bytes) -> Cargo | Blob:
    """The message of this kind, or the blob that stands for it; raises DecodeError as `decode`."""
    return cast(Cargo | Blob, _decode(kind, _cargo[kind], payload))


def _decode(kind: type[Any], decoder: msgspec.msgpack.Decoder[Any], payload: bytes) -> Any:
    try:
        return decoder.decode(payload)
    except msgspec.MsgspecError as exc:
        expected = kind.__struct_config__.tag
        raise DecodeError(
            f"schema_mismatch: got {_found_tag(payload)}, this release reads {expected} ({exc})"
        ) from exc


def _found_tag(payload: bytes) -> str:
    try:
        return str(msgspec.msgpack.decode(_tag.decode(payload)["type"]))
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError):
        return f"{len(payload)} bytes without a tag"
