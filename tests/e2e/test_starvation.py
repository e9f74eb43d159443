"""A tenth of the prompts is five times as slow: held for they are trained, else they are named."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slow_task import SLOW
from stream import MODEL, read_report, start

from pipeline.bus.bus import Bus
from pipeline.config import dump
from pipeline.run import Run
from pipeline.watch import explain

pytestmark = pytest.mark.long

STEPS, SHARE = 24, 0.1


def write(folder: Path, name: str, pace: str) -> Path:
    rng, lines = random.Random(1), []
    for number in range(400):
        text = "".join(rng.choice("abcdefgh") for _ in range(4))
        task = SLOW if number % 10 == 0 else "quick"
        lines.append(json.dumps({"prompt": text, "reference": "0", "task": task}))
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    run: dict[str, Any] = {
        "name": name,
        "steps": STEPS,
        "model": {"path": str(MODEL)},
        "data": {"use": "jsonl", "path": "prompts.jsonl"},
        "groups": {"members": 2, "per_step": 8},
        "sampling": {"max_tokens": 12},
        "lag": {"max": 2, "unit": "sample", "pace": pace},
        "inference": {"engine": {"use": "slow_task:build", "seconds": 0.03}},
        "scoring": {"scorers": ["slow_task:Letters"]},
        "training": {"learning_rate": 1e-5, "pack_tokens": 512},
    }
    path = folder / "run.toml"
    path.write_text(dump(msgspec.convert(run, Run)))
    return path


@pytest.mark.parametrize("pace", ["hold", "refuse"])
def test_held_for_a_slow_task_keeps_its_share_and_refused_it_is_named(
    tmp_path: Path, server_url: str, run_name: str, pace: str
) -> None:
    up = start(tmp_path, "up", str(write(tmp_path, run_name, pace)), "--redis", server_url)
    out, err = up.communicate(timeout=100)
    assert up.returncode == 0, out + err
    trained = {"slow": 0, "quick": 0}
    lines = (tmp_path / "runs" / run_name / "metrics.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        for by, name, members in line["trained_by"]:
            if by == "task":
                trained[name] += members
    share = trained["slow"] / sum(trained.values())
    least = json.loads(lines[-1])["least_share"]["task"]
    print(f"pace={pace}: {share:.1%} of the trained members, {SHARE:.0%} of the data, {least=}")
    bus = Bus.connect(server_url, run_name)
    said = [one for one in explain(bus.snapshot()) if "is starved" in one]
    bus.purge()
    print(said)
    if pace == "hold":
        assert share >= 0.8 * SHARE and not said
    else:
        assert share < 0.5 * SHARE and least < 0.5 and said[0].startswith("task 'slow'")
        told = read_report(tmp_path, run_name)["least_shares"]
        assert {"by": "task", "name": SLOW, "share": least} in told
