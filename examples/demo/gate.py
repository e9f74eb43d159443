"""Checks, before training, that the demo's base model has something to sharpen.

Reinforcement learning does not teach a skill. The base must know the task (right when greedy) and
fail by independent slips (often wrong when sampled, seldom in all of eight samples).
"""

import sys
from pathlib import Path

from pipeline.config import load
from services.inference.evaluation import grade_base

RUN = Path(__file__).resolve().parents[1] / "demo.toml"
GREEDY_AT_LEAST = 0.8
SAMPLED_BETWEEN = (0.1, 0.3)
PASS_AT_8_AT_LEAST = 0.7


def main() -> int:
    """Print the figures; exit 1 where the gate is not passed."""
    point = grade_base(load(RUN))
    low, high = SAMPLED_BETWEEN
    passed = (
        point.greedy >= GREEDY_AT_LEAST
        and low <= point.sampled < high
        and point.passed >= PASS_AT_8_AT_LEAST
    )
    print(f"before training, {point.sentence()}")
    if not passed:
        print("the base model is not what the demo needs: make it anew with prepare.py --model")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
