"""`sluice export`: what is written is what training holds, cast; whole or not at all."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from keeper import Sluice, refusal
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

from pipeline.config import load
from pipeline.digests import digests
from pipeline.errors import ConfigError, SluiceError
from pipeline.model.tokens import Tokenizer
from pipeline.run import Run
from services.keep.export import export
from services.keep.sources import best_of
from services.training.backends.torch import TorchBackend

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "model"
CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
Weights = dict[str, Tensor]

RUN = """
name = "run"
steps = 10
data = "jsonl"
model = {{ path = "owner/model", dtype = "{dtype}", template = "{template}" }}
"""


def a_run(folder: Path, *, dtype: str = "bfloat16", template: str = "") -> Run:
    path = folder / "run.toml"
    path.write_text(RUN.format(dtype=dtype, template=template))
    return load(path)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(seed: int, *, tied: bool = False) -> LlamaForCausalLM:
    """The demo's model, with other weights that no bfloat16 can hold."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, tie_word_embeddings=tied)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    assert isinstance(model, LlamaForCausalLM)
    return model


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """As training does: the model and its tokenizer."""
    TorchBackend(model).save(str(folder))
    Tokenizer(str(DEMO)).save(str(folder))


def checkpoint(model: LlamaForCausalLM, batch: int, epoch: int = 1, *, whole: bool = True) -> Path:
    folder = Path("runs/run/checkpoints", f"{batch:08d}.e{epoch}")
    folder.mkdir(parents=True)
    save(model, folder / "model")
    if whole:
        mark(folder, batch)
    return folder


def mark(folder: Path, batch: int) -> None:
    said = {"batch": batch, "step": batch - 1, "version": batch + 1, "fingerprint": "f"}
    said |= {"files": digests(folder)}
    (folder / "checkpoint.json").write_text(json.dumps(said))


def keep(model: LlamaForCausalLM, version: int) -> None:
    weights = Path("runs/run/weights")
    weights.mkdir(parents=True, exist_ok=True)
    save(model, weights / f"v{version}")
    line = {"version": version, "step": version, "seconds": 1.5, "path": "elsewhere"}
    with (weights / "kept.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def cast(model: LlamaForCausalLM, dtype: torch.dtype) -> Weights:
    return {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}


def loaded(folder: Path | str) -> LlamaForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, LlamaForCausalLM)
    return model


def equal(one: Weights, other: Weights) -> bool:
    """To the bit and the dtype."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_the_newest_checkpoint_cast_to_the_runs_dtype_bit_for_bit(
    here: Path, dtype: str, tied: bool
) -> None:
    model = trained(1, tied=tied)
    checkpoint(model, 4)
    folder = export(a_run(here, dtype=dtype))
    assert folder == Path("runs/run/export")
    got = loaded(folder)
    assert equal(got.state_dict(), cast(model, getattr(torch, dtype)))
    assert got.config.dtype == getattr(torch, dtype)
    on_disk = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in on_disk.values()} == {getattr(torch, dtype)}
    assert (got.lm_head.weight is got.model.embed_tokens.weight) is tied


def test_transformers_alone_loads_all_of_it(here: Path) -> None:
    """In a process that can import nothing of ours, from a folder elsewhere."""
    checkpoint(trained(1), 4)
    (here / "chat.jinja").write_text(CHAT)
    folder = export(a_run(here, template=str(here / "chat.jinja")), folder=here / "out")
    code = """
import sys; from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (c.from_pretrained(sys.argv[1]) for c in (AutoModelForCausalLM, AutoTokenizer))
print(tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False))
print(model.dtype, model.generation_config.eos_token_id == model.config.eos_token_id)
ids = tokenizer("ab", return_tensors="pt").input_ids
print(model.generate(ids, max_new_tokens=4, do_sample=False).shape[1] > ids.shape[1])
assert "pipeline" not in sys.modules and "services" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "<user>ab\ntorch.bfloat16 True\nTrue\n", done.stderr


def test_what_is_no_weight_is_the_checkpoints(here: Path) -> None:
    folder = checkpoint(trained(1), 4) / "model"
    out = export(a_run(here))
    assert {p.name for p in out.iterdir()} == {p.name for p in folder.iterdir()}
    generation = [GenerationConfig.from_pretrained(f).to_dict() for f in (out, folder)]
    assert generation[0] == generation[1]
    ids = [AutoTokenizer.from_pretrained(f)("abba").input_ids for f in (out, folder)]
    assert ids[0] == ids[1]


def test_a_model_in_several_files_stays_so(here: Path) -> None:
    model = trained(1)
    folder = Path("runs/run/checkpoints/00000001.e1")
    model.save_pretrained(folder / "model", max_shard_size="300KB")
    mark(folder, 1)
    out = export(a_run(here))
    parts = sorted(out.glob("model-*.safetensors"))
    assert len(parts) > 2
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for part in parts for tensor in load_file(part).values()
    )
    assert equal(loaded(out).state_dict(), cast(model, torch.bfloat16))


def test_the_newest_checkpoint_is_the_last_that_was_written_to_its_end(here: Path) -> None:
    for batch, epoch in ((9, 1), (10, 1)):
        checkpoint(trained(batch), batch, epoch)
    checkpoint(trained(77), 10, 2)
    checkpoint(trained(88), 11, 2, whole=False)
    partial = Path("runs/run/checkpoints/00000012.e2.partial")
    shutil.copytree(Path("runs/run/checkpoints/00000009.e1"), partial)
    assert equal(loaded(export(a_run(here))).state_dict(), cast(trained(77), torch.bfloat16))


def test_epochs_and_batches_are_numbers(here: Path) -> None:
    for batch, epoch, seed in ((99999999, 2, 1), (100000000, 9, 2), (100000000, 10, 3)):
        checkpoint(trained(seed), batch, epoch)
    assert equal(loaded(export(a_run(here))).state_dict(), cast(trained(3), torch.bfloat16))


def test_a_version_that_was_kept_can_be_named(here: Path, sluice: Sluice) -> None:
    checkpoint(trained(1), 4)
    for version in (0, 10):
        keep(trained(version), version)
    done = sluice("export", "out", "--version", "10", "--set", "name=run")
    assert done.exit_code == 0, done.output
    assert done.stdout == "out: version 10 (step 10) in bfloat16\n"
    assert equal(loaded("out").state_dict(), cast(trained(10), torch.bfloat16))
    line = refusal(sluice("export", "out2", "--version", "7", "--set", "name=run"))
    assert line == "--version = 7: was not kept by runs/run; choose one of those (0, 10)"


def test_without_a_checkpoint_one_line_says_so(sluice: Sluice) -> None:
    line = refusal(sluice("export", "--set", "name=run"))
    assert line.startswith("runs/run: has no checkpoint; wait for the first")


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "dangling link"])
def test_what_is_there_already_is_refused_and_untouched(
    here: Path, kind: str, sluice: Sluice
) -> None:
    checkpoint(trained(1), 4)
    out = here / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "dangling link":
        out.symlink_to("nowhere")
    else:
        out.mkdir()
        if kind == "folder":
            (out / "mine").touch()
    line = refusal(sluice("export", "out", "--set", "name=run"))
    assert line == "out: is there already; name another folder, or remove it"
    left = {path.name for path in out.iterdir()} if out.is_dir() else set()
    assert os.path.lexists(out) and left <= {"mine"}
    assert not [*here.glob(".out*")]


def test_a_damaged_checkpoint_is_named_and_leaves_nothing(here: Path) -> None:
    weights = checkpoint(trained(1), 4) / "model" / "model.safetensors"
    os.truncate(weights, 1000)
    with pytest.raises(SluiceError, match=r"runs/run/export cannot be written from .*00000004\.e1"):
        export(a_run(here))
    assert not [*here.glob("runs/run/*export*")]


@pytest.mark.parametrize("damage", ["a bit of the weights", "a word of the config", "gone"])
def test_a_file_that_is_not_what_was_written_is_named_and_leaves_nothing(
    here: Path, damage: str, sluice: Sluice
) -> None:
    """Of what is exported: that the state beside it is damaged concerns training alone."""
    folder = checkpoint(trained(1), 4)
    name = "config.json" if damage == "a word of the config" else "model.safetensors"
    written = bytearray((folder / "model" / name).read_bytes())
    written[-3] ^= 1
    (folder / "model" / name).write_bytes(written)
    if damage == "gone":
        (folder / "model" / name).unlink()
    done = sluice("export", "out", "--set", "name=run")
    assert done.exit_code == 1
    said = "is gone" if damage == "gone" else "has the digest"
    assert f"{folder} is damaged: model/{name} {said}" in done.stderr.splitlines()[-1]
    assert not [*here.glob("*out*")]


def test_the_state_beside_the_model_is_not_asked_for(here: Path) -> None:
    folder = checkpoint(trained(1), 4, whole=False)
    (folder / "state").write_text("moments")
    mark(folder, 4)
    (folder / "state").write_text("others")
    assert export(a_run(here)).is_dir()


def test_a_template_that_is_gone_is_named(here: Path) -> None:
    checkpoint(trained(1), 4)
    with pytest.raises(ConfigError, match=r"model.template = 'gone.jinja': cannot be read"):
        export(a_run(here, template="gone.jinja"))
    assert not [*here.glob("runs/run/*export*")]


def big(value: float, batch: int, *, elements: int = 1 << 22) -> Path:
    """A checkpoint whose weights take a while to read, and are of one value."""
    folder = Path("runs/run/checkpoints", f"{batch:08d}.e1")
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text('{"dtype": "float32"}')
    tensors = {"a": torch.full((elements,), value), "b": torch.full((elements,), value)}
    save_file(tensors, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    mark(folder, batch)
    return folder


fork = multiprocessing.get_context("fork")


def test_a_kill_in_the_middle_leaves_no_folder_of_that_name(here: Path) -> None:
    big(1.0, 1)
    run = a_run(here, dtype="float32")
    for _ in range(10):
        child = fork.Process(target=export, args=(run,), daemon=True)
        child.start()
        while child.is_alive() and not [*here.glob("runs/run/.export.*.partial/*")]:
            time.sleep(0.001)
        child.kill()
        child.join()
        if not Path("runs/run/export").exists():
            break
        shutil.rmtree("runs/run/export")
    else:
        raise AssertionError("never caught in the act")
    assert export(run).is_dir()


def no_room(run: Run) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with pytest.raises(SluiceError, match=r"cannot be written from .*File too large"):
        export(run)
    assert not [*Path("runs/run").glob("*export*")]


def test_a_disk_without_room_is_named_and_leaves_nothing(here: Path) -> None:
    big(1.0, 1, elements=4096)
    child = fork.Process(target=no_room, args=(a_run(here),))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_checkpoint_that_goes_while_it_is_read_is_no_loss(here: Path) -> None:
    """A run that goes on removes its older checkpoints: the newer one is written instead."""
    older = big(1.0, 1, elements=8)
    for number in range(400):
        (older / "model" / f"{number:04d}").write_text("one of many")

    def train() -> None:
        while not [*here.glob(".out.*.partial/*")]:
            time.sleep(0.001)
        big(2.0, 2, elements=8)
        shutil.rmtree(older)

    thread = threading.Thread(target=train)
    thread.start()
    out = export(a_run(here), folder=here / "out")
    thread.join()
    assert {float(t[0]) for t in load_file(out / "model.safetensors").values()} == {2.0}
    assert not (out / "0000").exists() and not [*here.glob(".out*")]


@pytest.mark.parametrize("best", [4, 9])
def test_the_best_is_the_one_that_was_graded_best(here: Path, best: int) -> None:
    models = {version: trained(version) for version in (4, 9)}
    for version, model in models.items():
        keep(model, version)
    held_out = Path("runs/run/evaluation.json")
    held_out.write_text(json.dumps({"points": [], "best": best}))
    folder = export(a_run(here, dtype="float32"), best=True)
    assert equal(loaded(folder).state_dict(), cast(models[best], torch.float32))
    with pytest.raises(ConfigError, match="excludes --version"):
        best_of(held_out.parent, 4)
    held_out.unlink()
    with pytest.raises(ConfigError, match="nothing was graded"):
        best_of(held_out.parent)
