"""The demo's task, "sort and repeat": its alphabet, its prompts and its answers.

A prompt such as ``c5a8b7=2`` lists label-digit pairs in any order, then a number k. The answer is
the pairs sorted by label, written k times with commas between: ``a8b7c5,a8b7c5``. The policy ends
it with the end token. The reward (exact match, 0 or 1) is the scorer's; no model code lives here.
"""

import random
from collections.abc import Collection
from typing import NamedTuple

LABELS = "abcdefgh"
DIGITS = "0123456789"
END = ";"
PAD = "_"
VOCABULARY = PAD + END + "=" + "," + DIGITS + LABELS
"""One token a character; a token's id is its place in this string."""

PAIRS = (4, 8)
"""Fewest and most pairs in a prompt, both included."""
REPEATS = (2, 5)
"""Smallest and largest k, both included."""


class Task(NamedTuple):
    """One problem: the pairs in the order of the prompt, and how often to write them."""

    pairs: tuple[str, ...]
    repeats: int

    @property
    def prompt(self) -> str:
        return f"{''.join(self.pairs)}={self.repeats}"

    @property
    def answer(self) -> str:
        """The one right completion, without the end token."""
        return ",".join(["".join(sorted(self.pairs))] * self.repeats)


def draw(
    rng: random.Random, *, pairs: tuple[int, int] = PAIRS, repeats: tuple[int, int] = REPEATS
) -> Task:
    """One task: each number of pairs, and each k, in its range is equally likely."""
    labels = rng.sample(LABELS, rng.randint(*pairs))
    return Task(tuple(label + rng.choice(DIGITS) for label in labels), rng.randint(*repeats))


def draw_distinct(count: int, seed: int, *, avoid: Collection[str] = ()) -> list[Task]:
    """`count` tasks with pairwise different prompts, none of them in `avoid`."""
    rng = random.Random(seed)
    seen = set(avoid)
    tasks: list[Task] = []
    while len(tasks) < count:
        task = draw(rng)
        if task.prompt not in seen:
            seen.add(task.prompt)
            tasks.append(task)
    return tasks


def sloppy_answer(
    task: Task, rng: random.Random, *, wrong_digit: float, wrong_repeats: float
) -> str:
    """An answer with independent slips: each digit with one chance, the number k with another.

    A slip is drawn among the wrong values only, so a chance of .1 means .1 wrong.
    """
    repeats = task.repeats
    if rng.random() < wrong_repeats:
        repeats = rng.choice([k for k in range(REPEATS[0], REPEATS[1] + 1) if k != task.repeats])
    clean = task._replace(repeats=repeats).answer
    return "".join(
        rng.choice(DIGITS.replace(char, ""))
        if char in DIGITS and rng.random() < wrong_digit
        else char
        for char in clean
    )
