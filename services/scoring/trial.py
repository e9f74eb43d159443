"""`sluice score test`: one scorer on a golden file, where and as it runs in a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from pipeline.config import literal
from pipeline.errors import ConfigError, SluiceError
from pipeline.machine import cores
from pipeline.metrics import Metrics
from pipeline.plugins import options_of
from pipeline.run import Scoring
from pipeline.verdicts import AT, Term, term_of
from services.scoring.ensemble import Ensemble, seated
from services.scoring.golden import Found, Known, ask, cell, read_golden
from services.scoring.metrics import Numbers
from services.scoring.seats import Seat

MOST_WORKERS = 8


def trial(scorer: str, golden: Path, *, options: Sequence[str], as_json: bool) -> None:
    """Prints the lines that differ, or with `as_json` every verdict, a JSON object a line.

    `options` are KEY=VALUE, the value as TOML writes it: what else stands in a scorer's table.
    Raises ConfigError for bad input, and SluiceError where a verdict is not the one expected.
    """
    term, lines = named(scorer, options), read_golden(golden)
    # Without a run there is no policy: a scorer's own model stands for it, and is loaded once.
    model = str(options_of(term.spec).get("path", ""))
    keys = Scoring(workers=1 if model else min(MOST_WORKERS, cores()))
    ensemble = seated([term], keys, numbers=Numbers(Metrics("scoring")), policy=model)
    found = asyncio.run(_ask(ensemble, lines))
    (seat,) = ensemble.seats
    wrong = [one for one in found if not one.is_right]
    for text in _json(seat, found) if as_json else _table(wrong):
        print(text)
    if wrong:
        raise SluiceError(f"{golden}: {len(wrong)} of {len(found)} verdicts of {seat.name} differ")
    if not as_json:
        print(f"{golden}: all {len(found)} verdicts of {seat.name} are as expected")


def named(scorer: str, options: Sequence[str]) -> Term:
    """A scorer by its name and options; raises ConfigError."""
    table: dict[str, object] = {"use": scorer}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator or not key.strip():
            remedy = "as in --option percent=unit"
            raise ConfigError("--option", option, rule="needs KEY=VALUE", remedy=remedy)
        table[key.strip()] = literal(value.strip())
    return term_of(table, AT)


async def _ask(ensemble: Ensemble, lines: Sequence[Known]) -> list[Found]:
    """All lines at once, in order: the scorer takes what it has room for."""
    await ensemble.start()
    try:
        (seat,) = ensemble.seats
        return [*await asyncio.gather(*(ask(seat.ask, known) for known in lines))]
    finally:
        await ensemble.close()


def _json(seat: Seat, found: Sequence[Found]) -> Iterator[str]:
    for one in found:
        verdict = one.verdict
        line = {
            "id": one.known.id,
            "expected": one.known.expected,
            "as_expected": one.is_right,
            "reward": verdict.reward if verdict else None,
            "outcome": verdict.outcome if verdict else None,
            "reason": verdict.reason if verdict else "",
            "fault": str(one.fault) if one.fault else None,
            "scorer": seat.called,
            "version": seat.version,
            "hash": seat.contents,
        }
        yield msgspec.json.encode(line).decode()


def _table(wrong: Sequence[Found]) -> Iterator[str]:
    rows = [("id", "expected", "got", "reason"), *map(_row, wrong)]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows if wrong else ():
        cells = [f"{text:{width}}" for text, width in zip(row, wide, strict=False)]
        yield "  ".join((*cells, row[-1])).rstrip()


def _row(found: Found) -> tuple[str, str, str, str]:
    got = "fault" if found.got is None else f"{found.got:g}"
    wanted = msgspec.json.encode(found.known.expected).decode()
    return cell(str(found.known.id)), wanted, got, cell(found.why)
