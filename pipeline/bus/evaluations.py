"""The desk of evaluations: held-out groups go in beside the window, and what they were graded comes
out. Engines and scorers meet them at their own desks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from msgspec import Struct

from pipeline.bus.errors import MemoryFull
from pipeline.bus.leading import Leading
from pipeline.bus.leases import cargo
from pipeline.bus.scripts import Arg, Scripts
from pipeline.messages import Prompt

Entry = Literal["ok", "moved", "full", "memory", "busy", "over"]
HELD_OUT = "evaluation.data"
"""The key of the run's identity under which prompting says which held-out set it has."""
_BOOT = b"boot:"


class Graded(Struct, frozen=True):
    """What an evaluation found: the outcomes of each group's members by its number, None where
    there is none, and the boots of the engines that answered."""

    outcomes: dict[int, list[float | None]]
    boots: tuple[str, ...]


def group_name(version: int, number: int) -> str:
    """Of a held-out group: what it is pinned to can be read from it, by the scripts as well."""
    return f"eval/{version}/{number}"


class Evaluations:
    """One at a time, each pinned to one version of the weights, and each version at most once."""

    def __init__(self, scripts: Scripts, leading: Leading) -> None:
        self._scripts, self._leading = scripts, leading

    def admit(self, prompts: Sequence[Prompt], *, version: int, size: int, first: int) -> Entry:
        """Let the groups from number `first` on in, of `size` in all.

        "moved": others came first; "busy": another version's goes on; "over": this version's is
        over; "full" and "memory" as in the window, which is as large. Then nothing was admitted.
        """
        args: list[Arg] = [version, size, first, first + len(prompts)]
        for p in prompts:
            args += [p.group, p.seq, p.members, cargo(p, f"prompt {p.group}")]
        try:
            return cast(Entry, self._scripts.call("evaluate", *args).decode())
        except MemoryFull:
            return "memory"

    def graded(self) -> Graded:
        """What is known so far of the one that goes on; all, once none of its groups is alive."""
        flat: dict[bytes, bytes]
        (flat,) = self._scripts.read(("HGETALL", self._scripts.keys.outcomes))
        boots = sorted(key.removeprefix(_BOOT).decode() for key in flat if key.startswith(_BOOT))
        return Graded(
            outcomes={
                int(key): msgspec.json.decode(value, type=list[float | None])
                for key, value in flat.items()
                if not key.startswith(_BOOT)
            },
            boots=tuple(boots),
        )

    def conclude(self, epoch: int, version: int) -> str:
        """What it found is written down: the next may begin. "ok", "open" (it is not done), or
        "over"."""
        reply: bytes = self._leading.act("conclude", epoch, version)
        return reply.decode()

    def forgo(self, epoch: int, version: int) -> None:
        """It cannot end, since nobody has its weights: what is alive of it is cancelled.

        The end of the run does the same by itself.
        """
        while self._leading.act("forgo", epoch, version) == b"more":
            pass
