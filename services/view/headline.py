"""A report in words: what a person would say of the run."""

from __future__ import annotations

from pipeline.ledger import GENERATED
from pipeline.watch.finding import plural
from services.view.outcome import shares
from services.view.report import Report
from services.view.words import NO_BREAK, duration, figure, percent


def headline(report: Report) -> str:
    """The run in one sentence."""
    if report.outcome == "failed":
        after = plural(report.steps, "step")
        return f"{report.name} failed after {after}: {report.reason}{_skipped(report)}"
    gained = _gain("training reward", report.training_reward_first, report.training_reward_last)
    sampled = _gain("sampled", report.reward_first, report.reward_last)
    greedy = _gain("greedy", report.greedy_first, report.greedy_last)
    held_out = ", ".join(filter(None, (sampled, greedy)))
    took = f"in {plural(report.steps, 'step')} and {duration(report.seconds)}"
    if not gained:
        return _without_a_step(report)
    state = "" if report.outcome == "done" else f" ({report.reason or report.outcome})"
    graded = f"; held out: {held_out}" if held_out else ""
    return f"{report.name}{state}: {gained} {took}{graded}{_skipped(report)}."


def _skipped(report: Report) -> str:
    count = report.skipped_steps
    were = "was" if count == 1 else "were"
    return f"; {plural(count, 'step')} {were} skipped: no usable gradient" if count else ""


def _without_a_step(report: Report) -> str:
    if report.outcome == "stopped":
        return f"{report.name} ({report.reason}): no step yet."
    if report.outcome == "running":
        return f"{report.name} is running: no step yet."
    if report.outcome == "unknown":
        return f"{report.name}: no step, {report.reason}."
    because = "; ".join(filter(None, (report.reason, _unlearned(report))))
    return f"{report.name} is {report.outcome} without a step: {because}."


def _unlearned(report: Report) -> str:
    """Why nothing was learned, as far as the ledger tells."""
    ended = {f: s.members for f, s in report.ledger.items() if f != GENERATED and s.members}
    if not ended:
        return "no member was generated"
    if ended.keys() == {"zero_signal"}:
        return "every group was without signal"
    return shares(ended, "members were ")


def summary(report: Report) -> list[str]:
    """What `sluice up` prints at its end, before where the report lies."""
    generated, trained = (report.tokens_per_second[k] for k in ("generated", "trained"))
    balance = {True: "balanced", False: "OFF BALANCE", None: "out of reach"}[report.balanced]
    spans = percent(report.share_of_members_spanning_versions)
    idle = ", ".join(f"{service} {percent(s)}" for service, s in report.idle_share.items())
    return [
        headline(report),
        f"{figure(generated)} tokens/s generated, {figure(trained)} trained; idle: {idle}",
        f"{figure(report.flips)} flips, {spans} of members span versions; ledger {balance}",
    ]


def _gain(noun: str, first: float | None, last: float | None) -> str:
    if first is None or last is None:
        return ""
    return f"{noun} {first:.3g}{NO_BREAK}→{NO_BREAK}{last:.3g}"
