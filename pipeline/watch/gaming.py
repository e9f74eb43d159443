"""Whether a reward is being gamed: the signs of it that a trainer counts, and from where on each is
told. Pure; how they are counted is the training service's.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from msgspec import Struct

from pipeline.watch.finding import Finding
from pipeline.watch.look import Snapshot
from pipeline.watch.seen import Seen, labelled, newest

LENGTH = 0.5
"""Of the correlation, either way: length alone then explains a quarter of what the rewards of one
group differ by. Where longer answers are right more often it stays below 0.3 or so."""
ATTEMPTS, BELOW_BEST, PROMPTS = AMONG = ("attempts", "below_best", "prompts")
REPEATED = {BELOW_BEST: 0.8, PROMPTS: 0.8}
"""Of ten attempts eight only repeat another and are not right either; or so many answers are one.
Of what is right all attempts are alike where there is one way to write it, and in yes or no one
answer comes to about a half: both are as it should be."""
DIVERGENCE = 5.0
"""Standard errors. The best of many blocks is good by chance, too: of 200 simulated runs of 1,000
steps with a shadow that knows nothing 28 came to four, and none to five."""

LENGTH_GAUGE = "length_correlation_ratio"
REPEATED_GAUGE = "repeated_ratio"
DIVERGENCE_GAUGE = "shadow_divergence_ratio"

_REPEATS = {
    BELOW_BEST: "the attempts at a prompt only repeat another, and are not right",
    PROMPTS: "all answers are one and the same, whatever was asked",
}


class Signs(Struct, frozen=True, kw_only=True):
    """Over the last steps; None where too little was counted, or nothing differs.

    `length` is the correlation of reward and length within groups. `repeated` has the share of
    `attempts` that only repeat another at the same prompt, that of those which are `below_best` as
    well, and, of all answers, of the one most often given to different `prompts`. `divergence` is,
    by shadow scorer, by how many standard errors the reward rose and the shadow fell, the lesser of
    both.
    """

    length: float | None = None
    repeated: dict[str, float | None] = {}
    divergence: dict[str, float | None] = {}


def suspicions(signs: Signs) -> Iterator[tuple[str, str]]:
    """Of what to be suspicious: of whom, and a sentence."""
    if signs.length is not None and abs(signs.length) > LENGTH:
        pays = "long" if signs.length > 0 else "short"
        yield (
            "length",
            f"{pays} answers pay: {_told(signs.length)} is the correlation of reward"
            " and length within a group",
        )
    for among, limit in REPEATED.items():
        share = signs.repeated.get(among)
        if share is not None and share > limit:
            yield among, f"{share:.0%} of {_REPEATS[among]}"
    for scorer, sigmas in signs.divergence.items():
        if sigmas is not None and sigmas > DIVERGENCE:
            yield (
                f"shadow {scorer}",
                f"the reward rises while its shadow {scorer} falls, by"
                f" {sigmas:.1f} standard errors each or more",
            )


def gaming(snapshot: Snapshot) -> Iterator[Finding]:
    """What looks as if the policy pleased its scorers in another way than was meant."""
    for seen in newest(snapshot.beats):
        for who, sentence in suspicions(signs_of(seen)):
            told = f"the reward may be gamed: {sentence}"
            yield Finding("gaming", who, told, grave=False)


def signs_of(seen: Seen) -> Signs:
    """As the gauges of a trainer's beat have them; a gauge that is no number says nothing."""
    gauges = seen.beat.gauges
    return Signs(
        length=_known(gauges.get(LENGTH_GAUGE)),
        repeated={name: _known(v) for name, v in labelled(gauges, REPEATED_GAUGE).items()},
        divergence={name: _known(v) for name, v in labelled(gauges, DIVERGENCE_GAUGE).items()},
    )


def _known(value: float | None) -> float | None:
    return None if value is None or isnan(value) else value


def _told(correlation: float) -> str:
    return f"{correlation:+.2f}"
