"""Answers of every kind, many ways to write each, and answers next to it that are wrong.

An answer is a kind and its canonical parts, so that two of them are the same if and only if they
are equal in Python; what the scorer makes of their writings is in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple


class Known(NamedTuple):
    """An answer: its kind, and parts that are canonical for that kind."""

    kind: str
    parts: Any


UNITS = {"cm": r"\text{ cm}", "m": r"\text{ m}", "kg": r"\text{ kg}", "s": r"\text{ s}"}
WORDS = ("east", "west", "yes", "no", "even", "odd", "isosceles")


def known(rng: Random) -> Known:
    """Any answer."""
    kind = rng.choice([*_MADE])
    return Known(kind, _MADE[kind](rng))


def near(answer: Known, rng: Random) -> Known:
    """One that is like it and is another: by sign, digit, exponent, bracket, order or unit."""
    while True:
        other = rng.choice(_NEAR[answer.kind])(answer, rng)
        if other != answer:
            return other


def write(answer: Known, rng: Random) -> str:
    """One of the ways to write it, with spaces and trimmings that mean nothing."""
    text = _WRITTEN[answer.kind](answer.parts, rng)
    around = rng.choice(["@", " @ ", "$@$", r"\(@\)", "@.", r"\displaystyle @", "@\n"])
    return around.replace("@", text)


def boxed(text: str, rng: Random) -> str:
    """As the last of a text's boxes."""
    return rng.choice([r"So it is \boxed{%s}.", r"\fbox{%s}", "First 7.\n\\[\\boxed{%s}\\]"]) % text


def whole(rng: Random, *, most: int = 99) -> int:
    return rng.choice([-1, 1]) * rng.randint(1, most)


def number(rng: Random) -> Fraction:
    if rng.random() < 0.4:
        return Fraction(whole(rng, most=rng.choice([9, 99, 10**6, 10**12])))
    return Fraction(whole(rng), rng.choice([2, 3, 4, 5, 7, 8, 10, 16, 25, 12, 100, 1000, 10**7]))


def _distinct(rng: Random, least: int = 2) -> tuple[Fraction, ...]:
    found = [number(rng) for _ in range(rng.randint(least, 4))]
    return tuple(dict.fromkeys(found)) if len({*found}) >= least else _distinct(rng, least)


def _interval(rng: Random) -> tuple[Fraction | None, bool, Fraction | None, bool]:
    low, high = sorted(_distinct(rng))[:2]
    which = rng.randint(0, 3)
    if which == 0:
        return None, False, high, rng.random() < 0.5
    if which == 1:
        return low, rng.random() < 0.5, None, False
    left = rng.random() < 0.5
    return low, left, high, rng.random() < 0.5 or not left


def _surd(rng: Random) -> tuple[Fraction, Fraction, int]:
    return Fraction(whole(rng, most=9)), number(rng), rng.choice([2, 3, 5, 6, 7, 10, 11])


def _polynomial(rng: Random) -> tuple[int, ...]:
    return (whole(rng, most=9), *(rng.randint(-9, 9) for _ in range(rng.randint(1, 3))))


def _matrix(rng: Random) -> tuple[tuple[Fraction, ...], ...]:
    columns = rng.randint(1, 3)
    return tuple(tuple(number(rng) for _ in range(columns)) for _ in range(rng.randint(2, 3)))


def _line(rng: Random) -> tuple[Fraction, ...]:
    """a x + b y + c = 0, with a made 1."""
    return tuple(Fraction(whole(rng, most=9)) for _ in range(2))


_MADE: dict[str, Callable[[Random], Any]] = {
    "number": number,
    "percent": number,
    "power": lambda rng: (rng.choice([2, 3, 10]), rng.choice([-9, -3, 5, 7, 20, 40])),
    "quantity": lambda rng: (number(rng), rng.choice([*UNITS]), rng.choice([1, 1, 2])),
    "point": lambda rng: tuple(number(rng) for _ in range(rng.randint(2, 4))),
    "set": lambda rng: frozenset(_distinct(rng)),
    "list": lambda rng: frozenset(_distinct(rng)),
    "interval": _interval,
    "surd": _surd,
    "polynomial": _polynomial,
    "matrix": _matrix,
    "line": _line,
    "text": lambda rng: rng.choice(WORDS),
    "ratio": lambda rng: (rng.randint(1, 20), rng.randint(1, 20)),
}


def space(rng: Random) -> str:
    return rng.choice(["", "", " ", r"\,", r"\; ", r"\ ", "  ", "~"])


def _written_whole(value: int, rng: Random, *, alone: bool) -> str:
    digits = str(abs(value))
    forms = [digits, digits, f"{digits}.0", f"{digits}.00", f"{{{digits}}}"]
    if alone:
        groups = f"{abs(value):,}"
        forms += [groups, groups.replace(",", "{,}"), groups.replace(",", r"\,"), "00" + digits]
        forms += [rf"\text{{{digits}}}"] if value > 0 else []
    return ("-" + space(rng) if value < 0 else "") + rng.choice(forms)


def written_number(value: Fraction, rng: Random, *, alone: bool = False) -> str:
    if value.denominator == 1:
        return _written_whole(value.numerator, rng, alone=alone)
    top, bottom, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    times = rng.choice([1, 1, 2, 3])
    over = f"{{{top * times}}}{space(rng)}{{{bottom * times}}}"
    forms = [rf"{sign}\{name}{over}" for name in ("frac", "dfrac", "tfrac")]
    forms += [rf"\frac{{{sign}{top}}}{{{bottom}}}", f"{sign}{top}/{bottom}"]
    if top < 10 and bottom < 10:
        forms += [rf"{sign}\frac{top}{bottom}", rf"{sign}\frac {top} {bottom}"]
    if top > bottom:
        ones, rest = divmod(top, bottom)
        forms.append(rf"{sign}{ones}\frac{{{rest}}}{{{bottom}}}")
    return rng.choice([*forms, *_decimals(value, rng)])


def _decimals(value: Fraction, rng: Random) -> list[str]:
    places = next((n for n in range(1, 10) if not (value * 10**n).denominator - 1), None)
    if places is None:
        return []
    ones, rest = divmod(abs(value) * 10**places, 10**places)
    text = f"{ones}.{int(rest):0{places}}" + "0" * rng.randint(0, 3)
    forms = [text, text] + ([text[1:]] if ones == 0 else [])
    return [("-" if value < 0 else "") + form for form in forms]


def _row(values: Any, rng: Random, between: str = ",") -> str:
    return f"{between}{space(rng)}".join(
        space(rng) + written_number(value, rng) for value in values
    )


def shuffled(values: Any, rng: Random) -> list[Any]:
    return rng.sample(sorted(values), len(values))


def enclosed(inside: str, brackets: tuple[str, str], rng: Random) -> str:
    opening, closing = brackets
    if rng.random() < 0.4:
        opening, closing = rf"\left{opening}", rf"\right{closing}"
    return f"{opening}{space(rng)}{inside}{space(rng)}{closing}"


def _written_list(values: Any, rng: Random) -> str:
    texts = [written_number(value, rng) for value in shuffled(values, rng)]
    last = rng.choice([", ", r" \text{ and } ", r", \text{and } ", " and "])
    return ", ".join(texts[:-1]) + last + texts[-1]


def _written_interval(parts: Any, rng: Random) -> str:
    low, left, high, right = parts
    ends = [_end(low, "-", rng), _end(high, rng.choice(["", "+"]), rng)]
    brackets = ("[" if left else "(", "]" if right else ")")
    plain = enclosed(f"{ends[0]},{space(rng)}{ends[1]}", brackets, rng)
    below, above = (rng.choice(["<", r"\lt "]), rng.choice([r"\le ", r"\leq ", "<="]))
    signs = (above if left else below, above if right else below)
    chain = ("" if low is None else f"{ends[0]} {signs[0]} ") + "x"
    chain += "" if high is None else f" {signs[1]} {ends[1]}"
    return rng.choice([plain, plain, chain, rf"x \in {plain}"])


def _end(value: Fraction | None, sign: str, rng: Random) -> str:
    return rf"{sign}\infty" if value is None else written_number(value, rng)


def _written_surd(parts: Any, rng: Random) -> str:
    """a + b sqrt(n)"""
    added, factor, under = parts
    top, bottom = abs(factor.numerator), factor.denominator
    root = rng.choice([rf"\sqrt{{{under}}}", rf"\sqrt {{{under}}}"])
    if under < 10:
        root = rng.choice([root, rf"\sqrt{under}"])
    forms = [rf"\frac{{{top}{root}}}{{{bottom}}}", rf"\frac{{{top}}}{{{bottom}}}{root}"]
    forms += [rf"\frac{{\sqrt{{{under * top**2}}}}}{{{bottom}}}"]
    forms += [rf"\frac{{{top * under}}}{{{bottom}\sqrt{{{under}}}}}"]
    term, sign = rng.choice(forms), "-" if factor < 0 else "+"
    first = written_number(added, rng)
    if sign == "+" and rng.random() < 0.5:
        return f"{term} {'-' if added < 0 else '+'} {written_number(abs(added), rng)}"
    return f"{first}{space(rng)}{sign}{space(rng)}{term}"


def written_polynomial(parts: Any, rng: Random) -> str:
    terms = [(value, power) for power, value in enumerate(reversed(parts)) if value]
    rng.shuffle(terms)
    text = "".join(_term(value, power, rng) for value, power in terms)
    return text.removeprefix("+")


def _term(value: int, power: int, rng: Random) -> str:
    sign = "-" if value < 0 else "+"
    letter = ["", "x", rng.choice(["x^2", "x^{2}", "xx"]), rng.choice(["x^3", "x^{3}"])][power]
    factor = "" if abs(value) == 1 and power else str(abs(value))
    times = rng.choice(["", " ", r"\cdot "]) if factor and letter else ""
    return f"{sign}{space(rng)}{factor}{times}{letter}{space(rng)}"


def _written_matrix(parts: Any, rng: Random) -> str:
    name = rng.choice(["pmatrix", "bmatrix"])
    rows = rng.choice([r"\\", r" \\ "]).join(_row(row, rng, between=" & ") for row in parts)
    return rf"\begin{{{name}}}{rows}{rng.choice(['', chr(92) * 2])}\end{{{name}}}"


def _written_line(parts: Any, rng: Random) -> str:
    """x + b y + c = 0, times anything."""
    times = whole(rng, most=4)
    x, y, c = (int(value * times) for value in (1, *parts))
    right = rng.choice([0, rng.randint(-5, 5)])
    terms = [t for t in ((x, "x"), (y, "y"), (c + right, "")) if t[0]]
    rng.shuffle(terms)
    left = "".join(f"{'-' if v < 0 else '+'}{abs(v)}{name}" for v, name in terms).removeprefix("+")
    sides = [left, str(right)]
    return rng.choice([" = ", "="]).join(sides if rng.random() < 0.7 else reversed(sides))


def _written_power(parts: Any, rng: Random) -> str:
    base, power = parts
    value = Fraction(base) ** power
    forms = [
        f"{base}^{{{power}}}",
        rf"{base} ^ {{{power}}}",
        rf"{base}\cdot {base}^{{{power - 1}}}",
    ]
    if power > 0:
        forms.append(str(value))
    else:
        forms += [rf"\frac{{1}}{{{base}^{{{-power}}}}}", f"1/{value.denominator}"]
    return rng.choice(forms)


def _written_quantity(parts: Any, rng: Random) -> str:
    value, unit, power = parts
    words = {"cm": "centimeters", "m": "meters", "kg": "kilograms", "s": "seconds"}
    forms = [
        UNITS[unit],
        rf"\,\mathrm{{{unit}}}",
        rf"\text{{ {words[unit]}}}",
        rf"~\text{{{unit}}}",
    ]
    ending = "" if power == 1 else rng.choice(["^2", "^{2}"])
    return written_number(value, rng) + rng.choice(forms) + ending


_WRITTEN: dict[str, Callable[[Any, Random], str]] = {
    "number": lambda parts, rng: written_number(parts, rng, alone=True),
    "percent": lambda parts, rng: written_number(parts, rng) + rng.choice([r"\%", "%", r" \%"]),
    "power": _written_power,
    "quantity": _written_quantity,
    "point": lambda parts, rng: enclosed(_row(parts, rng), ("(", ")"), rng),
    "set": lambda parts, rng: enclosed(_row(shuffled(parts, rng), rng), (r"\{", r"\}"), rng),
    "list": _written_list,
    "interval": _written_interval,
    "surd": _written_surd,
    "polynomial": written_polynomial,
    "matrix": _written_matrix,
    "line": _written_line,
    "text": lambda parts, rng: rng.choice([rf"\text{{{parts}}}", rf"\text{{{parts.title()}}}"]),
    "ratio": lambda parts, rng: rng.choice([":", " : ", r"\colon "]).join(map(str, parts)),
}


def nudged(value: Fraction, rng: Random) -> Fraction:
    """Another sign, another digit, one more, or a digit too many."""
    digit = Fraction(10) ** rng.choice([-8, -7, -3, -1, 0, 1, 2])
    return rng.choice(
        [
            -value,
            value + digit,
            value - digit,
            value * 10,
            value / 10,
            1 / value,
            value + Fraction(1, 7),
        ]
    )


def _some(parts: Any, rng: Random) -> Any:
    """One of several numbers is another."""
    place = rng.randrange(len(parts))
    return tuple(nudged(v, rng) if n == place and v else v for n, v in enumerate(parts))


def _one_off(answer: Known, rng: Random) -> Known:
    parts = tuple(answer.parts) if isinstance(answer.parts, frozenset) else answer.parts
    if isinstance(parts, Fraction):
        return Known(answer.kind, nudged(parts, rng))
    changed = _some(parts, rng)
    return Known(answer.kind, frozenset(changed) if answer.kind in ("set", "list") else changed)


def _order(answer: Known, rng: Random) -> Known:
    return Known(answer.kind, tuple(rng.sample(answer.parts, len(answer.parts))))


def _fewer(answer: Known, rng: Random) -> Known:
    if len(answer.parts) < 3:
        return Known("number", min(answer.parts))
    return Known(answer.kind, frozenset(sorted(answer.parts)[1:]))


def _as(kind: str) -> Callable[[Known, Random], Known]:
    """The same parts between other brackets."""
    return lambda answer, _: Known(kind, tuple(sorted(answer.parts)))


def _parallel(answer: Known, rng: Random) -> Known:
    slope, offset = answer.parts
    step = rng.choice([-1, 1])
    return Known("line", rng.choice([(slope + step, offset), (slope, offset + step)]))


def _closed(answer: Known, rng: Random) -> Known:
    low, left, high, right = answer.parts
    if rng.random() < 0.5:
        return Known("interval", (low, left != (low is not None), high, right))
    return Known("interval", (low, left, high, right != (high is not None)))


def _ends(answer: Known, rng: Random) -> Known:
    low, left, high, right = answer.parts
    step = Fraction(1, rng.choice([1, 2, 10**7]))
    if low is None or (high is not None and rng.random() < 0.5):
        return Known("interval", (low, left, high + step, right))
    return Known("interval", (low - step, left, high, right))


def _unit(answer: Known, rng: Random) -> Known:
    value, unit, power = answer.parts
    return rng.choice(
        [
            Known("quantity", (value, rng.choice([*UNITS]), power)),
            Known("quantity", (value, unit, 3 - power)),
            Known("quantity", (nudged(value, rng), unit, power)),
            Known("percent", value),
        ]
    )


def _coefficient(answer: Known, rng: Random) -> Known:
    parts = [*answer.parts]
    place = rng.randrange(len(parts))
    parts[place] = rng.choice([-parts[place], parts[place] + 1, parts[place] - 1])
    return Known(answer.kind, tuple(parts)) if parts[0] else answer


def _exponents(answer: Known, rng: Random) -> Known:
    if answer.kind == "polynomial":
        longer = (*answer.parts, 0)
        return Known(answer.kind, longer) if len(longer) < 5 else answer
    base, power = answer.parts
    return Known("power", (base, rng.choice([power + 1, power - 1, -power])))


def _under(answer: Known, rng: Random) -> Known:
    added, factor, under = answer.parts
    other = rng.choice([n for n in (2, 3, 5, 6, 7, 10, 11) if n != under])
    return rng.choice(
        [
            Known("surd", (-added, factor, under)),
            Known("surd", (added, -factor, under)),
            Known("surd", (added, factor, other)),
            Known("surd", (added, factor + Fraction(1, 10**7), under)),
            Known("number", added),
        ]
    )


def _transposed(answer: Known, rng: Random) -> Known:
    return Known("matrix", tuple(zip(*answer.parts, strict=True)))


def _entry(answer: Known, rng: Random) -> Known:
    rows = [*answer.parts]
    place = rng.randrange(len(rows))
    rows[place] = _some(rows[place], rng)
    return Known("matrix", tuple(rows))


def _word(answer: Known, rng: Random) -> Known:
    return Known("text", rng.choice(WORDS))


def _unreduced(answer: Known, rng: Random) -> Known:
    first, then = answer.parts
    return rng.choice([Known("ratio", (then, first)), Known("ratio", (first, then + 1))])


def _bare(answer: Known, rng: Random) -> Known:
    """50% without its sign, and 50 with one."""
    return Known("number" if answer.kind == "percent" else "percent", answer.parts)


_NEAR: dict[str, list[Callable[[Known, Random], Known]]] = {
    "number": [_one_off, _one_off, _bare],
    "percent": [_one_off, _bare],
    "power": [_exponents],
    "quantity": [_unit],
    "point": [_one_off, _order, _as("set")],
    "set": [_one_off, _fewer, _as("point")],
    "list": [_one_off, _fewer, _as("point")],
    "interval": [_closed, _ends],
    "surd": [_under],
    "polynomial": [_coefficient, _exponents],
    "matrix": [_transposed, _entry],
    "line": [_parallel],
    "text": [_word],
    "ratio": [_unreduced],
}
