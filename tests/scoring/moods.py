"""Scorers whose verdicts change while they run, as a judge's do behind whose name another model is
put: by what the file $MOOD says."""

import asyncio
import os
from pathlib import Path

from pipeline.protocols import Answer
from pipeline.verdicts import Passing


def moody(answer: Answer) -> float:
    """1 for the reference: always, never, or as it is fair; or away for a while, or broken."""
    path = Path(os.environ["MOOD"])
    with path.with_suffix(".asked").open("a") as asked:
        asked.write(f"{answer.text}{'!' * answer.fresh}\n")
    mood = path.read_text()
    if mood == "away":
        raise Passing("gone fishing")
    if mood == "broken":
        raise ValueError("no screws left")
    return float({"always": True, "never": False}.get(mood, answer.text == answer.reference))


class Loop:
    """The same on the loop."""

    async def __call__(self, answer: Answer) -> float:
        await asyncio.sleep(0)
        return moody(answer)
