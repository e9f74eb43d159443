"""Examples that nobody can attempt, among good ones, in a whole run of real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis
from stream import FAKE, read_report, start, write_run

from pipeline.bus.bus import Bus
from pipeline.bus.keys import Keys

pytestmark = pytest.mark.slow


def test_C077_bad_examples_end_as_dead_letters_and_the_run_goes_on(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    """The context holds 256 tokens; an engine of this run, 200; the tokenizer knows no `?`.

    Two that are found by prompting, and one by the engine, of twelve.
    """
    path = write_run(
        tmp_path,
        prompts=9,
        top={"name": run_name, "steps": 100},
        inference={"engine": FAKE["inference"]["engine"] | {"max_length": 200}},
        scoring=FAKE["scoring"],
    )
    with (tmp_path / "prompts.jsonl").open("a") as lines:
        for prompt in ("1" * 300, "a?b", "1" * 220):
            lines.write(json.dumps({"prompt": prompt, "reference": "x"}) + "\n")
    up = start(tmp_path, "up", str(path), "--redis", server_url)
    out, err = up.communicate(timeout=110)
    assert up.returncode == 0, out + err
    bus = Bus.connect(server_url, run_name)
    numbers: dict[str, float] = {}
    for seen in bus.snapshot().beats:
        if seen.beat.service == "prompting":
            numbers = dict(seen.beat.totals)
    with redis.Redis.from_url(server_url) as server:
        dead = [fields[b"reason"].decode() for _, fields in server.xrange(Keys(run_name).dead)]
    found_by_prompting, long, found_by_the_engine = sorted(dead)
    assert found_by_prompting.startswith("not_encoded: data, example 10 = 'a?b': the tokenizer has")
    assert "its prompt has 300 tokens, the context holds 256" in long
    assert "has 220 prompt tokens, the context holds 200" in found_by_the_engine
    assert bus.state().cursor == 12 and bus.state().eof
    bus.purge()
    bus.close()
    assert numbers['unusable_groups{reason="prompt_too_long"}'] == 1
    assert numbers['unusable_groups{reason="not_encoded"}'] == 1
    report = read_report(tmp_path, run_name)
    assert report["outcome"] == "done" and report["balanced"]
