"""What scorers are shown, may answer and add up to, the same in scoring and in evaluation.

Where a scorer runs, and how long it may take, is theirs. Torch-free.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.families import SHAPING, TEACHING
from pipeline.flaws import LARGEST_LOGPROB
from pipeline.kept import is_known
from pipeline.messages import Completion, Prompt, Teaching
from pipeline.plugins import name_of
from pipeline.protocols import Answer, Drawn, Verdict
from pipeline.run import Spec

AT = "scoring.scorers"
LONGEST_DETAIL = 200
MOST_LEVELS = 500
"""Of a reference: what is nested deeper might be read here, and not be written to a worker."""
FAULTS = ("timeout", "raised", "crashed", "bad_verdict", "unavailable")
"""Why there is no verdict."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
LAST_TRY_SECONDS = 120.0
"""No try begins later after the first one: told to wait for longer, an answer is given up."""
LONGEST = 1_000_000
"""Seconds, or minutes: what is longer is a slip, or infinite."""


class Term(NamedTuple):
    """A scorer in the total: its reward times `weight`, or a gate, which lets the others count.

    One in the shadow is no part of it: scored and logged, and never trained on. At most
    `concurrency` answers are with it at once, each for `timeout_seconds`; 0: as [scoring] has it.
    `golden` is the file of its golden set, if it has one, which is asked again after so many
    minutes; 0: never.
    """

    spec: Spec
    weight: float = 1.0
    is_gate: bool = False
    is_shadow: bool = False
    concurrency: int = 0
    timeout_seconds: float = 0.0
    golden: str = ""
    golden_minutes: float = 10.0


KEYS: dict[str, Any] = {
    "weight": float,
    "gate": bool,
    "shadow": bool,
    "concurrency": Annotated[int, Meta(ge=1)],
    "timeout_seconds": Annotated[float, Meta(gt=0, le=LONGEST)],
    "golden": Annotated[str, Meta(min_length=1)],
    "golden_minutes": Annotated[float, Meta(ge=0, le=LONGEST)],
}
"""What stands beside `use` and is no option of the scorer."""


def terms(specs: Sequence[Spec]) -> list[Term]:
    """The scorers of a run; KEYS stand beside `use`, and are no scorer's options.

    Raises ConfigError for values of another kind, where nothing is left that could be a reward,
    where the first that is no gate cannot tell a good answer from a bad one, and for a gate or a
    shadow that can be neither.
    """
    found = [term_of(spec, f"{AT}[{number}]") for number, spec in enumerate(specs)]
    if all(term.is_gate or term.is_shadow for term in found):
        rule, remedy = "every scorer is a gate or a shadow", "add a scorer that is neither"
        raise ConfigError(AT, None, rule=rule, remedy=remedy)
    for number, term in enumerate(found):
        _check_part(term, f"{AT}[{number}]")
    _check_outcome(found)
    return found


def called(found: Sequence[Term]) -> list[str]:
    """Their names in a run, and for the second of a name name#2: parts are told apart by it."""
    seen: Counter[str] = Counter()
    names = []
    for term in found:
        name = name_of(term.spec, AT)
        seen[name] += 1
        names.append(f"{name}#{seen[name]}" if seen[name] > 1 else name)
    return names


def outcome_term(found: Sequence[Term]) -> Term:
    """The first that is no gate and no shadow: its outcome is the member's."""
    return next(term for term in found if not term.is_gate and not term.is_shadow)


def total(found: Sequence[Term], verdicts: Sequence[Verdict]) -> Verdict:
    """The sum of weight times reward, 0 where a gate gave 0; raises Fault if it is not finite.

    Shadows are not among them.
    """
    pairs = [*zip(found, verdicts, strict=True)]
    shut = any(term.is_gate and verdict.reward == 0 for term, verdict in pairs)
    counted = [(term.weight, verdict) for term, verdict in pairs if not term.is_gate]
    reward = 0.0 if shut else sum(weight * verdict.reward for weight, verdict in counted)
    taught = [verdict.teaching for verdict in verdicts if verdict.teaching]
    if len(taught) > 1:
        raise Fault("bad_verdict", "two scorers teach, and a token has one teacher")
    return checked(
        Verdict(
            reward=reward, outcome=counted[0][1].outcome, teaching=taught[0] if taught else None
        )
    )


def _check_part(term: Term, at: str) -> None:
    """Raises ConfigError for a gate that would be shut for good answers, and for a teacher that
    nobody would hear.
    """
    name = _name(term)
    if term.is_gate and name in (*SHAPING, TEACHING):
        rule, remedy = "gives 0 to good answers, and a gate of 0 is shut", "leave out gate"
        raise ConfigError(f"{at}.gate", True, rule=f"{name} {rule}", remedy=remedy)
    if term.is_shadow and name == TEACHING:
        rule, remedy = "of a teacher in the shadow nothing is learnt", "leave out shadow"
        raise ConfigError(f"{at}.shadow", True, rule=rule, remedy=remedy)


def _check_outcome(found: Sequence[Term]) -> None:
    """Raises ConfigError where every reward would be 0, or every outcome, though one could say
    more.
    """
    counted = [term for term in found if not term.is_gate and not term.is_shadow]
    if not any(term.weight or _name(term) == TEACHING for term in counted):
        rule, remedy = "every weight is 0, and so is every reward", "weigh one of them"
        raise ConfigError(AT, None, rule=rule, remedy=remedy)
    names = [
        (number, _name(term))
        for number, term in enumerate(found)
        if not term.is_gate and not term.is_shadow
    ]
    number, first = names[0]
    graders = [name for _, name in names if name not in (*SHAPING, TEACHING)]
    if first in SHAPING or (first == TEACHING and graders):
        rule = "its outcome is 0 for every answer, and the first that is no gate gives the outcome"
        remedy = f"name {graders[0]} before it" if graders else "name one that grades before it"
        raise ConfigError(f"{AT}[{number}]", first, rule=rule, remedy=remedy)


def _name(term: Term) -> str:
    return term.spec if isinstance(term.spec, str) else str(term.spec.get("use", ""))


def term_of(spec: Spec, at: str) -> Term:
    """One scorer, whatever the others are; raises ConfigError for KEYS of another kind."""
    if isinstance(spec, str):
        return Term(spec)
    keys = {k: _converted(KEYS[k], v, f"{at}.{k}") for k, v in spec.items() if k in KEYS}
    term = Term(
        {key: value for key, value in spec.items() if key not in KEYS},
        weight=keys.get("weight", 1.0),
        is_gate=keys.get("gate", False),
        is_shadow=keys.get("shadow", False),
        concurrency=keys.get("concurrency", 0),
        timeout_seconds=keys.get("timeout_seconds", 0.0),
        golden=keys.get("golden", ""),
        golden_minutes=keys.get("golden_minutes", 10.0),
    )
    _check_weight(term, spec, at)
    return term


def _check_weight(term: Term, spec: Mapping[str, Any], at: str) -> None:
    """Raises ConfigError for one that is none, or that stands where nothing is added."""
    if not math.isfinite(term.weight):
        remedy = "give a finite number"
        raise ConfigError(f"{at}.weight", term.weight, rule="is no weight", remedy=remedy)
    silent = [key for key in ("gate", "shadow") if spec.get(key)]
    if silent and (len(silent) > 1 or "weight" in spec):
        rule = "of weight, gate and shadow a scorer has one"
        raise ConfigError(f"{at}.{silent[-1]}", True, rule=rule, remedy="leave out the others")


def _converted(kind: Any, value: object, at: str) -> Any:
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as exc:
        raise ConfigError(at, value, rule=str(exc), remedy="change the value") from exc


class Fault(Exception):
    """An answer that got no verdict, and why.

    The reason, one of FAULTS, is what faults are counted by; of a scorer's own word it is "raised".
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        if reason not in FAULTS:
            reason, detail = "raised", f"{reason}: {detail}"
        self.reason, self.detail = reason, _writable(" ".join(detail.split())[:LONGEST_DETAIL])
        super().__init__(f"{reason}: {self.detail}" if self.detail else reason)


class Passing(Fault):
    """A fault of something outside that may be gone at the next try: the scorer is asked again.

    After `after` seconds where that was told, as by Retry-After. What is left is counted by its
    `reason`.
    """

    def __init__(
        self, detail: str = "", *, after: float | None = None, reason: str = "unavailable"
    ) -> None:
        self.after = after
        super().__init__(reason, detail)

    def pause(self, number: int) -> float:
        """Seconds before try `number` + 2, spread by chance, since what failed together should not
        come back together: growing from try to try, and at least as many as were told.
        """
        most = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number)
        return max(self.after or 0.0, 0.0) + random.uniform(most / 2, most)


def answer_of(prompt: Prompt, completion: Completion, decode: Callable[[bytes], str]) -> Answer:
    """A member as its scorer sees it; `decode` turns ids (int32) into text.

    The prompt's text is that of its ids, and so what the policy read. Raises whatever `decode`
    does, msgspec.DecodeError for a reference that is no JSON, ValueError for one that is too deep.
    """
    reference = msgspec.json.decode(prompt.reference)
    if prompt.reference.count(b"[") + prompt.reference.count(b"{") > MOST_LEVELS:
        _check_levels(reference)
    return Answer(
        text=decode(completion.ids),
        prompt=decode(prompt.ids),
        reference=reference,
        finish=completion.finish or "",
        task=prompt.task,
        ids=tuple(memoryview(completion.ids).cast("i")),
        max_tokens=prompt.sampling.max_tokens,
        drawn=Drawn(
            prompt=prompt.ids,
            logprobs=completion.logprobs,
            temperature=prompt.sampling.temperature,
            kept=completion.kept,
        ),
    )


def _check_levels(reference: object) -> None:
    level = [reference]
    for _ in range(MOST_LEVELS):
        tables = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [one for table in tables if isinstance(table, list) for one in table]
        if not level:
            return
    raise ValueError(f"the reference is nested deeper than {MOST_LEVELS} levels")


def version_of(scorer: object) -> str:
    """What its results are told apart by; functions have theirs behind their bound options."""
    return str(getattr(getattr(scorer, "func", scorer), "version", "1"))


def batch_of(scorer: object) -> int:
    """How many answers it takes in one call, as a list; 0: one, and no list."""
    batch = getattr(scorer, "batch", 0)
    return batch if isinstance(batch, int) and batch > 0 else 0


def raised(exc: BaseException) -> Fault:
    """The fault of a scorer that raised; its message is a stranger's as well, and may raise."""
    try:
        return Fault("raised", f"{type(exc).__name__}: {exc}")
    except Exception:  # one message, of which the kind is told
        return Fault("raised", type(exc).__name__)


def checked(answer: object) -> Verdict:
    """The scorer's answer as a verdict of two finite numbers; raises Fault otherwise.

    Also where what a teacher said cannot be: its parts must fit to each other.
    """
    if not isinstance(answer, Verdict):
        reward = _number(answer, "the reward")
        return Verdict(reward=reward, outcome=reward)
    reward = _number(answer.reward, "the reward")
    outcome = reward if answer.outcome is None else _number(answer.outcome, "the outcome")
    if answer.teaching and (why := teaching_flaw(answer.teaching)):
        raise Fault("bad_verdict", f"of what the teacher said {why}")
    if not isinstance(answer.reason, str):
        raise Fault("bad_verdict", f"the reason is {answer.reason!r:.80}, which is no text")
    reason = _writable(answer.reason[:LONGEST_DETAIL])
    return Verdict(reward=reward, outcome=outcome, reason=reason, teaching=answer.teaching)


def teaching_flaw(teaching: Teaching, *, tokens: int | None = None, vocabulary: int = 0) -> str:
    """Why nothing can be learnt from it, or "": of `tokens` tokens, of that many ids, if known."""
    given = len(teaching.logprobs) // 4 if tokens is None else tokens
    if len(teaching.logprobs) != 4 * given:
        return "the log-probs are not one a token"
    if len(teaching.top_ids) != len(teaching.top_logprobs) or (
        len(teaching.top_ids) % (4 * given) if given else teaching.top_ids
    ):
        return "the likeliest ids and their log-probs are not as many for each token"
    single, top = (np.frombuffer(raw, "<f4") for raw in (teaching.logprobs, teaching.top_logprobs))
    if not np.isfinite(single).all() or np.isnan(top).any():
        return "a log-prob is no number"
    if max(single.max(initial=-1.0), top.max(initial=-1.0)) > LARGEST_LOGPROB:
        return "a log-prob is positive"
    if vocabulary and not is_known(teaching.top_ids, vocabulary):
        return "a likeliest id is unknown to the policy"
    return ""


def _writable(text: str) -> str:
    """Others' words may hold lone surrogates, which have no UTF-8 and so no way to travel."""
    return text.encode("utf-8", "replace").decode()


def _number(value: object, what: str) -> float:
    if not isinstance(value, Real):
        raise Fault("bad_verdict", f"{what} is {value!r:.80}, of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Fault("bad_verdict", f"{what} is {number}")
    return number
