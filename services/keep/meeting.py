"""Meets a run that is said to exist, by its server; joins it in no way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline import config
from pipeline.bus.address import address_of
from pipeline.bus.bus import Bus
from pipeline.bus.connection import mask
from pipeline.errors import ConfigError
from pipeline.run import RUNS, Run

MOST_NAMES = 10
RUN_TOML = "run.toml"


class Met(NamedTuple):
    """A run's bus, where that is (without its password), and how many keys it has there."""

    bus: Bus
    where: str
    keys: int


class Wanted(NamedTuple):
    """A run that somebody asks for: its name, its RUN.toml if there is one here, its folder."""

    name: str
    run: Run | None
    folder: Path


def wanted(told: str, overrides: Sequence[str] = ()) -> Wanted:
    """By a RUN.toml, by the folder of a run, or by its name alone; raises ConfigError."""
    path = Path(told)
    if toml := _toml(told):
        run = config.load(toml, overrides)
        own = toml.name == RUN_TOML and toml.parent.name == run.name
        return Wanted(run.name, run, toml.parent if own else run.folder)
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise ConfigError("RUN", told, rule="is not there", remedy="name a RUN.toml, or a run")
    if overrides:
        remedy = "name the run by its RUN.toml"
        raise ConfigError("--set", overrides[0], rule="overrides what is not there", remedy=remedy)
    return Wanted(told, None, RUNS / told)


def run_of(told: str | Path, overrides: Sequence[str] = ()) -> Run:
    """The same where a RUN.toml is needed; raises ConfigError without one."""
    if run := wanted(str(told), overrides).run:
        return run
    rule = f"is no run here: there is no {RUNS / told / RUN_TOML}"
    raise ConfigError("RUN", str(told), rule=rule, remedy="name a RUN.toml")


def _toml(told: str) -> Path | None:
    """The RUN.toml that is meant, if it is here."""
    path = Path(told)
    places = (path, path / RUN_TOML, RUNS / told / RUN_TOML)
    try:
        return next((toml for toml in places if toml.is_file()), None)
    except OSError as exc:  # too long for a file's name, for one
        rule = f"cannot be looked for ({exc.strerror})"
        raise ConfigError("RUN", told, rule=rule, remedy="name a RUN.toml, or a run") from exc


@contextmanager
def meet(run: Run, redis: str | None) -> Iterator[Met]:
    """Raises ConfigError without a server, or where it has no key of the run."""
    with meet_at(address_of(run, redis), run.name, hint=" (--set name=NAME)") as met:
        yield met


@contextmanager
def meet_wanted(wanted: Wanted, redis: str | None) -> Iterator[Met]:
    """The same by a name alone, and only where the run is whole."""
    if not (wanted.run or redis):
        rule = f"is needed: there is no {RUNS / wanted.name / RUN_TOML} here"
        raise ConfigError("--redis", None, rule=rule, remedy="give --redis URL or a RUN.toml")
    url = address_of(wanted.run, redis, wanted.folder) if wanted.run else redis
    with meet_at(str(url), wanted.name) as met:
        check_open(wanted.name, met)
        yield met


@contextmanager
def meet_at(url: str, name: str, *, hint: str = "") -> Iterator[Met]:
    """Raises ConfigError where that server has no key of the run; the hint says how to choose."""
    with closing(Bus.connect(url, name)) as bus:
        where, keys = mask(url), bus.keys()
        if not keys:
            remedy = _known(bus, hint)
            raise ConfigError("name", name, rule=f"no such run at {where}", remedy=remedy)
        yield Met(bus, where, keys)


def check_open(name: str, met: Met) -> None:
    """Raises ConfigError where a purge has begun to delete the run."""
    if not met.bus.is_open():
        rule = f"of its {met.keys} keys at {met.where} the first is missing: a purge was cut short"
        raise ConfigError("name", name, rule=rule, remedy="finish it with `sluice purge`")


def _known(bus: Bus, hint: str) -> str:
    names = bus.runs()
    if not names:
        return "there is no run at all; give another server (--redis URL)"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"there are: {', '.join(names[:MOST_NAMES])}{more}{hint}"
