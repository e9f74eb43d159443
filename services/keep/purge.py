"""`sluice purge`: removes one run from Redis, if nobody is in it and the user says so."""

from __future__ import annotations

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError
from pipeline.run import Run
from pipeline.serve import EXIT_DONE
from pipeline.watch import ENDED
from services.keep.meeting import Met, meet

MOST_NAMES = 5


def purge(run: Run, *, redis: str | None, yes: bool) -> int:
    """Asks unless `yes`. Raises ConfigError where there is no such run, or a process is alive."""
    with meet(run, redis) as met:
        _check_empty(run, met.bus)
        if not (yes or _agreed(run, met)):
            print("nothing was deleted")
            return EXIT_DONE
        _check_empty(run, met.bus)
        deleted = met.bus.purge()
    print(f"run {run.name}: {_keys(deleted)} deleted at {met.where}; {run.folder} is as it was")
    return EXIT_DONE


def _check_empty(run: Run, bus: Bus) -> None:
    if alive := _alive(bus):
        more = f" and {len(alive) - MOST_NAMES} more" if len(alive) > MOST_NAMES else ""
        raise ConfigError(
            "name",
            run.name,
            rule=f"is alive: {', '.join(alive[:MOST_NAMES])}{more}",
            remedy="stop its processes; one that was killed counts as alive until its lease is out",
        )


def _alive(bus: Bus) -> list[str]:
    """Who beats, also a process of another release, and has not said goodbye."""
    if not bus.is_open():
        return []
    ended = {s.beat.boot for s in bus.snapshot().beats if s.beat.waiting_for == ENDED}
    return sorted({name for boot, name in bus.awake().items() if boot not in ended})


def _agreed(run: Run, met: Met) -> bool:
    print(f"run {run.name} has {_keys(met.keys)} at {met.where}, and nobody is alive in it.")
    print(f"Its files in {run.folder} stay.")
    try:
        return input("Delete these keys? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        rule = "asks first, and nobody is there to answer"
        raise ConfigError("sluice purge", None, rule=rule, remedy="give --yes") from None


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"
