"""Every formula once more, in plain Python: a token at a time, gradients derived by hand.

It shares no code with what it is held against. A row is the tokens of one sequence; a term is the
loss [T] of a row, and the gradient [T] of the weighted sum of the losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple


class Token(NamedTuple):
    """`pi` learns, `mu` sampled, `anchor` is what a ratio is taken to."""

    pi: float
    mu: float
    anchor: float
    a: float
    weight: float
    score: float = 0.0
    segment: int = 0
    lag: int = 0
    reference: float = 0.0
    teacher: float = 0.0


Row = list[Token]
Term = tuple[list[float], list[float]]


def bounded(x: float) -> float:
    return max(-20.0, min(20.0, x))


def r_of(t: Token) -> float:
    return math.exp(bounded(t.pi - t.anchor))


def moves(x: float) -> float:
    """The derivative of `bounded`."""
    return 1.0 if -20 <= x <= 20 else 0.0


def by_token(row: Row, value: Callable[[Token], float], slope: Callable[[Token], float]) -> Term:
    return [value(t) for t in row], [slope(t) * t.weight for t in row]


def weighing(row: Row, weight: Callable[[Token], float]) -> Term:
    """-w A pi with a constant w."""
    return by_token(row, lambda t: -weight(t) * t.a * t.pi, lambda t: -weight(t) * t.a)


def reinforce(row: Row) -> Term:
    return weighing(row, lambda t: 1.0)


def cispo(row: Row, low: float = 0.0, high: float = 5.0) -> Term:
    return weighing(row, lambda t: min(max(r_of(t), low), high))


def tis_pg(row: Row) -> Term:
    return weighing(row, lambda t: min(1.0, r_of(t)))


def rollout_is(row: Row, low: float = 0.125, high: float = 8.0) -> Term:
    return weighing(row, lambda t: r_of(t) if low < r_of(t) < high else 0.0)


def topr(row: Row, level: str = "token") -> Term:
    whole = math.exp(min(0.0, bounded(sum(t.pi - t.anchor for t in row if t.weight > 0))))

    def weight(t: Token) -> float:
        if t.score > 0:
            return 1.0
        return min(1.0, r_of(t)) if level == "token" else whole

    return weighing(row, weight)


def _surrogate(r: float, a: float, low: float, high: float, dual: float) -> tuple[float, float]:
    """The clipped loss, and its derivative in r."""
    if a >= 0:
        return (-r * a, -a) if r <= high else (-high * a, 0.0)
    if r >= dual:
        return -dual * a, 0.0
    return (-r * a, -a) if r >= low else (-low * a, 0.0)


def ppo(row: Row, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float = 3.0) -> Term:
    return _ppo(row, 1 - clip_low, 1 + clip_high, dual_clip)


def _ppo(row: Row, low: float, high: float, dual: float) -> Term:
    def slope(t: Token) -> float:
        r = r_of(t)
        return _surrogate(r, t.a, low, high, dual)[1] * r * moves(t.pi - t.anchor)

    return by_token(row, lambda t: _surrogate(r_of(t), t.a, low, high, dual)[0], slope)


def gspo(row: Row, clip_low: float = 3e-4, clip_high: float = 4e-4, dual_clip: float = 3) -> Term:
    low, high, dual = 1 - clip_low, 1 + clip_high, dual_clip
    gaps = [t.pi - t.anchor for t in row if t.weight > 0]
    n = len(gaps)
    average = sum(gaps) / n if n else 0.0
    s = math.exp(bounded(average))
    parts = [_surrogate(s, t.a, low, high, dual) for t in row]
    pull = sum(p[1] * t.weight for p, t in zip(parts, row, strict=True)) * s * moves(average)
    return [p[0] for p in parts], [pull / n if t.weight > 0 else 0.0 for t in row]


def sapo(row: Row, positive: float = 1.0, negative: float = 1.05) -> Term:
    def gate(t: Token) -> tuple[float, float]:
        tau = positive if t.a > 0 else negative
        x = tau * (r_of(t) - 1)
        sigmoid = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
        return tau, sigmoid

    def value(t: Token) -> float:
        tau, sigmoid = gate(t)
        return -4 / tau * sigmoid * t.a

    def slope(t: Token) -> float:
        _, sigmoid = gate(t)
        return -4 * sigmoid * (1 - sigmoid) * r_of(t) * t.a * moves(t.pi - t.anchor)

    return by_token(row, value, slope)


def kimi(row: Row, tau: float = 0.1, level: str = "token") -> Term:
    if level == "token":

        def slope(t: Token) -> float:
            return -t.a + tau * bounded(t.pi - t.mu) * moves(t.pi - t.mu)

        return by_token(row, lambda t: -t.a * t.pi + tau / 2 * bounded(t.pi - t.mu) ** 2, slope)
    inside = [t for t in row if t.weight > 0]
    gap, n = sum(t.pi - t.mu for t in inside), max(1, len(inside))
    values = [-t.a * t.pi + tau / 2 * bounded(gap) ** 2 / n for t in row]
    pull = sum(t.weight for t in inside) * tau * bounded(gap) * moves(gap) / n
    return values, [-t.a * t.weight + (pull if t.weight > 0 else 0.0) for t in row]


def _kept(row: Row, keep: Callable[[Token], bool], cap: float, pull: float) -> Term:
    def weight(t: Token) -> float:
        return min(r_of(t), cap) if keep(t) else 0.0

    def value(t: Token) -> float:
        return -weight(t) * t.a * t.pi + pull * bounded(t.pi - t.mu) ** 2

    def slope(t: Token) -> float:
        return -weight(t) * t.a + 2 * pull * bounded(t.pi - t.mu) * moves(t.pi - t.mu)

    return by_token(row, value, slope)


def dppo_tv(row: Row, delta: float = 0.2, cap: float = 20.0, pull: float = 1e-3) -> Term:
    def keep(t: Token) -> bool:
        p, q = math.exp(t.pi), math.exp(t.mu)
        return not ((t.a > 0 and p - q > delta) or (t.a < 0 and q - p > delta))

    return _kept(row, keep, cap, pull)


def ipo(row: Row, delta: float = 0.1, cap: float = 20.0, pull: float = 1e-3) -> Term:
    def keep(t: Token) -> bool:
        return not abs(math.exp(t.pi) - math.exp(t.mu)) > delta

    return _kept(row, keep, cap, pull)


def m2po_masked(rows: list[Row], threshold: float) -> set[tuple[int, int]]:
    """Row and place of each token that is masked: the largest of all again and again."""
    left = {
        (n, i): bounded(t.pi - t.mu) ** 2
        for n, row in enumerate(rows)
        for i, t in enumerate(row)
        if t.weight > 0 and t.a * (t.pi - t.mu) > 0
    }
    masked = set()
    while left and sum(left.values()) / len(left) > threshold:
        worst = max(left, key=left.__getitem__)
        del left[worst]
        masked.add(worst)
    return masked


def m2po(
    rows: list[Row], threshold: float = 0.04, cap: float = 5.0, dual_clip: float = 3.0
) -> list[Term]:
    masked, terms = m2po_masked(rows, threshold), []
    for n, row in enumerate(rows):
        values, slopes = _ppo(row, 0.0, cap, dual_clip)
        out = [(n, i) in masked for i in range(len(row))]
        terms.append(
            (
                [0.0 if m else v for m, v in zip(out, values, strict=True)],
                [0.0 if m else s for m, s in zip(out, slopes, strict=True)],
            )
        )
    return terms


def k2(row: Row, coefficient: float) -> Term:
    def slope(t: Token) -> float:
        return coefficient * bounded(t.pi - t.reference) * moves(t.pi - t.reference)

    return by_token(row, lambda t: coefficient * bounded(t.pi - t.reference) ** 2 / 2, slope)


def k3(row: Row, coefficient: float, cap: float = 5.0) -> Term:
    """The gradient of w (e^x - x - 1) with w = e^(pi - mu): w (e^x - x - 1) - w (e^x - 1)."""

    def weight(t: Token) -> float:
        return min(cap, math.exp(bounded(t.pi - t.mu)))

    def value(t: Token) -> float:
        x = bounded(t.reference - t.pi)
        return coefficient * weight(t) * (math.exp(x) - x - 1)

    return by_token(row, value, lambda t: coefficient * weight(t) * -bounded(t.reference - t.pi))


def distilled(row: Row) -> Term:
    def weight(t: Token) -> float:
        if math.exp(t.mu) - math.exp(t.pi) > 0.2:
            return 0.0
        return min(5.0, math.exp(bounded(t.pi - t.mu))) * bounded(t.teacher - t.pi)

    return by_token(row, lambda t: -weight(t) * t.pi, lambda t: -weight(t))


# Corrections: a row to a weight for each token.


def groups_of(row: Row, over: str) -> list[list[int]]:
    """The places that are taken together."""
    if over == "sequence":
        return [list(range(len(row)))]
    turns = sorted({t.segment for t in row})
    return [[i for i, t in enumerate(row) if t.segment == turn] for turn in turns]


def aggregated(
    row: Row, of: Callable[[Token], float], how: str, over: str = "sequence"
) -> list[float]:
    found = [0.0] * len(row)
    for places in groups_of(row, over):
        values = [of(row[i]) for i in places if row[i].weight > 0]
        if how == "max":
            whole = max((abs(v) for v in values), default=0.0)
        elif how == "sum":
            whole = math.fsum(values)
        else:
            whole = math.fsum(values) / len(values) if values else 0.0
        for i in places:
            found[i] = whole
    return found


def gap(t: Token) -> float:
    return t.anchor - t.mu


def none(row: Row) -> list[float]:
    return [1.0] * len(row)


def tis(row: Row, level: str = "token", cap: float | None = None, over: str = "sequence") -> Any:
    most = {"token": 2.0, "sequence": 5.0, "geometric": 2.0}[level] if cap is None else cap
    if level == "token":
        gaps = [gap(t) for t in row]
    else:
        gaps = aggregated(row, gap, "sum" if level == "sequence" else "mean", over)
    return [min(most, math.exp(bounded(x))) for x in gaps]


def icepop(row: Row, low: float = 0.5, high: float = 5.0) -> list[float]:
    ratios = [math.exp(bounded(gap(t))) for t in row]
    return [x if low <= x <= high else 0.0 for x in ratios]


def mask_geometric(row: Row, low: float, high: float, over: str = "sequence") -> list[float]:
    means = aggregated(row, gap, "mean", over)
    return [float(low <= math.exp(bounded(x)) <= high) for x in means]


def mask_k(row: Row, bound: float, kind: str, level: str, over: str = "sequence") -> list[float]:
    def k(t: Token) -> float:
        x = bounded(gap(t))
        return {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[kind]

    values = [k(t) for t in row] if level == "token" else aggregated(row, k, level, over)
    return [float(abs(x) <= bound) for x in values]


def opsm(row: Row, delta: float = 0.01, over: str = "sequence") -> list[float]:
    means = aggregated(row, lambda t: -gap(t), "mean", over)
    return [0.0 if t.a < 0 and x > delta else 1.0 for t, x in zip(row, means, strict=True)]


def decoupled(row: Row, cap: float = 5.0, above: str = "cap") -> list[float]:
    ratios = [math.exp(bounded(gap(t))) for t in row]
    return [x if x <= cap else (cap if above == "cap" else 0.0) for x in ratios]


def normalised(rows: list[Row], of: Callable[[Row], list[float]]) -> list[list[float]]:
    """To a mean of 1 over what is inside the loss and not taken out."""
    weights = [of(row) for row in rows]
    inside = [
        w
        for row, ws in zip(rows, weights, strict=True)
        for t, w in zip(row, ws, strict=True)
        if t.weight > 0 and w > 0
    ]
    factor = min(10.0, len(inside) / sum(inside)) if inside and sum(inside) else 1.0
    return [[factor * w for w in ws] for ws in weights]
