"""Mathematical equality: right pairs, the limits that stand around it, and what is no answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.protocols import Answer
from pipeline.verdicts import Fault
from services.scoring.pool import Pool
from services.scoring.scorers.math import EQUAL, UNEQUAL, Math, last_box

HANGS = {
    "H1": r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}",
    "H2": r"The last three digits of \(2003^{2002^{2001}}\) are: \boxed{2003^{2002^{2001}}}",
    "H3": r"\boxed{10^{(5^{5^{5^{5^{5}}} \cdot \log_{10}(5)} - 4)}}",
}
LIMIT_SECONDS = 2.0


@pytest.fixture(scope="module")
def math() -> Math:
    return Math()


def asked(text: str, gold: str) -> Answer:
    return Answer(text=text, prompt="", reference=gold, finish="stop")


@pytest.mark.parametrize(
    ("case", "gold", "text", "reward"),
    [
        ("M09", r"\pm 2021", r"\boxed{2021}", 0.0),
        ("M17", r"\begin{pmatrix}-\frac{7}{4}&-2\\4&\frac{1}{4}\\\end{pmatrix}",
         r"\boxed{\begin{pmatrix}-\frac{7}{4}&-2\\4&\frac{1}{4}\end{pmatrix}}", 1.0),
        ("M23", "840", r"so \boxed{840}., let me explain. **Final Answer** \boxed{840}", 1.0),
        ("M30 turned", "0 < x < 12.5", r"\boxed{(0, 12.5)}", 1.0),
        ("M38", "[2,5)", r"The domain is \boxed{[2,5)}", 1.0),
        ("M53", "42", r"\fbox{42}", 1.0),
        ("M66", "42", "", 0.0),
        ("M68", "42", r"It could be \boxed{41} or \boxed{42} or \boxed{43}", 0.0),
        ("M69", "42", r"Mark your solution with \boxed ", 0.0),
        ("M70", "42", "We see 42 in step 2, then 17 at the end, no box", 0.0),
        ("K01", "0.0000001", r"\boxed{0.0000002}", 0.0),
        ("C053b", "42", r"<think> … \boxed{42}", 0.0),
        ("C053b", "42", r"<think> \boxed{42} </think> So it is", 0.0),
        ("C053", "42", r"<think> \boxed{41} </think> So it is \boxed{42}", 1.0),
        ("cut", "42", r"\boxed{42", 0.0),
        ("cut", "42", r"\boxed{42} and \boxed{4", 0.0),
        ("a number", 42, r"\boxed{42}", 1.0),
    ],
)  # fmt: skip
def test_C050_pairs_have_the_verdict_that_a_reader_would_give(
    math: Math, case: str, gold: str, text: str, reward: float
) -> None:
    assert math(asked(text, gold)).reward == reward, case


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{\frac{1}{3}}", r"\frac{1}{3}"),
        (r"\fbox{42}", "42"),
        (rf"\boxed{{{'1' * 150}}}{'x' * 480}", "1" * 150),
        (r"Mark it with \boxed ", None),
        (r"\boxed{", None),
        (r"\boxed{}", ""),
    ],
)
def test_C055_a_box_is_found_by_its_braces(text: str, found: str | None) -> None:
    assert last_box(text) == found


def test_C050_a_checker_that_calls_all_equal_or_all_unequal_starts_nowhere(tmp_path: Path) -> None:
    """A library of that name that is broken stands in for an installation that is."""
    (tmp_path / "math_verify.py").write_text(
        "LatexExtractionConfig = dict\ndef parse(text, **_): return [text]\n"
        "def verify(gold, answer, **_): return False\n"
    )
    code = (
        "from services.scoring.scorers.math import Math\n"
        "from pipeline.errors import SluiceError\n"
        "try: Math()\n"
        "except SluiceError as exc: print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is wrong: 42 and 42" in done.stdout, done.stderr


def test_a_reference_that_is_no_formula_is_a_fault_and_no_zero(math: Math) -> None:
    with pytest.raises(ValueError, match="the reference is no formula"):
        math(asked(r"\boxed{42}", " "))


def test_C044_C046_C048_C049_what_hangs_ends_in_time_and_all_else_is_graded() -> None:
    """Three that hang, one of 200,000 characters, and the twenty pairs, on two workers."""
    right = [(gold, answer, 1.0) for gold, answer in EQUAL]
    wrong = [(gold, answer, 0.0) for gold, answer in UNEQUAL]
    normal = [(asked(rf"\boxed{{{answer}}}", gold), r) for gold, answer, r in (*right, *wrong)]
    replaced: list[int] = []

    async def outcome(pool: Pool, answer: Answer) -> float | str:
        try:
            return (await pool.grade(0, answer)).reward
        except Fault as fault:
            return fault.reason

    async def body() -> tuple[list[float | str], ...]:
        pool = Pool(
            ["math"],
            workers=2,
            timeout_seconds=LIMIT_SECONDS,
            on_replaced=lambda: replaced.append(1),
            memory_bytes=1 << 30,
        )
        await pool.start()
        try:
            long = asked("the same again and again, " * 8000, "42")
            hanging = [outcome(pool, asked(text, "42")) for text in HANGS.values()]
            good = [outcome(pool, answer) for answer, _ in normal]
            started = asyncio.get_running_loop().time()
            graded = await asyncio.gather(*hanging, outcome(pool, long), *good)
            assert asyncio.get_running_loop().time() - started < 60
            return graded[:3], graded[3:4], graded[4:]
        finally:
            await pool.close()

    before = set(psutil.Process().children(recursive=True))
    hung, long, good = asyncio.run(body())
    assert set(psutil.Process().children(recursive=True)) <= before, "a process is left"
    assert good == [reward for _, reward in normal]
    assert long == [0.0]
    assert all(end in ("timeout", "raised", 0.0) for end in hung), hung
    assert hung.count("timeout") == len(replaced), "whoever hung was replaced"
    assert "timeout" in hung
