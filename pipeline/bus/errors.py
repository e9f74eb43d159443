"""What goes wrong between a process and the server; the user's faults are ConfigError."""

from __future__ import annotations

from pipeline.errors import SluiceError


class Unreachable(SluiceError):
    """The server did not answer within the bounded retries; the message names it, masked."""


class MemoryFull(SluiceError):
    """The server refused a write before it began, for want of memory."""


class TooLarge(SluiceError):
    """One message is larger than a script may carry; nothing was sent."""


class Unannounced(SluiceError):
    """A version above the newest: the server was put back, and nobody has told it again yet."""
