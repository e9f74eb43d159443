"""Units of measure: what each is a multiple of, and which of them measure the same.

A word that is not known here ("apples") is a unit of its own, which equals itself alone.
"""

from __future__ import annotations

import re
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
    "dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9,
    "trillion": 10**12,
}  # fmt: skip
"""Words behind a number that belong to it and are no unit."""

_SENTENCE = (
    "or and not no if except is are when where for to than but approximately about mod only other "
    "either neither nor maybe perhaps possibly all with without the a an of equals plus minus "
    "times true false yes none undefined below above under over less fewer more negative zero "
    "base squared cubed factorial gross score choose power root half halves third thirds quarter "
    "quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth "
    "ninths tenth tenths hundredth hundredths thousandth thousandths wrong incorrect remainder "
    "mods modulo"
)
NO_UNITS = frozenset(_SENTENCE.split())
"""Words that make a sentence of what they stand in."""

_LETTERS = "mg ms nm um mi ml mL mA kN kW kJ kPa Pa Hz Rs"
LETTERS = frozenset(_LETTERS.split())

_WRITTEN = """
    1 m: m meter metre | 1/1000 m: mm millimeter millimetre | 1/100 m: cm centimeter centimetre
    1/1000000000 m: nm nanometer | 1/1000000 m: um micrometer micron
    1/10 m: dm | 1000 m: km kilometer kilometre | 127/5000 m: in inch inches
    381/1250 m: ft foot feet | 1143/1250 m: yd yard | 201168/125 m: mi mile
    1 kg: kg kilogram | 1/1000 kg: g gram | 1/1000000 kg: mg milligram
    45359237/100000000 kg: lb pound | 45359237/1600000000 kg: oz ounce
    1 s: s sec second | 1/1000 s: ms millisecond | 60 s: min minute | 3600 s: h hr hour
    86400 s: day | 604800 s: week | 1 year: yr year
    1/1000 m3: l L liter litre | 1/1000000 m3: ml mL milliliter millilitre
    1397/3125 m s-1: mph | 5/18 m s-1: kph kmh
    1 kg m s-2: N newton | 1000 kg m s-2: kN | 1 kg m-1 s-2: Pa pascal | 1000 kg m-1 s-2: kPa
    1 kg m2 s-2: J joule | 1000 kg m2 s-2: kJ | 1 kg m2 s-3: W watt | 1000 kg m2 s-3: kW
    1 A: A amp ampere | 1/1000 A: mA | 1 A s: C coulomb | 1 kg m2 s-3 A-1: V volt | 1 K: K kelvin
    1 s-1: Hz hertz | 1000 s-1: kHz | 1000000 s-1: MHz | 1000000000 s-1: GHz | 1 mol: mol mole
    1 degree: degree deg ° | 1 : radian rad unit
    1 dollar: dollar USD usd buck | 1/100 dollar: cent ¢ | 1 euro: euro EUR
    1 rupee: rupee Rs INR | 1 pound_sterling: GBP
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
    found = re.findall(r"([A-Za-z_]+)(-?\d*)", written)
    return tuple(sorted((name, int(power or 1)) for name, power in found))


_UNITS = _table()


def is_unit(word: str) -> bool:
    """Whether it is known as one."""
    return word in _UNITS or _singular(word) in _UNITS


def may_be_letters(word: str) -> bool:
    """Whether it is a product of variables as well: 3mg, 2nm."""
    return word in LETTERS


def unit(word: str) -> Unit:
    """The unit of that name, singular or plural; one of its own where it is not known."""
    name = _singular(word)
    return _UNITS.get(word) or _UNITS.get(name) or Unit(Fraction(1), ((name, 1),))


def _singular(word: str) -> str:
    """Short names tell capitals apart, words do not."""
    word = word.lower() if len(word) > 3 else word
    plural = len(word) > 2 and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if plural and word not in _UNITS else word
