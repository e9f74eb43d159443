"""Machines whose copies of the model or of RUN.toml differ: refused at start, with both values."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError
from pipeline.run import Inference, Model, Run
from pipeline.serve import EXIT_INPUT, exit_code
from services.process import open_alike, serve

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "model"


@pytest.fixture
def bus(server_url: str, run_name: str) -> Iterator[Bus]:
    with closing(Bus.connect(server_url, run_name)) as bus:
        yield bus
        bus.purge()


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The trainer's machine; each has its model under the same name."""
    return at(tmp_path / "trainer", monkeypatch)


def at(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(MODEL, machine / "model")
    monkeypatch.chdir(machine)
    return machine


def run_of(name: str, *, dtype: str = "float32", **engine: Any) -> Run:
    return Run(
        name=name,
        steps=1,
        model=Model(path="model", dtype=dtype),  # type: ignore[arg-type]
        data="jsonl",
        inference=Inference(engine={"use": "fake", **engine}),
    )


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def list_twice(tokenizer: dict[str, Any]) -> None:
    """A token of the vocabulary, as one that was added."""
    token, number = tokenizer["model"]["vocab"].popitem()
    tokenizer["model"]["vocab"][token] = number
    tokenizer["added_tokens"].append({"id": number, "content": token})


DIFFERENT: dict[str, tuple[str, Callable[[dict[str, Any]], object], str, str]] = {
    "tokenizer": (
        "tokenizer.json",
        lambda t: t["added_tokens"].append({"id": 99, "content": "<other>"}),
        "model.tokenizer",
        "tokens (",
    ),
    "model": (
        "config.json",
        lambda c: c.update(num_hidden_layers=9),
        "model.num_hidden_layers",
        "9",
    ),
    "context": (
        "config.json",
        lambda c: c.update(max_position_embeddings=32),
        "model.context",
        "32 tokens",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("service", ["inference", "scoring", "prompting"])
def test_another_model_than_the_trainers_is_refused_with_both_values(
    bus: Bus,
    run_name: str,
    trainer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: str,
    what: str,
) -> None:
    open_alike("training", bus, run_of(run_name))
    file, change, key, shown = DIFFERENT[what]
    edit(at(tmp_path / "other", monkeypatch) / "model" / file, change)
    with pytest.raises(ConfigError) as refused:
        open_alike(service, bus, run_of(run_name))
    said = str(refused.value)
    assert said.startswith(f"{key} of model on ") and shown in str(refused.value.value)
    stored = bus._client.hget(f"sluice:{{{run_name}}}:run", f"id:{key}").decode()
    assert f"run {run_name} was made with {stored!r}" in said
    assert "give all machines of the run the same" in said and "\n" not in said


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"dtype": "bfloat16"}, "model.dtype = 'bfloat16': run {} was made with 'float32'; "),
        (
            {"max_length": 64},
            "inference.engine.max_length of model on {host} = '64 tokens':"
            " run {} was made with '128 tokens'; give all",
        ),
    ],
    ids=["dtype", "context"],
)
def test_an_engine_of_another_dtype_or_a_smaller_context_is_refused(
    bus: Bus, run_name: str, trainer: Path, other: dict[str, Any], line: str
) -> None:
    open_alike("training", bus, run_of(run_name))
    open_alike("inference", bus, run_of(run_name, max_length=128))
    with pytest.raises(ConfigError) as refused:
        open_alike("inference", bus, run_of(run_name, **({"max_length": 128} | other)))
    assert str(refused.value).startswith(line.format(run_name, host=os.uname().nodename))


def test_the_same_model_in_another_releases_words_is_the_same(
    bus: Bus, run_name: str, trainer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_alike("training", bus, run_of(run_name))
    other = at(tmp_path / "other", monkeypatch)
    edit(other / "model" / "config.json", lambda c: c.update(transformers_version="4", _x=1))
    edit(other / "model" / "config.json", lambda c: c.pop("num_key_value_heads"))
    edit(other / "model" / "tokenizer.json", lambda t: t.update(truncation=None, version="2"))
    edit(other / "model" / "tokenizer.json", list_twice)
    for service in ("inference", "scoring", "prompting", "training"):
        open_alike(service, bus, run_of(run_name))


def test_who_only_encodes_or_decodes_needs_no_more_than_a_tokenizer(
    bus: Bus, run_name: str, trainer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_alike("training", bus, run_of(run_name))
    other = at(tmp_path / "other", monkeypatch)
    (other / "model" / "config.json").unlink()
    open_alike("scoring", bus, run_of(run_name))


@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "name"])
def test_what_one_machine_does_not_know_is_held_against_nobody(
    bus: Bus, run_name: str, trainer: Path, is_folder: bool
) -> None:
    """An engine that found no config.json, in a folder or in the cache of Hugging Face's names."""
    run = run_of(run_name)
    whole = (trainer / "model").rename(trainer / "whole")
    if is_folder:
        (trainer / "model").mkdir()
    open_alike("inference", bus, run)
    shutil.copytree(whole, trainer / "model", dirs_exist_ok=True)
    open_alike("inference", bus, run)


def test_a_service_that_is_refused_ends_with_the_code_of_bad_input(
    bus: Bus,
    server_url: str,
    run_name: str,
    trainer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = run_of(run_name)
    open_alike("training", bus, run)
    other = at(tmp_path / "other", monkeypatch)
    edit(other / "model" / "config.json", lambda c: c.update(vocab_size=99))
    code = exit_code(
        lambda: serve("inference", run, redis=server_url, instance="e", http="127.0.0.1:0")
    )
    assert code == EXIT_INPUT
    assert capsys.readouterr().err.startswith("sluice: model.vocab_size of model on ")
