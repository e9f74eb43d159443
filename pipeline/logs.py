"""How the log of a process reads: one line an event, with who says it. What is said is others'.

As key=value pairs, where a value with spaces, quotes or line breaks is written as JSON has it; or
each line a JSON object. Libraries speak through the same lines, and so do warnings.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType

OWN = "sluice"
SAYS_WHY = f"{OWN}: "
"""How the last line begins that a process prints where an error ends it."""

_BARE = re.compile(r'[^\s"\\=]+')
_RANK = "RANK"  # torchrun's


class LogFormat(StrEnum):
    """What --log-format takes."""

    TEXT = "text"
    JSON = "json"


class Lines(logging.Formatter):
    """A record as one line; `version` is asked for each, and -1 before there is one."""

    def __init__(self, form: LogFormat, **who: str) -> None:
        super().__init__()
        self.form = form
        self.version: Callable[[], int] = lambda: -1
        rank = {"rank": os.environ[_RANK]} if _RANK in os.environ else {}
        self._who = who | rank

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break in it."""
        when = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, str | int] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._who,
            "version": self.version(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self.form is LogFormat.JSON:
            return json.dumps(fields)
        return " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())


def configure_logs(
    form: LogFormat = LogFormat.TEXT, *, level: int = logging.INFO, **who: str
) -> None:
    """Everything to standard error; `who` is the run, the service and the instance."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(form, **who))
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
    if form is LogFormat.JSON:
        sys.excepthook = _log_uncaught


def log_version(source: Callable[[], int]) -> None:
    """From here on each line says which weights the process is at."""
    for lines in _lines():
        lines.version = source


def say_why(reason: str) -> None:
    """The last line of a process that an error ends; `up` reads it again."""
    if any(lines.form is LogFormat.JSON for lines in _lines()):
        logging.getLogger(OWN).error("%s", reason)
    else:
        print(f"{SAYS_WHY}{reason}", file=sys.stderr, flush=True)


def in_text(line: str) -> str:
    """The last line of a log as it would end in text; what is not ours stays as it is."""
    try:
        fields = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return line
    if trace := fields.get("traceback"):
        return str(trace).rstrip().rpartition("\n")[2]
    if fields.get("logger") == OWN:
        return f"{SAYS_WHY}{fields.get('message')}"
    return line


def _lines() -> list[Lines]:
    made = (handler.formatter for handler in logging.getLogger().handlers)
    return [lines for lines in made if isinstance(lines, Lines)]


def _log_uncaught(
    kind: type[BaseException], exc: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger(OWN).critical("it ends by an error", exc_info=(kind, exc, trace))


def _quoted(value: str) -> str:
    if _BARE.fullmatch(value) and value.isprintable():
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())
