"""The exception tree. A user's fault carries what, where, the rule and the remedy, in one line."""

from __future__ import annotations


class SluiceError(Exception):
    """Anything that Sluice raises on purpose."""


class ConfigError(SluiceError):
    """The input is at fault: the process prints the line and exits 2."""

    def __init__(self, where: str, value: object, *, rule: str, remedy: str) -> None:
        """`where` is a key or a file, `value` what stood there; rule and remedy are phrases."""
        shown = "" if value is None else f" = {_short(value)}"
        super().__init__(f"{where}{shown}: {rule}; {remedy}")
        self.where, self.value, self.rule, self.remedy = where, value, rule, remedy

    def __reduce__(self) -> tuple[object, ...]:
        """An exception is pickled as its one message: a pool's worker could not send this one."""
        parts = (type(self), self.where, self.value, self.rule, self.remedy)
        return _config_error, parts


class Unusable(ConfigError):
    """One example of a data set, or the rewards of one group: it costs these, and the run goes on.

    The example ends as a dead letter by its reason, of few values, the group as `scorer_error`.
    """

    def __init__(
        self, where: str, value: object, *, rule: str, remedy: str, reason: str = "unreadable"
    ) -> None:
        super().__init__(where, value, rule=rule, remedy=remedy)
        self.reason = reason


class DecodeError(SluiceError):
    """A message that this release cannot read; names both versions."""


class Gone(SluiceError):
    """This boot was declared dead: drop all work and go on under a new boot."""


class Fenced(SluiceError):
    """A trainer with a higher epoch leads the run: exit 3."""


class EngineLost(SluiceError):
    """An engine that cannot go on: what it has in hand is handed back, and its process ends."""


class WeightsError(SluiceError):
    """A version that cannot be staged: the old one keeps serving."""


def _config_error(
    kind: type[ConfigError], where: str, value: object, rule: str, remedy: str
) -> ConfigError:
    return kind(where, value, rule=rule, remedy=remedy)


def _short(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
