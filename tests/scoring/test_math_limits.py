"""No input of the math scorer hangs or takes memory, by itself or among others in a pool."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import psutil
import pytest

from pipeline.protocols import Answer
from pipeline.verdicts import Fault
from services.scoring.pool import Pool
from services.scoring.scorers.math.scorer import EQUAL, UNEQUAL, Math

HANGS = {
    "H1": r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}",
    "H2": r"The last three digits of \(2003^{2002^{2001}}\) are: \[Answer: 009\]",
    "H2 boxed": r"\boxed{2003^{2002^{2001}}}",
    "H3": r"\boxed{10^{(5^{5^{5^{5^{5}}} \cdot \log_{10}(5)} - 4)}}",
}
FORMULAS = {
    "tower": "2^{" * 30 + "2" + "}" * 30,
    "tower of e": "e^{e^{e^{e^{e}}}}",
    "factorial of a factorial": "((9!)!)!",
    "many factorials": "*".join(["5000!"] * 200),
    "factorials of fractions": "+".join(["(9/7)!"] * 100),
    "factorial of a power of e": "(e^5)!",
    "factorials of variables": "*".join(["(x+1/7)!"] * 6),
    "binomials": r"\binom{5000}{2500}" * 30,
    "digits": "9" * 4500,
    "exponent digits": "x^{" + "9" * 4000 + "}",
    "great common divisor": r"\gcd(" + ",".join(["7^{9000}"] * 50) + ")",
    "nested brackets": "(" * 2400 + "1" + ")" * 2400,
    "nested braces": "{" * 2400 + "1" + "}" * 2400,
    "nested roots": r"\sqrt{" * 600 + "2" + "}" * 600,
    "nested functions": r"\sin " * 900 + "x",
    "nested sets": r"\{" * 1200 + r"\}" * 1200,
    "bars": "|" * 2400 + "x" + "|" * 2400,
    "minus": "-" * 4990 + "1",
    "roots": "+".join(rf"\sqrt{{{n}}}" for n in range(2, 400)),
    "list of roots": ", ".join(rf"\sqrt{{{n}}}" for n in range(2, 66)),
    "signs": r"\pm" * 1000 + "1",
    "polynomial power": "(x+1)^{9999}",
    "relations": "x=" * 2000 + "1",
    "field": r"\mathbb{R} 5",
    "rows": r"1 & 2 \\" * 400,
    "letters": "a" * 5000,
    "hyperbolic": r"\sinh(10^{5})",
}
TEXTS = {
    "open boxes": r"\boxed{" * 100_000,
    "boxes": r"\boxed{42}" * 50_000,
    "a guess": r"\boxed{1} or " * 50_000 + r"\boxed{2}",
    "braces": "{" * 1_000_000,
    "a phrase": "the same again and again, " * 40_000,
    "thinking": "<think>" * 100_000,
    "answers": "answer" * 150_000,
    "final answers": "final answer is " * 60_000,
    "tags": "<answer>" * 100_000,
    "spaces": "\\boxed" + " " * 1_000_000,
    "a long box": r"\boxed{" + "9" * 1_000_000 + "}",
}
LIMIT_SECONDS = 2.0
FORMULA_SECONDS, TEXT_SECONDS = 2.0, 5.0
"""Of this process, on a slow machine; most take a thousandth of it."""


def asked(text: str, gold: str) -> Answer:
    return Answer(text=text, prompt="", reference=gold, finish="stop")


@pytest.fixture(scope="module")
def math() -> Math:
    return Math(unboxed="marked")


@pytest.mark.parametrize("reference", ["42", r"\sqrt{2}+\pi", "x+1"])
@pytest.mark.parametrize("name", FORMULAS)
def test_C046_a_formula_is_not_worked_out_beyond_its_limits(
    math: Math, name: str, reference: str
) -> None:
    started = time.process_time()
    graded = math.compare(reference=reference, formula=FORMULAS[name])
    assert not graded.right
    assert time.process_time() - started < FORMULA_SECONDS, graded


@pytest.mark.parametrize("name", ["tower", "factorial of a factorial", "digits", "roots"])
def test_what_is_too_large_to_work_out_is_right_where_it_is_written_alike(
    math: Math, name: str
) -> None:
    formula = FORMULAS[name]
    assert math.compare(reference=formula, formula=f" {formula} ").right
    assert not math.compare(reference=formula, formula=f"{formula}+1").right


@pytest.mark.parametrize("name", TEXTS)
def test_C049_a_text_of_megabytes_is_read_in_one_pass(math: Math, name: str) -> None:
    started = time.process_time()
    assert math.grade(asked(TEXTS[name], "7")).right is False
    assert time.process_time() - started < TEXT_SECONDS


def test_C046_no_formula_takes_memory() -> None:
    """In a process of its own, whose data may grow by 64 MiB."""
    code = (
        "import resource\n"
        "from test_math_limits import FORMULAS, Math\n"
        "math = Math()\n"
        "import psutil\n"
        "used = psutil.Process().memory_info().data\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))\n"
        "for formula in FORMULAS.values():\n"
        "    math.compare(reference='42', formula=formula)\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == "done\n", done.stderr[-500:]


def test_C044_C046_C048_C049_what_hangs_elsewhere_ends_in_time_and_all_else_is_graded() -> None:
    """The hanging inputs, one of 200,000 characters, and the twenty pairs, on two workers."""
    right = [(gold, answer, 1.0) for gold, answer in EQUAL]
    wrong = [(gold, answer, 0.0) for gold, answer in UNEQUAL]
    normal = [(asked(rf"\boxed{{{answer}}}", gold), r) for gold, answer, r in (*right, *wrong)]

    async def outcome(pool: Pool, answer: Answer) -> float | str:
        try:
            return (await pool.grade(0, answer)).reward
        except Fault as fault:
            return fault.reason

    async def body() -> list[float | str]:
        pool = Pool(["math"], workers=2, timeout_seconds=LIMIT_SECONDS, memory_bytes=1 << 30)
        await pool.start()
        try:
            long = asked("the same again and again, " * 8000, "42")
            hanging = [outcome(pool, asked(text, "42")) for text in HANGS.values()]
            good = [outcome(pool, answer) for answer, _ in normal]
            limit = LIMIT_SECONDS * (len(hanging) + 1)
            return await asyncio.wait_for(
                asyncio.gather(*hanging, outcome(pool, long), *good), limit
            )
        finally:
            await pool.close()

    before = set(psutil.Process().children(recursive=True))
    graded = asyncio.run(body())
    assert set(psutil.Process().children(recursive=True)) <= before, "a process is left"
    hanging = len(HANGS) + 1
    assert graded[:hanging] == [0.0] * hanging
    assert graded[hanging:] == [reward for _, reward in normal]
