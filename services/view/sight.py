"""Follows a run by its snapshots: what each one shows that it would not show alone."""

from __future__ import annotations

from pipeline.watch import Snapshot, advise
from pipeline.watch.advice import beginning
from services.view.rates import Looks, between
from services.view.scene import Scene

ADVICE_SECONDS = 300.0
ADVICE_GAP = 10.0
"""Advice looks back further than rates do: a step may take minutes."""


class Sight:
    """Remembers as many looks as rates and advice reach back to."""

    def __init__(
        self, name: str, steps: int | None = None, *, where: str = "", hint: str = ""
    ) -> None:
        self._name, self._steps, self._where, self._hint = name, steps, where, hint
        self._looks, self._long = Looks(), Looks(ADVICE_SECONDS, ADVICE_GAP)

    def scene(self, snapshot: Snapshot) -> Scene:
        """This look, with what passed since those before."""
        advice = advise(self._long.add(snapshot), snapshot) or advise(beginning(snapshot), snapshot)
        return Scene(
            self._name,
            snapshot,
            between(self._looks.add(snapshot), snapshot),
            steps=self._steps,
            advice=advice.sentences() if advice and not snapshot.state.stop else (),
            where=self._where,
            hint=self._hint,
        )
