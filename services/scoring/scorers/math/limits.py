"""How much a formula may cost, and the two ways in which reading or working one out ends early.

All of it is counted, never timed: the same formula has the same verdict on every machine. With
these limits the costliest formula takes well under a second.
"""

from __future__ import annotations

CHARACTERS = 5_000
"""Of a formula: a box that holds more is not read."""

NESTING = 40
"""Brackets, fractions, roots and functions within each other."""

ELEMENTS = 64
"""Of a list, a set, a tuple or a row of a matrix."""

DIGITS = 4_000
"""Of one number as it is written."""

BITS = 1 << 16
"""Of a numerator and its denominator together: about 20,000 digits, room for 5000!."""

WORK_BITS = 1 << 22
"""Of all the results on the way to one number together."""

LARGEST_FACTORIAL = 5_000

GAMMAS, GAMMA_DIGITS = 6, 200
"""Factorials and binomials of what is no whole number, in one formula, and to how many digits: they
are the costliest."""

MAGNITUDE = 1 << 10
"""Powers of two up to the largest, and down to the smallest, value that is no exact fraction."""


class NotUnderstood(Exception):
    """It is no formula that is read here whole and in one way only; says where it ended."""


class TooLarge(Exception):
    """It is a formula, and to work it out would cost more than is spent on one."""


class Undefined(Exception):
    """It has no value: a division by zero, or the like."""


class Purse:
    """What is left of the work for one number, and between which powers of two it went on."""

    def __init__(self) -> None:
        self._bits, self._gammas, self.spread = WORK_BITS, GAMMAS, 0

    def spend(self, bits: int) -> None:
        """Raises TooLarge for a result of too many bits, or for one too many."""
        self._bits -= bits
        if bits > BITS or self._bits < 0:
            raise TooLarge(f"a number of {bits} bits")

    def spend_gamma(self, digits: int) -> None:
        """Raises TooLarge for one too many, or to too many digits."""
        self._gammas -= 1
        if self._gammas < 0 or digits > GAMMA_DIGITS:
            raise TooLarge("too many factorials")

    def see(self, magnitude: int) -> None:
        """Raises TooLarge for a value out of range."""
        self.spread = max(self.spread, abs(magnitude))
        if magnitude > MAGNITUDE:
            raise TooLarge(f"a number of {magnitude} bits")
