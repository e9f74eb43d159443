"""A whole run in which each service has a user of its own, and what its processes say meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from servers import Server, running
from stream import FAKE, start, write_run

from pipeline.bus.acl import rules
from pipeline.bus.connection import client_of

SERVICES = ("scoring", "inference", "training", "prompting")
"""The first two may not open the run, and wait for the others where they are faster."""
EXPECTED = (b"client|setinfo", b"sluice:{run}:state")
"""The driver goes on without the one, and who waits for the run to be opened tries the other."""
FORMS = {"scoring": "json", "inference": "text", "training": "json", "prompting": "text"}
TEXT = re.compile(
    r"time=\S+ level=\w+ run=run service=(\w+) instance=\1@here version=(-?\d+) logger=[\w.]+"
    r' message=("(?:[^"\\]|\\.)*"|[^\s"]+)'
)


class Done(NamedTuple):
    """Exit codes and standard error by service; what the server refused; the watcher's doctor."""

    codes: dict[str, int]
    said: dict[str, str]
    refused: list[str]
    doctor: tuple[int, str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    folder = tmp_path_factory.mktemp("users")
    write_run(folder, top={"steps": 2}, **FAKE)
    with running() as server, client_of(server.url) as admin:
        for rule in rules("run"):
            admin.execute_command(*rule.split(), ">open")
        processes = {
            service: start(
                folder, service, "run.toml", "--redis", _url(server, service),
                "--instance", f"{service}@here", "--log-format", FORMS[service],
            )
            for service in SERVICES
        }  # fmt: skip
        try:
            said = {service: p.communicate(timeout=90)[1] for service, p in processes.items()}
        finally:
            for process in processes.values():
                process.kill()
        watcher = start(folder, "doctor", "run.toml", "--redis", _url(server, "watch"))
        sheet, _ = watcher.communicate(timeout=30)
        rows = admin.execute_command("ACL", "LOG")
        fields = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        yield Done(
            codes={service: process.returncode for service, process in processes.items()},
            said=said,
            refused=[f"{f}" for f in fields if f[b"object"] not in EXPECTED],
            doctor=(watcher.returncode, sheet),
        )


def _url(server: Server, user: str) -> str:
    return f"unix://run-{user}:open@{server.socket}"


def test_each_user_s_rules_are_enough_for_a_whole_run(done: Done) -> None:
    assert done.codes == dict.fromkeys(SERVICES, 0), done.said
    assert done.refused == []
    code, sheet = done.doctor
    assert (code, "step 2, batch 2" in sheet) == (0, True), sheet


def test_every_line_says_who_wrote_it_and_at_which_version(done: Done) -> None:
    versions: dict[str, set[str]] = {service: set() for service in SERVICES}
    for service, form in FORMS.items():
        for line in done.said[service].splitlines():
            if form == "json":
                fields = json.loads(line)
                assert fields["run"] == "run" and fields["instance"] == f"{service}@here"
                assert fields["service"] == service and fields["message"] and fields["time"]
                versions[service].add(str(fields["version"]))
            else:
                found = TEXT.fullmatch(line)
                assert found and found[1] == service, line
                versions[service].add(found[2])
    assert versions["training"] >= {"-1", "1", "2"} and "2" in versions["inference"]
