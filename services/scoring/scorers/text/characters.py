"""Characters that look like others, or like nothing."""

from __future__ import annotations

import unicodedata

_WIDE = range(0xFF01, 0xFF5F)
_UNSEEN = (0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x00AD)
_FOLDED: dict[int, int | None] = {
    **{code: code - 0xFEE0 for code in _WIDE},
    **dict.fromkeys(_UNSEEN),
}
"""The wide letters, digits and signs that stand among Chinese are ASCII; what has no width goes."""
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\ufffc\ufffd")
"""Letters and symbols, by their category, that show nothing."""


def folded(text: str) -> str:
    """Composed (NFC), narrow, and without characters of no width; no digit becomes another."""
    return unicodedata.normalize("NFC", text).translate(_FOLDED)


def says_something(text: str) -> bool:
    """Whether there is a letter or a digit in it, or a symbol that is no ASCII, as for infinity.

    White space, punctuation, control characters and what has no width say nothing.
    """
    return any(_tells(character) for character in text)


def _tells(character: str) -> bool:
    kind = unicodedata.category(character)
    symbol = kind in ("Sm", "So") and not character.isascii()
    return (kind[0] in "LN" or symbol) and character not in _BLANK
