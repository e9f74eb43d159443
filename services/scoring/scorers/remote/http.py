"""A scorer in any language, behind HTTP: an answer is posted as JSON, a reward comes back.

The schema is in docs/scorers.md, a server that speaks it in examples/scorer_server.py; how it is
asked is in `client`.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Fault, Passing
from services.scoring.scorers.remote.client import Client, strict_object

SCHEMA = 1
"""Of the request; raised when a field changes its meaning. One that is new changes nothing."""

KEYS = {"reward", "outcome", "reason"}


class Http:
    """The verdict of the service at `url`, to which one answer is posted at a time.

    `version` is that of the service's verdicts, for you to raise when they change; `key_variable`
    names the environment variable with the key, sent as a bearer token.
    """

    def __init__(self, *, url: str, version: str = "1", key_variable: str = "") -> None:
        """Asks nothing yet, since a service may come later. Raises ConfigError."""
        self._client, self.version = Client(url, key_variable=key_variable), version

    async def __call__(self, answer: Answer) -> Verdict:
        """Raises Passing for what may be gone at the next try, and else Fault."""
        reply = await self._client.ask(
            {
                "version": SCHEMA,
                "text": answer.text,
                "prompt": answer.prompt,
                "reference": answer.reference,
                "task": answer.task,
                "finish": answer.finish,
                "max_tokens": answer.max_tokens,
            }
        )
        try:
            found = strict_object(reply)
        except ValueError as exc:  # cut, or from what stands before the service
            raise Passing(str(exc), reason="bad_verdict") from exc
        return _verdict(found)


def _verdict(found: dict[str, Any]) -> Verdict:
    """Raises Fault for what the schema does not know: a misspelt key would be no key."""
    if unknown := sorted(found.keys() - KEYS):
        raise Fault("bad_verdict", f"a verdict has no {unknown[0]!r:.40}")
    reward = _number(found.get("reward"), "reward")
    outcome = _number(found["outcome"], "outcome") if "outcome" in found else None
    reason = found.get("reason", "")
    if not isinstance(reason, str) or not reason.isprintable():
        raise Fault("bad_verdict", f"the reason is {reason!r:.40}, which is no text in one line")
    return Verdict(reward=reward, outcome=outcome, reason=reason)


def _number(value: object, what: str) -> float:
    """JSON's true and false are no numbers, though Python's are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Fault("bad_verdict", f"the {what} is {value!r:.40}, which is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Fault("bad_verdict", f"the {what} is not finite")
    return number
