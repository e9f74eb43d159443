"""Answers with parts within parts, and signs that only look different, for the same tests.

An answer is a kind and canonical parts, as in `math_writings`, whose kinds are among these. A near
miss changes one part somewhere within: a sign, a digit, an exponent, a bracket, an order or a unit.
"""

# ruff: noqa: RUF001 - signs that look alike are told apart here
from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import math_writings as plain
from math_writings import Known, enclosed, nudged, number, shuffled, space, whole, written_number

WIDE = str.maketrans("0123456789,.()+-", "０１２３４５６７８９，．（）＋－")
RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
BASES = {2: "two", 3: "three", 5: "five", 7: "seven", 8: "eight", 9: "nine"}
LETTERS = ("x", "y", "a", "k", r"\theta")


class Kind(NamedTuple):
    """How one of a kind is made, written and missed."""

    make: Callable[[Random], Any]
    write: Callable[[Any, Random], str]
    miss: Callable[[Any, Random], Known]


def known(rng: Random) -> Known:
    """Any answer."""
    if rng.random() < 0.3:
        return plain.known(rng)
    kind = rng.choice([*KINDS])
    return Known(kind, KINDS[kind].make(rng))


def near(answer: Known, rng: Random) -> Known:
    """One that is like it and is another."""
    if answer.kind not in KINDS:
        return plain.near(answer, rng)
    while True:
        other = KINDS[answer.kind].miss(answer.parts, rng)
        if other != answer:
            return other


def write(answer: Known, rng: Random) -> str:
    """One of the ways to write it."""
    if answer.kind not in KINDS:
        return plain.write(answer, rng)
    return KINDS[answer.kind].write(answer.parts, rng)


def _points(rng: Random) -> frozenset[tuple[Fraction, ...]]:
    size = rng.randint(2, 3)
    found = {tuple(number(rng) for _ in range(size)) for _ in range(rng.randint(2, 3))}
    return frozenset(found) if len(found) > 1 else _points(rng)


def _write_points(points: Any, rng: Random) -> str:
    texts = [_write_point(point, rng) for point in shuffled(points, rng)]
    listed = ", ".join(texts[:-1]) + rng.choice([", ", r" \text{ and } "]) + texts[-1]
    return rng.choice([listed, enclosed(", ".join(texts), (r"\{", r"\}"), rng)])


def _write_point(point: Any, rng: Random) -> str:
    inside = f",{space(rng)}".join(written_number(value, rng) for value in point)
    return enclosed(inside, ("(", ")"), rng)


def _miss_points(points: Any, rng: Random) -> Known:
    one, *others = shuffled(points, rng)
    if len(others) > 1 and rng.random() < 0.2:
        return Known("points", frozenset(others))
    changed = rng.choice([one[::-1], _one_changed(one, rng)])
    return Known("points", frozenset([changed, *others]))


def _one_changed(values: Any, rng: Random) -> tuple[Any, ...]:
    place = rng.randrange(len(values))
    return tuple(
        (nudged(value, rng) if value else Fraction(1)) if n == place else value
        for n, value in enumerate(values)
    )


def _gaps(rng: Random) -> tuple[tuple[Fraction, bool, Fraction, bool], ...]:
    """Intervals that do not touch, in order."""
    ends = sorted({number(rng) for _ in range(8)})[: rng.choice([4, 6])]
    pairs = zip(ends[::2], ends[1::2], strict=False)
    found = tuple((low, rng.random() < 0.5, high, rng.random() < 0.5) for low, high in pairs)
    return found if len(found) > 1 else _gaps(rng)


def _write_gaps(parts: Any, rng: Random) -> str:
    if rng.random() < 0.3:
        return rng.choice([r" \text{ or } ", " or "]).join(_chain(part, rng) for part in parts)
    texts = [_write_gap(part, rng) for part in rng.sample(parts, len(parts))]
    front = rng.choice(["", "", r"x \in "])
    return front + rng.choice([r"\cup ", r" \cup ", "∪"]).join(texts)


def _chain(part: Any, rng: Random) -> str:
    low, left, high, right = part
    ends = written_number(low, rng), written_number(high, rng)
    at_most = rng.choice([r" \le ", r" \leq ", r" \leqslant ", " ≤ ", "<="])
    below = rng.choice([" < ", r" \lt ", "<"])
    return f"{ends[0]}{at_most if left else below}x{at_most if right else below}{ends[1]}"


def _write_gap(part: Any, rng: Random) -> str:
    low, left, high, right = part
    inside = f"{written_number(low, rng)},{space(rng)}{written_number(high, rng)}"
    return enclosed(inside, ("[" if left else "(", "]" if right else ")"), rng)


def _miss_gaps(parts: Any, rng: Random) -> Known:
    place = rng.randrange(len(parts))
    low, left, high, right = parts[place]
    step = Fraction(1, 10**8)
    changed = rng.choice(
        [
            (low, not left, high, right),
            (low, left, high, not right),
            (low - step, left, high, right),
            (low, left, high + step, right),
        ]
    )
    fewer = tuple(part for n, part in enumerate(parts) if n != place)
    many = (*parts[:place], changed, *parts[place + 1 :])
    ordered = all(one[2] < then[0] for one, then in pairwise(many))
    return Known("gaps", many if ordered and rng.random() < 0.8 else fewer)


def _write_family(parts: Any, rng: Random) -> str:
    """A set of sets, in any order of both."""
    texts = [
        enclosed(",".join(written_number(v, rng) for v in shuffled(one, rng)), (r"\{", r"\}"), rng)
        for one in rng.sample(sorted(map(sorted, parts)), len(parts))
    ]
    return enclosed(f",{space(rng)}".join(texts), (r"\{", r"\}"), rng)


def _family(rng: Random) -> frozenset[frozenset[Fraction]]:
    made = {frozenset(number(rng) for _ in range(rng.randint(1, 3))) for _ in range(3)}
    return frozenset(made) if len(made) > 1 else _family(rng)


def _miss_family(parts: Any, rng: Random) -> Known:
    first, *others = rng.sample(sorted(map(sorted, parts)), len(parts))
    changed = frozenset(_one_changed(first, rng))
    if len(others) > 1 and rng.random() < 0.3:  # one member in another of the sets
        moved = [
            frozenset(others[0]) | {first[0]},
            frozenset(first[1:]),
            *map(frozenset, others[1:]),
        ]
        return Known("family", frozenset(one for one in moved if one))
    return Known("family", frozenset([changed, *map(frozenset, others)]))


def _scientific(rng: Random) -> tuple[Fraction, int]:
    digits = rng.choice([rng.randint(1, 9) * 1000, rng.randint(1001, 9999)])
    return Fraction(rng.choice([-1, 1]) * digits, 1000), rng.choice([-12, -7, -3, 3, 5, 8, 23])


def _write_scientific(parts: Any, rng: Random) -> str:
    front, power = parts
    text = f"{float(front):.3f}" if front.denominator > 1 or rng.random() < 0.3 else str(front)
    times = rng.choice([r"\times ", r" \times ", r"\cdot ", " × ", "*", "·"])
    forms = [f"{text}{times}10^{{{power}}}", f"{text}{times}10{str(power).translate(RAISED)}"]
    if "." in text:
        forms += [f"{text}e{power}", f"{text}E{power}", f"{text}e{power:+03}"]
    return rng.choice(forms)


def _miss_scientific(parts: Any, rng: Random) -> Known:
    front, power = parts
    other = rng.choice([power + 1, power - 1, -power])
    digit = front + rng.choice([-1, 1]) * Fraction(1, 1000)
    return Known("scientific", rng.choice([(front, other), (-front, power), (digit, power)]))


def _write_complex(parts: Any, rng: Random) -> str:
    real, factor = parts
    letter = rng.choice(["i", r"\mathrm{i}", " i"])
    size = written_number(abs(factor), rng)
    if factor.denominator > 1:
        size = rf"\frac{{{abs(factor.numerator)}}}{{{factor.denominator}}}"
    if abs(factor) == 1:
        size = ""
    term, sign = size + letter, "-" if factor < 0 else "+"
    if rng.random() < 0.4:
        tail = f"{'-' if real < 0 else '+'}{space(rng)}{written_number(abs(real), rng)}"
        return f"{'-' if factor < 0 else ''}{term}{tail}"
    return f"{written_number(real, rng)}{space(rng)}{sign}{space(rng)}{term}"


def _miss_pair(kind: str) -> Callable[[Any, Random], Known]:
    def miss(parts: Any, rng: Random) -> Known:
        one, other = parts
        return Known(
            kind,
            rng.choice(
                [
                    (other, one),
                    (-one, other),
                    (one, -other),
                    (nudged(one, rng), other),
                    (one, nudged(other, rng)),
                ]
            ),
        )

    return miss


def _based(rng: Random) -> tuple[str, int]:
    base = rng.choice([*BASES])
    digits = [str(rng.randrange(base)) for _ in range(rng.randint(1, 6))]
    return str(rng.randint(1, base - 1)) + "".join(digits), base


def _write_based(parts: Any, rng: Random) -> str:
    digits, base = parts
    below = [f"_{base}", f"_{{{base}}}", f"_{{ {base} }}", rf"_{{\text{{{BASES[base]}}}}}"]
    written: str = rng.choice([digits, f"({digits})"])
    return written + rng.choice(below)


def _miss_based(parts: Any, rng: Random) -> Known:
    digits, base = parts
    place = rng.randrange(1, len(digits))
    other = str((int(digits[place]) + 1) % base)
    changed = digits[:place] + other + digits[place + 1 :]
    return rng.choice(
        [
            Known("based", (changed, base)),
            Known("based", (digits, rng.choice([b for b in BASES if b != base]))),
            Known("based", (digits + "0", base)),
            Known("number", Fraction(int(digits))),
            Known("number", Fraction(int(digits + str(base)))),
        ]
    )


def _money(rng: Random) -> Fraction:
    return Fraction(rng.randint(1, 99999), rng.choice([1, 20, 100]))


def _write_money(cents: Any, rng: Random) -> str:
    whole_, rest = divmod(cents, 1)
    text = f"{int(whole_)}.{int(rest * 100):02}" if rest or rng.random() < 0.3 else str(int(whole_))
    grouped = f"{int(whole_):,}" + (text[text.index(".") :] if "." in text else "")
    text = rng.choice([text, grouped, grouped.replace(",", "{,}")])
    forms = [rf"\${text}", rf"\$ {text}", rf"{text} \text{{ dollars}}", rf"\text{{\$}}{text}"]
    return rng.choice([*forms, rf"{cents * 100}\text{{ cents}}"])


def _miss_money(cents: Any, rng: Random) -> Known:
    other = cents + rng.choice([-1, 1]) * Fraction(1, 100)
    return rng.choice(
        [
            Known("money", cents * 100),
            Known("money", cents * 10),
            Known("money", other if other > 0 else cents * 2),
            Known("percent", cents),
            Known("number", cents),
        ]
    )


def _system(rng: Random) -> tuple[tuple[str, Fraction], ...]:
    letters = rng.choice([("x", "y"), ("a", "b", "c"), ("m", "n")])
    return tuple((letter, number(rng)) for letter in letters)


def _write_system(parts: Any, rng: Random) -> str:
    mixed = rng.sample(parts, len(parts))
    rows = [f"{letter}{rng.choice(['=', ' = '])}{written_number(v, rng)}" for letter, v in mixed]
    names = ",".join(letter for letter, _ in parts)
    aligned = r"\\ ".join(rows).replace("=", "&=")
    values = f",{space(rng)}".join(written_number(value, rng) for _, value in parts)
    return rng.choice(
        [
            ", ".join(rows),
            r" \text{ and } ".join(rows),
            rf"\begin{{cases}} {(chr(92) * 2).join(rows)} \end{{cases}}",
            rf"\left\{{\begin{{array}}{{l}} {(chr(92) * 2).join(rows)} \end{{array}}\right.",
            rf"\begin{{aligned}} {aligned} \end{{aligned}}",
            f"({names}) = ({values})",
        ]
    )


def _miss_system(parts: Any, rng: Random) -> Known:
    letters, values = zip(*parts, strict=True)
    changed = rng.choice([_one_changed(values, rng), values[::-1]])
    return Known("system", tuple(zip(letters, changed, strict=True)))


def _roots(rng: Random) -> tuple[int, tuple[int, ...]]:
    """A factor, and roots in order, each as often as it is one."""
    return whole(rng, most=4), tuple(sorted(rng.randint(-6, 6) for _ in range(rng.randint(2, 3))))


def _write_roots(parts: Any, rng: Random) -> str:
    """Factored, with brackets turned in pairs, or expanded."""
    front, roots = parts
    if rng.random() < 0.4:
        coefficients = [front]
        for root in roots:
            longer = [*coefficients, 0]
            coefficients = [c - root * b for c, b in zip(longer, [0, *coefficients], strict=True)]
        return plain.written_polynomial(tuple(coefficients), rng)
    factors = [_factor(root, rng) for root in rng.sample(roots, len(roots))]
    text = rng.choice(["", r"\cdot ", " "]).join(factors)
    sign = "-" if front < 0 else ""
    return sign + ("" if abs(front) == 1 else str(abs(front))) + text


def _factor(root: int, rng: Random) -> str:
    inside = f"x{space(rng)}{'-' if root > 0 else '+'}{space(rng)}{abs(root)}"
    return enclosed(inside, ("(", ")"), rng) if root else "(x)"


def _miss_roots(parts: Any, rng: Random) -> Known:
    front, roots = parts
    place = rng.randrange(len(roots))
    other = rng.choice([-roots[place], roots[place] + 1, roots[place] - 1])
    changed = tuple(sorted((*roots[:place], other, *roots[place + 1 :])))
    return Known("roots", rng.choice([(front, changed), (-front, roots), (front + 7, roots)]))


def _nested(rng: Random) -> tuple[int, Fraction, int, str]:
    """The root of a sum: n, and what is added to the root of another, over a letter."""
    return rng.choice([2, 3, 5]), abs(number(rng)) + 1, rng.choice([2, 3, 7]), rng.choice(LETTERS)


def _write_nested(parts: Any, rng: Random) -> str:
    order, added, under, letter = parts
    inner = rng.choice([rf"\sqrt{{{under}}}", rf"{under}^{{1/2}}", rf"{under}^{{\frac12}}"])
    total = [written_number(added, rng), inner]
    rng.shuffle(total)
    inside = rng.choice(["+", " + "]).join(total)
    forms = [rf"({inside})^{{1/{order}}}", rf"\left({inside}\right)^{{\frac{{1}}{{{order}}}}}"]
    forms.append(rf"\sqrt{{{inside}}}" if order == 2 else rf"\sqrt[{order}]{{{inside}}}")
    root = rng.choice(forms)
    return rng.choice([rf"\frac{{{root}}}{{{letter}}}", rf"{{{root} \over {letter}}}"])


def _miss_nested(parts: Any, rng: Random) -> Known:
    order, added, under, letter = parts
    other = rng.choice([one for one in LETTERS if one != letter])
    return rng.choice(
        [
            Known("nested", (order + 1, added, under, letter)),
            Known("nested", (order, added + Fraction(1, 10**6), under, letter)),
            Known("nested", (order, added, under + 1, letter)),
            Known("nested", (order, added, under, other)),
        ]
    )


def _write_wide(value: Any, rng: Random) -> str:
    """A number in the signs of other keyboards and data sets."""
    text = str(value.numerator)
    if value.denominator > 1:
        known_ = {
            Fraction(1, 2): "½",
            Fraction(1, 3): "⅓",
            Fraction(3, 4): "¾",
            Fraction(5, 8): "⅝",
        }
        text = known_.get(value, f"{value.numerator}/{value.denominator}")
    minus = rng.choice(["-", "−", "–"])
    return rng.choice([text, text.translate(WIDE), text.replace("-", minus)])


def _wide(rng: Random) -> Fraction:
    return rng.choice([number(rng), Fraction(1, 2), Fraction(1, 3), Fraction(3, 4), Fraction(5, 8)])


def _period(rng: Random) -> tuple[str, str, str]:
    """Digits before the point, behind it, and again and again."""
    period = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 4)))
    fixed = "".join(rng.choice("0123456789") for _ in range(rng.randint(0, 3)))
    return str(rng.randint(0, 20)), fixed, period if len({*period}) > 1 else rng.choice("12345678")


def _worth(parts: tuple[str, str, str]) -> Fraction:
    front, fixed, period = parts
    tail = Fraction(int(period), 10 ** len(period) - 1)
    return Fraction(int(front)) + (int(fixed or "0") + tail) * Fraction(1, 10 ** len(fixed))


def _write_period(parts: Any, rng: Random) -> str:
    front, fixed, period = parts
    worth = _worth(parts)
    longer = rng.choice([period, period * 2, period])
    forms = [
        rf"{front}.{fixed}\overline{{{longer}}}",
        rf"{front}.{fixed}{period}\overline{{{period}}}",
    ]
    forms += [rf"{front}.{fixed}{period * 3}{rng.choice(['...', chr(92) + 'ldots', '…'])}"]
    forms += [rf"\frac{{{worth.numerator}}}{{{worth.denominator}}}"]
    forms += [f"{front}.({period})"] if not fixed else []
    return rng.choice(forms)


def _miss_period(parts: Any, rng: Random) -> Known:
    front, fixed, period = parts
    last = str((int(period[-1]) + rng.randint(1, 8)) % 10)
    found = [
        Known("number", Fraction(f"{front}.{fixed}{period}")),
        Known("period", (front, fixed + "0", period)),
        Known("period", (str(int(front) + 1), fixed, period)),
        Known("period", (front, fixed, period[:-1] + last)),
    ]
    other = rng.choice([one for one in found if _value(one) != _worth(parts)])
    return other


def _value(answer: Known) -> Fraction:
    return Fraction(answer.parts) if answer.kind == "number" else _worth(answer.parts)


def _write_degrees(value: Any, rng: Random) -> str:
    signs = [r"^\circ", r"^{\circ}", "°", r"\degree", r"\text{ degrees}", r"^{ \circ }"]
    return written_number(value, rng) + rng.choice(signs)


def _miss_degrees(value: Any, rng: Random) -> Known:
    kinds = ["degrees", "degrees", "number", "percent"]
    kind = rng.choice(kinds)
    return Known(kind, nudged(value, rng) if kind == "degrees" else value)


KINDS: dict[str, Kind] = {
    "points": Kind(_points, _write_points, _miss_points),
    "gaps": Kind(_gaps, _write_gaps, _miss_gaps),
    "family": Kind(_family, _write_family, _miss_family),
    "scientific": Kind(_scientific, _write_scientific, _miss_scientific),
    "complex": Kind(lambda r: (number(r), number(r)), _write_complex, _miss_pair("complex")),
    "based": Kind(_based, _write_based, _miss_based),
    "money": Kind(_money, _write_money, _miss_money),
    "system": Kind(_system, _write_system, _miss_system),
    "roots": Kind(_roots, _write_roots, _miss_roots),
    "nested": Kind(_nested, _write_nested, _miss_nested),
    "wide": Kind(_wide, _write_wide, lambda value, r: Known("wide", nudged(value, r))),
    "period": Kind(_period, _write_period, _miss_period),
    "degrees": Kind(number, _write_degrees, _miss_degrees),
}
