"""What held-out answers are worth: from outcomes to the point of a version, and the file of points.

The same for answers that were graded while the run went on and for those after it. Pure but for the
file. Who answers, and who grades, is elsewhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from math import comb
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline import disk
from pipeline.errors import ConfigError, SluiceError
from pipeline.families import ALONE
from pipeline.plugins import name_of
from pipeline.run import Run

FILE = "evaluation.json"
KEPT = "kept.jsonl"

Outcomes = Sequence[Sequence[float | None]]
"""By prompt and member; None where a scorer made no verdict."""


class KeptVersion(Struct, frozen=True, kw_only=True):
    """A version that training kept: a Hugging Face folder, its step, and when it was made."""

    version: int
    step: int
    seconds: float
    path: str


class Point(Struct, frozen=True, kw_only=True):
    """Held-out outcome of one version: means over prompts, and the sampled one's standard error.

    `sampled` is avg@members. The error is that of the prompts' means, since answers to one prompt
    are alike; None for a single prompt. `pass_at` has pass@k by k, of the prompts with k verdicts;
    `zero_signal` is the share of prompts whose samples all had the same outcome, so that they would
    teach nothing. `errors` answers could not be scored, and count in none of these. `boots` are the
    engines that answered while the run went on; none where it was graded afterwards. `data` is the
    digest of the held-out set.
    """

    version: int
    step: int
    seconds: float
    sampled: float
    sampled_error: float | None
    greedy: float
    pass_at: dict[int, float]
    zero_signal: float
    prompts: int
    members: int
    errors: int = 0
    boots: tuple[str, ...] = ()
    data: str = ""

    @property
    def passed(self) -> float:
        """pass@k of the largest k that there is; not a number where there is none."""
        return self.pass_at[max(self.pass_at)] if self.pass_at else math.nan

    def sentence(self) -> str:
        """In one line."""
        spread = "" if self.sampled_error is None else f" ± {self.sampled_error:.3f}"
        errors = f", answers without a verdict: {self.errors}" if self.errors else ""
        passed = "".join(f"pass@{k} {self.pass_at[k]:.3f}, " for k in [*self.pass_at][-1:])
        return (
            f"version {self.version}: held-out sampled {self.sampled:.3f}{spread}, "
            f"greedy {self.greedy:.3f}, {passed}"
            f"groups without signal {self.zero_signal:.2f} ({self.prompts} prompts{errors})"
        )


class Points(Struct, frozen=True):
    """The file: every version that was graded, and the one with the best sampled mean."""

    points: list[Point]
    best: int | None = None


def pass_at(k: int, *, members: int, right: int) -> float:
    """Probability that of k of these members, drawn without replacement, one at least is right.

    1 - C(n - c, k) / C(n, k): unbiased for k independent attempts (Chen et al., 2021, eq. 1).
    """
    assert 1 <= k <= members, "no more can be drawn than there are"
    return 1.0 - comb(members - right, k) / comb(members, k)


def summary(
    kept: KeptVersion,
    sampled: Outcomes,
    greedy: Outcomes,
    *,
    members: int,
    boots: tuple[str, ...] = (),
    data: str = "",
) -> Point:
    """The means of what has a verdict; raises SluiceError where nothing has."""
    groups, firsts = _scored(sampled), _scored(greedy)
    if not groups or not firsts:
        raise SluiceError(f"version {kept.version}: the scorer made no verdict, see the log")
    means = [statistics.fmean(group) for group in groups]
    return Point(
        version=kept.version,
        step=kept.step,
        seconds=kept.seconds,
        sampled=statistics.fmean(means),
        sampled_error=statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else None,
        greedy=statistics.fmean(group[0] for group in firsts),
        pass_at=_passed(groups, members),
        zero_signal=statistics.fmean(float(min(group) == max(group)) for group in groups),
        prompts=len(sampled),
        members=members,
        errors=sum(outcome is None for group in (*sampled, *greedy) for outcome in group),
        boots=boots,
        data=data,
    )


def meanwhile(run: Run) -> int:
    """Versions between two that are graded while the run goes on; 0: none is.

    None, either, where the run's engines hold one version at a time.
    """
    if run.evaluation is None or not run.evaluation.meanwhile:
        return 0
    return 0 if is_alone(run) else run.evaluation.every


def is_alone(run: Run) -> bool:
    """Whether an engine of the run's takes a whole device."""
    return name_of(run.inference.engine, "inference.engine") in ALONE


def kept_versions(folder: Path) -> list[KeptVersion]:
    """What training has kept so far, oldest first; raises ConfigError where that cannot be read."""
    path = folder / "weights" / KEPT
    try:
        lines = path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=KeptVersion) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as exc:
        remedy = "remove the line that is broken"
        raise ConfigError(str(path), None, rule=f"cannot be read ({exc})", remedy=remedy) from exc


def read(folder: Path) -> Points:
    """The points of a run so far; none where there is no file, or one of another release."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Points)
    except (FileNotFoundError, msgspec.MsgspecError):
        return Points([])


def scores(folder: Path) -> dict[int, float]:
    """The sampled mean of every version that was graded so far, by which the best is told."""
    return {point.version: point.sampled for point in read(folder).points}


def add(folder: Path, points: Iterable[Point]) -> None:
    """These beside what the file has, in place of former ones of their versions. As `write`."""
    known = {point.version: point for point in read(folder).points}
    write(folder, (known | {point.version: point for point in points}).values())


def write(folder: Path, points: Iterable[Point]) -> None:
    """The file, whole or not at all; raises SluiceError."""
    by_version = sorted(points, key=lambda point: point.version)
    best = max(by_version, key=lambda point: point.sampled, default=None)
    whole = Points(by_version, best.version if best else None)
    path = folder / FILE
    try:
        disk.write(path, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    except OSError as exc:
        raise SluiceError(f"{path} cannot be written ({exc.strerror})") from exc


def _passed(groups: Sequence[Sequence[float]], members: int) -> dict[int, float]:
    """For every power of two below the number of members, and for that."""
    ks = [1 << i for i in range(members.bit_length()) if 1 << i < members] + [members]
    found = {k: [_pass(k, group) for group in groups if len(group) >= k] for k in ks}
    return {k: statistics.fmean(shares) for k, shares in found.items() if shares}


def _pass(k: int, group: Sequence[float]) -> float:
    return pass_at(k, members=len(group), right=sum(outcome > 0 for outcome in group))


def _scored(outcomes: Outcomes) -> list[list[float]]:
    """Without faults, and without prompts that have nothing else."""
    known = [[outcome for outcome in group if outcome is not None] for group in outcomes]
    return [group for group in known if group]
