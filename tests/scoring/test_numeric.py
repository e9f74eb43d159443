"""`numeric`: one number, read whole and exactly, within a tolerance that is exact as well."""

from __future__ import annotations

import time
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from asked import listed, told
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.plugins import build

WHY_NOT = (
    "wrong", "no_final_answer", "several_answers", "not_understood", "too_large", "no_value",
)  # fmt: skip


RIGHT = r"""
== 42
42 | 42.0 | 42.000 | +42 | 042 | **42** | `42` | 42. | Answer: 42 | Answer: **42**.
**Answer:** 42 | The answer is 42. | #### 42 | The answer is 42, as required. | \boxed{42}
$\boxed{42}$ | \(42\) | $42$ | $$42$$ | \boxed{\text{42}} | \fbox{42} | <answer>42</answer>
4.2e1 | 420e-1 | x = 42 | $x = 42$ | = 42 | x \approx 42 | about 42 | 84/2 | \frac{84}{2}
\dfrac{84}{2} | <think>41</think> 42 | 41, no. The answer is 42 | Answer: 41. Answer: 42
\boxed{41}, no: \boxed{42} | 42, | Answer:\n42 | ## Final Answer\n\n42 | Answer: 42\nfor 6 * 7 is 42
== -5
-5 | - 5 | -5.0 | $-5$ | Answer: -5 | -10/2
== 1234
1,234 | 1,234.0 | 1{,}234 | 1,\!234 | 1\,234
== 1234567.5
1,234,567.5 | 1234567.5 | 1.2345675e6 | 1.2345675 \times 10^{6}
== 0.0015
1.5e-3 | 1.5E-03 | 1.5*10^(-3) | 1.5 x 10^{-3} | 1.5 \cdot 10^{-3} | .0015 | 15/10000
== 1000
10^3 | 10^{3} | 1e3 | 1,000 | 1e+3
== 1/3
1/3 | 2/6 | \frac{1}{3} | \frac13 | 3/9
== 1.5
1 1/2 | 1\frac{1}{2} | 3/2 | 1.50 | 150% | 150 percent | 150\%
== -1.5
-1 1/2 | -1\frac12 | -150%
== 1e400
1e400 | 10^400 | 1.0e400 | 10e399
== 0
0 | -0 | 0.0 | 0e5 | 0%
"""
WRONG = r"""
== 42
43 | -42 | 4.2 | 420 | 42.0000000000001 | 42e1 | 1e400 | nan | inf | Infinity | -inf | forty-two
0x2A | 0b101010 | 052e | ٤٢ | 4² | 42² | 42 or 43 | 41, 42 | 42, 43 | 42 and 43 | 42-43 | 40-44
42 to 43 | 42 ± 1 | 4 2 | ±42 | +-42 | --42 | (42) | <42 | >42 | ≥ 42 | not 42 | 42! | 42? | 6*7
6·7 | 41+1 | 42/1/1 | 84/2/1 | 1/0 | 0/0 | 42% | 42 apples | 42 million | 42k | 42K | 42m | $42
42 dozen | 42° | 42i | 42x | 42\pi | 42π | 42e | e42 | 42_0 | 4_2 | 42.0.0 | #### 42 million
#### 42 \times 10^3 | We see 42 … so 42 | So it is 42 | 42 is it | Answer: not 42
Answer: 42 or 43 | Answer: 42. Or 43? | Answer: 42 Answer: 43 | \boxed{41} or \boxed{42}
\boxed{42} or 43 | \boxed{42} \boxed{43} | \boxed{42 | <answer>42 | \boxed{} | <think>42
<think>\boxed{42} | x = 41, y = 42 | Maybe the answer is 42 | If the answer is 42, then
\frac{42}{1}3 | 4\frac{2}{1} | \frac{42} | #### 41 or 42 | #### 42, 43 | ⁴² | ① | 42\n43 | 42\n\nok
== 1234
1,23,4 | 12,34 | 1,2345 | 1.234 | 1 234 | 1'234 | 1_234 | 1234,0 | 01,234 | 1,234,000 | 1,,234
,1234
== 123
1,23 | 0,123 | 12,3 | 123,000
== 5.5
5½ | 5 1/2 or so | 5 and 1/2 | 51/2 | 5,5
== 0.5
½ | 0,5 | 50 | 50%% | 50 percentage points | %50 | half
== 8
2^3 | 2**3 | sqrt(64) | \sqrt{64} | 8^1 | 8!
== 1e5
1e5.5 | 1e4 | 1e-5 | 10^4 | 10^5.0 | 10-5 | 1e
== 1e10000
1e10001 | 1e999999999 | 1e-999999999 | 10^99999999999999999999
== 1/3
0.333 | 0.3333333333333333 | 3 | 1/3/1 | 1/30 | -1/3 | 13
"""
MINUS, DASH, SPACE = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{NARROW NO-BREAK SPACE}"


def pairs(rows: str) -> list[tuple[str, str]]:
    """Each reference with each of the texts below it."""
    blocks = (block.partition("\n") for block in rows.split("== ")[1:])
    return [(reference, text) for reference, _, texts in blocks for text in listed(texts)]


@pytest.mark.parametrize(("reference", "text"), pairs(RIGHT))
def test_a_number_is_right_however_people_write_it(reference: str, text: str) -> None:
    assert told("numeric", text, reference) == (1.0, "right")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (42, "42"),
        (42.0, "42"),
        ("$42$", "42"),
        (0.1 + 0.2, "0.30000000000000004"),
        (2**80 + 1, f"{2**80 + 1:,}"),
        (-5, f"{MINUS}5"),
        (-5, f"{DASH}5"),
        (1234, f"1{SPACE}234"),
        (1500, "1.5 \N{MULTIPLICATION SIGN} 10^3"),
        (42, "\N{FULLWIDTH DIGIT FOUR}\N{FULLWIDTH DIGIT TWO}"),
        (42, "#### 42\n" + "x" * 480),
        (42, "#### 42 " + "x" * 480),
        (42, " 42\n"),
    ],
)
def test_C055_references_of_other_types_and_characters_of_other_keyboards(
    reference: Any, text: str
) -> None:
    assert told("numeric", text, reference) == (1.0, "right")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        *pairs(WRONG),
        ("42", ""),
        ("42", f"{MINUS}42"),
        ("42", "1" * 2000),
        ("42", "42" + "0" * 5000),
        ("42", "42 " * 100_000),
        ("0.5", "1\N{FRACTION SLASH}2"),
        ("1e10000", "9" * 900),
        (0.1 + 0.2, "0.3"),
    ],
)
def test_C053_what_is_another_number_or_not_one_number_is_worth_0(
    reference: Any, text: str
) -> None:
    started = time.perf_counter()
    reward, why = told("numeric", text, reference)
    assert reward == 0.0
    assert why in WHY_NOT
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize(
    ("options", "reference", "text", "reward"),
    [
        ({"absolute": 0.3}, 0, "0.3", 1.0),
        ({"absolute": 0.3}, 0, "0.30000000000000001", 0.0),
        ({"absolute": 0.1}, 0.2, "0.3", 1.0),
        ({"absolute": 0.1}, 0.2, "0.1", 1.0),
        ({"absolute": 0.1}, 0.2, "0.09999999999999999999", 0.0),
        ({"relative": 0.01}, 100, "101", 1.0),
        ({"relative": 0.01}, 100, "99", 1.0),
        ({"relative": 0.01}, 100, "101.00000000000000000001", 0.0),
        ({"relative": 0.01}, -100, "-101", 1.0),
        ({"relative": 0.01}, -100, "100", 0.0),
        ({"relative": 0.5}, 0, "0.0000001", 0.0),
        ({"relative": 0.01, "absolute": 0.5}, 10, "10.5", 1.0),
        ({"relative": 0.1, "absolute": 0.5}, 10, "11", 1.0),
        ({"relative": 0.1, "absolute": 0.5}, 10, "11.5", 0.0),
        ({"relative": 1e-9}, "1e400", "1.000000001e400", 1.0),
        ({"relative": 1e-9}, "1e400", "1.0000000011e400", 0.0),
        ({"absolute": 1e300}, 0, "nan", 0.0),
        ({"relative": 0.001}, "1/3", "0.3333", 1.0),
        ({"relative": 0.001}, 3.14159, "3.14159...", 1.0),
        ({"percent": "value"}, 50, "50%", 0.0),
        ({"percent": "unit"}, 50, "50%", 1.0),
        ({"percent": "unit"}, 0.5, "50%", 0.0),
        ({"percent": "either"}, 0.5, "50%", 1.0),
        ({"percent": "either"}, 50, "50%", 1.0),
        ({"percent": "either"}, "50%", "0.5%", 0.0),
        ({"percent": "either"}, "50%", "50", 1.0),
        ({}, "50%", "0.5", 1.0),
        ({}, "50%", "50", 0.0),
        ({"units": ["$", "km"]}, 42, "$42", 1.0),
        ({"units": ["$", "km"]}, -42, "-$42", 1.0),
        ({"units": ["$", "km"]}, 42, r"\$42", 1.0),
        ({"units": ["$", "km"]}, 42, r"$\$42$", 1.0),
        ({"units": ["$", "km"]}, 42, r"42\text{ km}", 1.0),
        ({"units": ["$", "km"]}, 42, "42km.", 1.0),
        ({"units": ["$", "km"]}, "42 km", "42", 1.0),
        ({"units": ["m"]}, 42, "42 mm", 0.0),
        ({"units": ["m"]}, 42, "42 m^2", 0.0),
        ({"units": ["m"]}, 42, "42 m²", 0.0),
        ({"units": ["m²", "m"]}, 42, "42 m²", 1.0),
        ({"units": ["apples"]}, 42, "The answer is 42 apples.", 1.0),
        ({"units": ["apples"]}, 42, "Answer: 42 apples and 3 pears", 0.0),
        ({"extract": ""}, 42, "42", 1.0),
        ({"extract": ""}, 42, "Answer: 42", 0.0),
        ({"extract": r"total of (\S+)"}, 42, "a total of 41, a total of 42", 1.0),
        ({"extract": r"total of (\S+)"}, 42, "a total of 42, a total of 41", 0.0),
        ({"extract": r"total of (\S+)"}, 42, "<think>total of 42</think>", 0.0),
        ({"extract": r"total of (\S+)"}, 42, "42", 0.0),
    ],
)
def test_tolerances_percent_units_and_places_are_as_they_are_written(
    options: dict[str, Any], reference: Any, text: str, reward: float
) -> None:
    assert told({"use": "numeric", **options}, text, reference)[0] == reward


@pytest.mark.parametrize(
    "reference",
    [None, True, "", "x", "nan", "1_000", [42], {"n": 42}, "42 km", "4 or 5", "1e999999999", "1/0"],
)
def test_a_reference_that_is_no_number_is_a_fault_and_no_zero(reference: Any) -> None:
    with pytest.raises(ValueError, match="the reference is no number"):
        told("numeric", "42", reference)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"relative": 1.0}, "scoring.scorers.relative = 1.0: Expected `float` < 1.0"),
        ({"relative": -0.1}, "scoring.scorers.relative = -0.1: Expected `float` >= 0.0"),
        ({"absolute": float("inf")}, "scoring.scorers.absolute = inf: Expected `float` <= 1e+300"),
        ({"absolute": float("nan")}, "scoring.scorers.absolute = nan: Expected `float`"),
        ({"units": "km"}, "scoring.scorers.units = 'km': Expected `array`, got `str`"),
        ({"percent": "no"}, "scoring.scorers.percent = 'no': Invalid enum value"),
    ],
)
def test_a_wrong_option_is_refused_at_the_start(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SCORERS, {"use": "numeric", **options}, at="scoring.scorers")
    assert str(caught.value).startswith(line)


def known(rng: Random) -> Decimal:
    digits = rng.randrange(1, 10 ** rng.choice([1, 3, 6, 18]))
    return Decimal(rng.choice([1, -1]) * digits).scaleb(rng.randint(-6, 4))


def written(value: Decimal, rng: Random) -> str:
    """The number in one of its forms."""
    plain = format(value, "f")
    forms = [plain, f"{value:,f}", f"{value:e}", str(Fraction(value)), f"{value * 100:f}%"]
    if "." in plain:
        forms.append(plain + "0" * rng.randint(1, 4))
    coefficient, _, power = f"{value:e}".lower().partition("e")
    forms.append(rf"{coefficient} \times 10^{{{int(power)}}}")
    text = rng.choice(forms)
    return text.replace("-", "\N{MINUS SIGN}", 1) if rng.random() < 0.2 else text


def near(value: Decimal, rng: Random) -> Decimal:
    """Another number that looks much alike: its sign, a digit, its exponent."""
    sign, digits, exponent = value.as_tuple()
    place = rng.randrange(len(digits))
    other = (digits[place] + rng.randint(1, 9)) % 10
    changed = (*digits[:place], other, *digits[place + 1 :])
    assert isinstance(exponent, int)
    return rng.choice(
        [-value, Decimal((sign, changed, exponent)), value.scaleb(rng.choice([-2, -1, 1, 3]))]
    )


PLACES = (
    "{}",
    "Answer: {}",
    "So the answer is {}.",
    r"\boxed{{{}}}",
    "<answer>{}</answer>",
    "#### {}",
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**62))
def test_rewritings_are_right_and_near_misses_wrong(seed: int) -> None:
    rng = Random(seed)
    value = known(rng)
    reference = format(value, "f")
    text = rng.choice(PLACES).format(written(value, rng))
    assert told("numeric", text, reference)[0] == 1.0, (reference, text)
    miss = rng.choice(PLACES).format(written(near(value, rng), rng))
    assert told("numeric", miss, reference)[0] == 0.0, (reference, miss)


@settings(max_examples=100, deadline=None)
@given(st.text("0123456789.,-+eE/%^ x*_½²()", max_size=12))
def test_whatever_is_read_is_what_python_would_read_or_nothing(text: str) -> None:
    """Where Python's own reader gives a finite number, and no separator is at stake."""
    try:
        value = Decimal(text.strip())
    except ArithmeticError:
        return
    plain = "_" not in text and value.is_finite() and abs(value.adjusted()) < 400
    if plain and text.isascii():
        assert told("numeric", text, format(value, "f"))[0] == 1.0, text
