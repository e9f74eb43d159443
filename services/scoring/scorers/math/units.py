"""Units of measure: what each is a multiple of, and which of them measure the same.

A word that is not known here ("apples") is a unit of its own, which equals itself alone.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """`factor` times the product of the bases, each to its power, in the order of their names."""

    factor: Fraction
    bases: tuple[tuple[str, int], ...]

    def times(self, other: Unit) -> Unit:
        """The product."""
        powers = Counter(dict(self.bases))
        for base, power in other.bases:
            powers[base] += power
        bases = tuple(sorted((base, power) for base, power in powers.items() if power))
        return Unit(self.factor * other.factor, bases)

    def to(self, power: int) -> Unit:
        """The power; `power` is small."""
        return Unit(self.factor**power, tuple((base, power * own) for base, own in self.bases))


NONE = Unit(Fraction(1), ())
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
"""Words in front of a unit."""

SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
"""Words behind a number that belong to it and are no unit."""

_SENTENCE = (
    "or and not no if except is are when where for to than but approximately about mod only other"
    " either neither nor maybe perhaps possibly all with without the a an of equals plus minus"
    " times true false yes none undefined"
)
NO_UNITS = frozenset(_SENTENCE.split())
"""Words that make a sentence of what they stand in."""

_WRITTEN = """
    1 m: m meter metre | 1/1000 m: mm millimeter millimetre | 1/100 m: cm centimeter centimetre
    1/10 m: dm | 1000 m: km kilometer kilometre | 127/5000 m: in inch inches
    381/1250 m: ft foot feet | 1143/1250 m: yd yard | 201168/125 m: mi mile
    1 kg: kg kilogram | 1/1000 kg: g gram | 1/1000000 kg: mg milligram
    45359237/100000000 kg: lb pound | 45359237/1600000000 kg: oz ounce
    1 s: s sec second | 1/1000 s: ms millisecond | 60 s: min minute | 3600 s: h hr hour
    86400 s: day | 604800 s: week | 1 year: yr year
    1/1000 m^3: l L liter litre | 1/1000000 m^3: ml mL milliliter millilitre
    1397/3125 m/s: mph | 5/18 m/s: kph kmh
    1 degree: degree deg ° | 1 : radian rad unit
    1 dollar: dollar USD usd buck | 1/100 dollar: cent ¢ | 1 euro: euro EUR
    1 am: am | 1 pm: pm
"""


def _table() -> dict[str, Unit]:
    known: dict[str, Unit] = {}
    for entry in _WRITTEN.replace("\n", "|").split("|"):
        measure, _, words = entry.partition(":")
        factor, _, base = measure.strip().partition(" ")
        if words:
            known |= dict.fromkeys(words.split(), Unit(Fraction(factor), _bases(base)))
    return known


def _bases(written: str) -> tuple[tuple[str, int], ...]:
    return {"": (), "m^3": (("m", 3),), "m/s": (("m", 1), ("s", -1))}.get(written, ((written, 1),))


_UNITS = _table()


def is_unit(word: str) -> bool:
    """Whether it is known as one."""
    return word in _UNITS or _singular(word) in _UNITS


def unit(word: str) -> Unit:
    """The unit of that name, singular or plural; one of its own where it is not known."""
    name = _singular(word)
    return _UNITS.get(word) or _UNITS.get(name) or Unit(Fraction(1), ((name, 1),))


def _singular(word: str) -> str:
    """Short names tell capitals apart, words do not."""
    word = word.lower() if len(word) > 3 else word
    plural = len(word) > 2 and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if plural and word not in _UNITS else word
