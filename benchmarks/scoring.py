"""What a grade of the scorer `math` costs, beside math-verify alone in the same run.

    python -m benchmarks.scoring [--repeats 5]

Two sets. `integers`: 1,000 answers to 125 questions, each the last line of a short derivation with
a whole number in a box, half of them right. `mixed`: the golden file of tests/scoring, which has
all kinds of answers. math-verify is used as its manual says: gold and completion are parsed by its
defaults, then verified. Each side has the whole completion, finds the answer itself, and begins
each pass with nothing cached of the formulas; a scorer starts anew, its start is not counted.

The sides take turns. A grade's cost is processor time of this one process, in the median over the
passes; `over_math_verify` is how many of ours go into one of theirs. `pooled_grades_per_second` is
the set `integers` by the clock through a pool of one worker, as the service has it. `wrong` counts
verdicts that are not what the golden file says. The last line is one JSON object; exit 1 where
`over_math_verify` is below 1.0 on a set or one of our verdicts is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import math_verify
import msgspec

from pipeline.protocols import Answer
from services.scoring.pool import Pool
from services.scoring.scorers.math.scorer import Math

BAR = 1.0
GOLDEN = Path(__file__).parents[1] / "tests/scoring/math_golden.jsonl"
QUESTIONS, MEMBERS, SEED = 125, 8, 7
ROUNDS_OF_OURS = 5
"""In one pass: they are short."""

Grade = Callable[[Answer], bool]


class Case(NamedTuple):
    """An answer, and whether it is right."""

    answer: Answer
    right: bool


class Pass(NamedTuple):
    """Grades a second of processor time, and how many were wrong."""

    per_second: float
    wrong: int


def integers() -> list[Case]:
    """The same ones every time."""
    rng = random.Random(SEED)
    cases = []
    for _ in range(QUESTIONS):
        first, second = rng.randint(2, 999), rng.randint(2, 999)
        for member in range(MEMBERS):
            given = first * second + (member % 2) * rng.choice([-10, -1, 1, 7, 100])
            text = (
                f"We multiply {first} by {second}. Since {second} = 100 - {100 - second}, the "
                f"product is $100 \\cdot {first} - {100 - second} \\cdot {first}$, which we add up "
                f"column by column.\n\nThe answer is $\\boxed{{{given}}}$."
            )
            cases.append(_case(text, str(first * second), given == first * second))
    return cases


def mixed() -> list[Case]:
    """The golden file."""
    rows = [msgspec.json.decode(line) for line in GOLDEN.read_bytes().splitlines()]
    return [_case(row["completion"], row["answer"], row["expected"]) for row in rows]


def _case(text: str, reference: str, right: bool) -> Case:
    return Case(Answer(text=text, prompt="", reference=reference, finish="stop"), right)


def ours() -> Grade:
    """A scorer that has seen none of the answers."""
    scorer = Math()
    return lambda answer: scorer(answer).reward == 1.0


def theirs(answer: Answer) -> bool:
    """math-verify as its manual has it; what it raises is no match."""
    gold = math_verify.parse(f"${answer.reference}$")
    return bool(math_verify.verify(gold, math_verify.parse(answer.text)))


def measured(make: Callable[[], Grade], cases: Sequence[Case], rounds: int) -> Pass:
    """Some rounds over all cases."""
    spent = 0.0
    for _ in range(rounds):
        grade = make()
        started = time.process_time()
        verdicts = [grade(case.answer) for case in cases]
        spent += time.process_time() - started
    wrong = sum(got != case.right for got, case in zip(verdicts, cases, strict=True))
    return Pass(rounds * len(cases) / spent, wrong)


def compared(cases: Sequence[Case], repeats: int) -> dict[str, Any]:
    """Both sides in turn, after one turn that does not count."""
    pairs = [
        (measured(ours, cases, ROUNDS_OF_OURS), measured(lambda: theirs, cases, 1))
        for _ in range(repeats + 1)
    ][1:]
    mine, other = (
        statistics.median(p.per_second for p in side) for side in zip(*pairs, strict=True)
    )
    return {
        "answers": len(cases),
        "grades_per_second_per_core": round(mine, 1),
        "math_verify_per_second_per_core": round(other, 1),
        "over_math_verify": round(mine / other, 2),
        "wrong": pairs[-1][0].wrong,
        "math_verify_wrong": pairs[-1][1].wrong,
    }


async def pooled(cases: Sequence[Case]) -> float:
    """Grades a second by the clock, through one worker."""
    pool = Pool(["math"], workers=1, timeout_seconds=10.0)
    await pool.start()
    try:
        started = time.perf_counter()
        verdicts = await asyncio.gather(*(pool.grade(0, case.answer) for case in cases))
        seconds = time.perf_counter() - started
    finally:
        await pool.close()
    assert [v.reward == 1.0 for v in verdicts] == [case.right for case in cases], "all are graded"
    return len(cases) / seconds


def main() -> int:
    """Measure both sets; 1 where the bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it tells of each failed parse
    sets = {"integers": integers(), "mixed": mixed()}
    figures: dict[str, Any] = {}
    for name, cases in sets.items():
        found = figures[name] = compared(cases, args.repeats)
        holds = found["over_math_verify"] >= BAR and not found["wrong"]
        print(
            f"{name}: {found['grades_per_second_per_core']:.0f} grades a second and core, "
            f"{found['math_verify_per_second_per_core']:.0f} by math-verify; of {len(cases)} "
            f"{found['wrong']} and {found['math_verify_wrong']} wrong; over_math_verify "
            f"{found['over_math_verify']}: {'holds' if holds else 'DOES NOT HOLD'} (at least {BAR})"
        )
        found["holds"] = holds
    figures["over_math_verify"] = min(figures[name]["over_math_verify"] for name in sets)
    figures["grades_per_second_per_core"] = min(
        figures[name]["grades_per_second_per_core"] for name in sets
    )
    figures["pooled_grades_per_second"] = round(asyncio.run(pooled(sets["integers"])), 1)
    figures |= {"bar": BAR, "holds": all(figures[name]["holds"] for name in sets)}
    print(json.dumps(figures))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
