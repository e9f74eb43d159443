"""No input of the math scorer hangs or takes memory, by itself or among others in a pool."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import psutil
import pytest
from math_extremes import FORMULAS, TEXTS

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
LIMIT_SECONDS = 2.0
FORMULA_SECONDS, TEXT_SECONDS = 2.0, 5.0
"""Of this process, on a slow machine; most take a thousandth of it."""


def asked(text: str, gold: str) -> Answer:
    return Answer(text=text, prompt="", reference=gold, finish="stop")


@pytest.fixture(scope="module")
def math() -> Math:
    return Math(unboxed="marked")


@pytest.mark.long
@pytest.mark.parametrize("name", FORMULAS)
def test_C046_a_formula_is_not_worked_out_beyond_its_limits_whatever_it_stands_beside(
    math: Math, name: str
) -> None:
    formula = FORMULAS[name]
    for reference in (r"\sqrt{2}+\pi", "x+1", f"{formula}+0"):
        started = time.process_time()
        graded = math.compare(reference=reference, formula=formula)
        assert not graded.right or reference.startswith(formula)
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


def test_C046_no_formula_takes_time_or_memory() -> None:
    """In a process of its own, whose data may grow by 64 MiB; it tells the last that it began.

    Nor do long boxes that differ: of these nothing is kept.
    """
    code = (
        "import resource, time\n"
        "from math_extremes import FORMULAS\n"
        "from test_math_limits import FORMULA_SECONDS, Math\n"
        "math = Math()\n"
        "import psutil\n"
        "used = psutil.Process().memory_info().data\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))\n"
        "for name, formula in FORMULAS.items():\n"
        "    print(name, flush=True)\n"
        "    started = time.process_time()\n"
        "    assert not math.compare(reference='42', formula=formula).right\n"
        "    assert time.process_time() - started < FORMULA_SECONDS\n"
        "for number in range(99):\n"
        "    math.compare(reference='42', formula=str(number) + '+x' * 2490)\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.endswith("done\n"), done.stdout[-99:] + done.stderr[-500:]


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
