"""Each line of a log can be parsed, and says who wrote it."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from up_made import RUN

from pipeline.logs import Lines, LogFormat, in_text
from services.up.placement import Process, place
from services.up.spawn import Spawner
from services.up.supervisor import Child

ROOT = Path(__file__).resolve().parents[2]
WHO = {"run": "demo", "service": "scoring", "instance": "scoring@host 1"}
FIELDS = ["time", "level", "run", "service", "instance", "version", "logger", "message"]
PAIR = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


def parsed(form: str, line: str) -> dict[str, str]:
    """A line as whoever collects logs would read it."""
    if form == "json":
        return {key: str(value) for key, value in json.loads(line).items()}
    assert PAIR.sub("", line) == "", line
    pairs = PAIR.findall(line)
    return {key: json.loads(value) if value[0] == '"' else value for key, value in pairs}


def lines(form: LogFormat, message: str, **more: object) -> list[str]:
    """What a handler writes of one record."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(made := Lines(form, **WHO))
    made.version = lambda: 12
    handler.handle(logging.LogRecord("a.module", logging.WARNING, "", 1, message, (), **more))
    return out.getvalue().split("\n")


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize(
    "message",
    ["plain", "two words", 'a "quoted" word', "first\nsecond\r\nthird", "k=v", "", "\\", "naïve é",
     "a\tb\x00c", "\x1b[31m", "\u2028\x85", "step=3 reward=0.5"],
)  # fmt: skip
def test_every_message_is_one_line_and_comes_back_whole(form: LogFormat, message: str) -> None:
    line, rest = lines(form, message, exc_info=None)
    assert rest == "" and len(line.splitlines()) == 1 and line.isprintable()
    fields = parsed(form, line)
    assert list(fields) == FIELDS
    assert fields | WHO == fields
    assert (fields["message"], fields["version"], fields["level"]) == (message, "12", "warning")
    assert fields["time"].endswith("+00:00")


@given(st.text())
def test_any_message_at_all(message: str) -> None:
    for form in LogFormat:
        line, _ = lines(form, message, exc_info=None)
        assert parsed(form, line)["message"] == message


@pytest.mark.parametrize("form", LogFormat)
def test_a_traceback_is_a_field_of_its_line(form: LogFormat) -> None:
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        line, _ = lines(form, "it went wrong", exc_info=sys.exc_info())
    fields = parsed(form, line)
    assert fields["message"] == "it went wrong"
    assert fields["traceback"].endswith("ValueError: of two\nlines")


def test_a_rank_says_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert parsed("json", lines(LogFormat.JSON, "x", exc_info=None)[0])["rank"] == "3"


ENDINGS = {
    "bad input": ("raise SystemExit(exit_code(refuse))", 2, "a.key = 3: too many; take fewer"),
    "a bug": ("1 / 0", 1, "ZeroDivisionError: division by zero"),
    "a warning before": (
        "import warnings; warnings.warn('of\\nlines'); raise SystemExit(exit_code(refuse))",
        2,
        "a.key = 3: too many; take fewer",
    ),
}
PROGRAM = """
from pipeline.errors import ConfigError
from pipeline.logs import LogFormat, configure_logs
from pipeline.serve import exit_code
def refuse():
    raise ConfigError("a.key", 3, rule="too many", remedy="take fewer")
configure_logs(LogFormat("{form}"), run="demo", service="scoring", instance="scoring-0")
{end}
"""


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("ending", ENDINGS)
def test_up_quotes_the_last_words_in_either_form(
    form: LogFormat, ending: str, tmp_path: Path
) -> None:
    log = tmp_path / "scoring-0.log"
    end, code, words = ENDINGS[ending]
    program = PROGRAM.format(form=form.value, end=end)
    with log.open("wb") as output:
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stderr=output, check=False)
    assert done.returncode == code
    if form is LogFormat.JSON:
        for line in log.read_text().splitlines():
            assert parsed("json", line).items() >= {"run": "demo", "instance": "scoring-0"}.items()
    process = Process(service="scoring", instance="scoring-0", argv=(), environment={}, log=log)
    assert Child(process, Spawner()).last_words() == f": {words}"


@pytest.mark.parametrize(
    "line", ["{", '{"a": 1}', "{not json}", '{"logger": "a.b", "message": "c"}']
)
def test_a_line_that_says_no_reason_stays_as_it_is(line: str) -> None:
    assert in_text(line) == line


def test_up_tells_its_children_the_form() -> None:
    for process in place(RUN, Path("runs/made"), "unix:///s", log_format=LogFormat.JSON):
        assert ("--log-format", "json") in zip(process.argv, process.argv[1:], strict=False)
