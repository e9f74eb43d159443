"""Numbers of a report in words: what a person would say of the run."""

from __future__ import annotations

from services.up.report import Report

NO_BREAK = "\N{NO-BREAK SPACE}"


def headline(report: Report) -> str:
    """The run in one sentence."""
    if report.outcome == "failed":
        return f"{report.name} failed after {plural(report.steps, 'step')}: {report.reason}"
    gained = _gain("reward", report.training_reward_first, report.training_reward_last)
    sampled = _gain("sampled", report.reward_first, report.reward_last)
    greedy = _gain("greedy", report.greedy_first, report.greedy_last)
    held_out = ", ".join(filter(None, (sampled, greedy)))
    took = f"in {plural(report.steps, 'step')} and {duration(report.seconds)}"
    if not gained:
        return _without_a_step(report)
    state = "" if report.outcome == "done" else f" ({report.reason or report.outcome})"
    return f"{report.name}{state}: {gained} {took}{f'; held out: {held_out}' if held_out else ''}."


def _without_a_step(report: Report) -> str:
    if report.outcome == "stopped":
        return f"{report.name} was {report.reason} before its first step."
    return f"{report.name} is {report.outcome}: no step yet."


def duration(seconds: float) -> str:
    """13.4 s, 2 min 5 s, 3 h 12 min; a number is never parted from its unit."""
    return _plain_duration(seconds).replace(" ", NO_BREAK)


def _plain_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def figure(value: float | None) -> str:
    """A whole number with separators, or a dash."""
    return "—" if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of 1 as a percentage, or a dash."""
    return "—" if share is None else f"{share:.1%}"


def plural(count: int, noun: str) -> str:
    """1 step, 2 steps."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def summary(report: Report) -> list[str]:
    """What `sluice up` prints at its end, before where the report lies."""
    generated, trained = (report.tokens_per_second[k] for k in ("generated", "trained"))
    balance = "balanced" if report.balanced else "OFF BALANCE"
    spans = percent(report.share_of_members_spanning_versions)
    idle = ", ".join(f"{service} {percent(s)}" for service, s in report.idle_share.items())
    return [
        headline(report),
        f"{figure(generated)} tokens/s generated, {figure(trained)} trained; idle: {idle}",
        f"{report.flips:,} flips, {spans} of members span versions; ledger {balance}",
    ]


def _gain(noun: str, first: float | None, last: float | None) -> str:
    if first is None or last is None:
        return ""
    return f"{noun} {first:.3g} → {last:.3g}"
