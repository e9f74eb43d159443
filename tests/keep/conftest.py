"""A run played by hand on a real server, and the commands of its keeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from acts import Acts
from click.testing import Result
from keeper import Sluice
from typer.testing import CliRunner

from pipeline.bus.bus import Bus
from pipeline.messages import Beat
from services.cli import app

SERVICES = ("prompting", "inference", "scoring", "training")

RUN = """
name = "{name}"
steps = 10
data = "jsonl"
model = {{ path = "owner/model", dtype = "bfloat16" }}
"""


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server_url, protocol=2) as client:
        yield client


@pytest.fixture
def acts(server_url: str, client: redis.Redis, run_name: str) -> Iterator[Acts]:
    """A run that an engine, e:1, has begun to work on."""
    with closing(Bus.connect(server_url, run_name)) as bus:
        yield Acts(bus, client, run_name)
        bus.purge()


@pytest.fixture
def manned(acts: Acts) -> Acts:
    """One process of each service beats."""
    for service in SERVICES:
        acts.bus.beat(Beat(service=service, instance=f"{service}-0", boot=f"{service}-0:t"))
    return acts


@pytest.fixture
def sluice(
    tmp_path: Path, server_url: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> Sluice:
    """A command on the run's TOML, in a folder of its own, with this server as $SLUICE_REDIS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_REDIS", server_url)
    (tmp_path / "run.toml").write_text(RUN.format(name=run_name))

    def invoke(command: str, *arguments: str, **options: object) -> Result:
        return CliRunner().invoke(app, [command, "run.toml", *arguments], **options)

    return invoke
