"""Parquet and Hugging Face data sets: any row for the asking, and what is wrong is told by name."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, Unusable
from pipeline.families import DATASETS
from pipeline.plugins import build
from pipeline.protocols import ChatMessage, Example

CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}]
ROWS = [
    {"prompt": "a", "reference": 1, "task": "t"},
    {"prompt": "b", "reference": 2, "task": None},
    {"prompt": "c", "reference": 3, "task": "u"},
]

Write = Callable[[list[dict[str, Any]]], dict[str, Any]]


def as_parquet(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return {"use": "parquet", "path": str(path)}


def as_saved(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    path = folder / "saved"
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(path)
    return {"use": "hf", "name": str(path)}


def as_json(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"use": "hf", "name": str(path)}


def as_parquet_through_hf(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    return {"use": "hf", "name": as_parquet(rows, folder)["path"]}


@pytest.fixture(params=[as_parquet, as_saved, as_json, as_parquet_through_hf])
def written(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Write:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def write(rows: list[dict[str, Any]]) -> dict[str, Any]:
        folder = tmp_path / str(random.getrandbits(64))
        folder.mkdir()
        spec: dict[str, Any] = request.param(rows, folder)
        return spec

    return write


def opened(spec: dict[str, Any], **more: Any) -> Any:
    return build(DATASETS, spec | more, at="data")


def refusal(spec: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        opened(spec, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_examples_are_read_by_their_place_in_any_order(written: Write) -> None:
    data = opened(written(ROWS))
    assert len(data) == 3
    assert data[2] == Example(prompt="c", reference=3, task="u")
    assert data[0] == Example(prompt="a", reference=1, task="t")
    assert data[1] == Example(prompt="b", reference=2)


def test_a_prompt_may_be_a_chat_and_columns_may_have_other_names(written: Write) -> None:
    rows = [{"messages": CHAT, "made": {"gold": {"n": [7]}}, "kind": "k", "task": "no"}]
    columns = {"prompt": "messages", "reference": "made.gold", "task": "kind"}
    data = opened(written(rows), columns=columns)
    chat = (ChatMessage("system", "s"), ChatMessage("user", "ü"))
    assert data[0] == Example(prompt=chat, reference={"n": [7]}, task="k")


def test_a_row_without_a_prompt_costs_that_row(written: Write) -> None:
    data = opened(written([*ROWS, {"prompt": None, "reference": 4, "task": None}, *ROWS]))
    with pytest.raises(Unusable, match=r"row 3.*Expected `str \| array`, got `null`"):
        data[3]
    assert data[4].prompt == "a"


@pytest.mark.parametrize(
    ("prompt", "rule"),
    [
        ([], "a chat without messages"),
        ([*CHAT, {"role": "assistant", "content": "x"}], "last message is the assistant's"),
        ([{"role": "user", "content": None}], "missing required field `content`"),
        ([{"role": "user", "content": "x", "name": "n"}], "unknown field `name`"),
    ],
    ids=["empty", "assistant", "null", "name"],
)
def test_a_chat_that_cannot_be_answered_costs_its_row(
    written: Write, prompt: list[dict[str, Any]], rule: str
) -> None:
    nameless = [message | {"name": None} for message in CHAT]
    rows = [{"prompt": nameless, "reference": 1}, {"prompt": prompt, "reference": 1}]
    data = opened(written(rows))
    with pytest.raises(Unusable, match=rule):
        data[1]
    assert data[0].prompt


def test_an_absent_column_is_refused_with_the_nearest(written: Write) -> None:
    spec = written([{"prompt": "a", "references": {"gold": 1}}])
    assert (
        "columns.reference = 'reference': there is no such column; did you mean 'references'?"
        in (refusal(spec))
    )
    line = refusal(spec, columns={"reference": "references.golden"})
    assert "there is no field golden; did you mean 'gold'?" in line


def test_a_column_of_numbers_holds_no_prompts(written: Write) -> None:
    line = refusal(written([{"prompt": 1, "reference": 1}]))
    assert "column prompt = 'int64': it holds no prompts" in line


def test_an_unknown_key_among_the_columns_is_refused(written: Write) -> None:
    assert "unknown field `answer`" in refusal(written(ROWS), columns={"answer": "x"})


def test_digests_tell_contents_and_columns_and_nothing_else(written: Write) -> None:
    first = opened(written(ROWS)).digest()
    assert first == opened(written(ROWS)).digest(), "written again, elsewhere"
    changed = [ROWS[0] | {"reference": 9}, *ROWS[1:]]
    swapped = {"prompt": "task", "reference": "prompt"}
    others = {
        first,
        opened(written(changed)).digest(),
        opened(written(ROWS[::-1])).digest(),
        opened(written(ROWS[:2])).digest(),
        opened(written(ROWS), columns=swapped).digest(),
    }
    assert len(others) == 5


def test_a_folder_of_parquet_files_is_one_data_set_in_the_order_of_names(tmp_path: Path) -> None:
    for name, row in zip(("b", "a"), ROWS[::2], strict=True):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{name}.parquet")
    data = opened({"use": "parquet", "path": str(tmp_path)})
    assert [data[i].prompt for i in range(len(data))] == ["c", "a"]


def test_files_that_are_no_parquet_of_one_kind_are_refused_by_name(tmp_path: Path) -> None:
    spec = {"use": "parquet", "path": str(tmp_path)}
    assert "there is no such file, nor *.parquet" in refusal(spec)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 not really")
    assert "b.parquet: cannot be read as Parquet" in refusal(spec)
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "b.parquet")
    assert "b.parquet: cannot be read as Parquet with the columns of the first" in refusal(spec)
    pq.write_table(pa.Table.from_pylist(ROWS).slice(0, 0), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").unlink()
    assert "there is no example in it" in refusal(spec)


def test_a_disk_that_cannot_hold_the_rows_is_refused_by_its_place(tmp_path: Path) -> None:
    rows = [{"prompt": random.randbytes(500).hex(), "reference": 1} for _ in range(3000)]
    spec = as_parquet(rows, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        line = refusal(spec)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot hold the rows" in line and "TMPDIR" in line


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """60 MB of prompts in one row group; the process may add a fraction of that."""
    table = pa.table({"prompt": ["x" * 1000] * 60_000, "reference": [*range(60_000)]})
    pq.write_table(table, tmp_path / "rows.parquet", use_dictionary=False)
    code = f"""
import resource
from services.prompting.datasets.parquet import Parquet
def peak(): return int(next(l for l in open("/proc/self/status") if "RssAnon" in l).split()[1])
before = peak()
data = Parquet(path={str(tmp_path)!r})
assert [data[i].reference for i in range(0, 60_000, 997)] == [*range(0, 60_000, 997)]
assert peak() - before < 45_000, peak() - before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_split_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    spec = as_saved(ROWS, tmp_path)
    assert "split = 'trian': there is no such split; did you mean 'train'?" in (
        refusal(spec, split="trian")
    )


def test_a_lone_data_set_that_was_saved_needs_no_split(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).select([2, 0]).save_to_disk(tmp_path / "lone")
    data = opened({"use": "hf", "name": str(tmp_path / "lone")})
    assert [data[i].prompt for i in range(len(data))] == ["c", "a"]


def test_a_data_set_that_cannot_be_had_is_refused_in_one_line(tmp_path: Path) -> None:
    line = refusal({"use": "hf", "name": str(tmp_path / "nothing")})
    assert line.startswith("data.name = ") and "no data set could be loaded" in line
