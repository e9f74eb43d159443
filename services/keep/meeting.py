"""Meets a run that is said to exist, by its server; joins it in no way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from pipeline.bus.address import address_of
from pipeline.bus.bus import Bus
from pipeline.bus.connection import mask
from pipeline.errors import ConfigError
from pipeline.run import Run

MOST_NAMES = 10


class Met(NamedTuple):
    """A run's bus, where that is (without its password), and how many keys it has there."""

    bus: Bus
    where: str
    keys: int


@contextmanager
def meet(run: Run, redis: str | None) -> Iterator[Met]:
    """Raises ConfigError without a server, or where it has no key of the run."""
    url = address_of(run, redis)
    with closing(Bus.connect(url, run.name)) as bus:
        where, keys = mask(url), bus.keys()
        if not keys:
            raise ConfigError("name", run.name, rule=f"no such run at {where}", remedy=_known(bus))
        yield Met(bus, where, keys)


def _known(bus: Bus) -> str:
    names = bus.runs()
    if not names:
        return "there is no run at all; give another server (--redis URL)"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"there are: {', '.join(names[:MOST_NAMES])}{more} (--set name=NAME)"
