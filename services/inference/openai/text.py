"""The text of an answer as its tokens come: no piece of it ends within a character, and none holds
a part of what may be a stop string.

All pieces together are the text of all tokens. Pure; what a token's text is, `decode` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

BROKEN = "\ufffd"
"""What bytes are decoded to that are no character, or not yet."""


class Text:
    """Fed with token ids, it gives the text that is certain by now."""

    def __init__(self, decode: Callable[[bytes], str], stops: Sequence[str] = ()) -> None:
        """`decode` turns ids (int32, little-endian) into text; each of `stops` ends it."""
        self._decode, self._stops = decode, stops
        self._ids = b""
        self._before, self._start = 0, 0  # two places, in tokens, where a character ends
        self._known = 0  # characters from _before on that are certain
        self._whole = True  # nothing was left over by them
        self._held = ""  # of these, the last ones, which a stop string may begin with
        self.stopped_at: int | None = None
        """Tokens up to the one that completed a stop string."""

    @property
    def tokens(self) -> int:
        """How many were fed."""
        return len(self._ids) // 4

    def feed(self, ids: bytes, *, last: bool) -> str:
        """The text that these tokens make certain; all there is with the `last` of them."""
        assert self.stopped_at is None, "nothing follows a stop string"
        self._ids += ids
        self._held += self._decoded(last)
        if end := self._first_stop():
            self.stopped_at = self._tokens_for(end)
            said, self._held = self._cut_stop(end), ""
            return said
        self._forget_window()
        kept = 0 if last else max((_overlap(self._held, stop) for stop in self._stops), default=0)
        said, self._held = self._held[: len(self._held) - kept], self._held[-kept:] if kept else ""
        return said

    def _decoded(self, last: bool) -> str:
        """What is certain beyond what was; an unfinished character shows as broken ones."""
        window = self._window()
        certain = window if last else window.rstrip(BROKEN)
        new = certain[self._known :]
        self._known = max(self._known, len(certain))
        self._whole = certain == window
        return new

    def _window(self) -> str:
        return self._decode(self._ids[4 * self._before :])

    def _forget_window(self) -> None:
        """Where a character ends, another window may begin; the one before it stays for context,
        since some tokenizers write a token otherwise where it is the first."""
        if self._whole and self.tokens > self._start:
            self._before, self._start = self._start, self.tokens
            self._known = len(self._window())

    def _first_stop(self) -> int:
        """Where in what is held the first stop string ends, or 0."""
        ends = [self._held.find(stop) + len(stop) for stop in self._stops if stop in self._held]
        return min(ends, default=0)

    def _cut_stop(self, end: int) -> str:
        """What is held before the stop string that ends there; of several the longest."""
        return min((self._held[: end - len(s)] for s in self._ending(end)), key=len)

    def _ending(self, end: int) -> Iterator[str]:
        return (stop for stop in self._stops if self._held[:end].endswith(stop))

    def _tokens_for(self, end: int) -> int:
        """Tokens with which the text reaches this place in what is held."""
        text = self._window()[: self._known - len(self._held) + end]
        for tokens in range(self._before + 1, self.tokens):
            part = self._decode(self._ids[4 * self._before : 4 * tokens])
            if part.startswith(text):
                return tokens
        return self.tokens


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text a stop string may begin with."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
