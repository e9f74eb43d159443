"""Models and tokenizers from a folder: what loads, and how a bad one is refused."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
import torch
from engine_models import tiny
from engine_work import drain, flip_to, tokens, work
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast

from pipeline.errors import ConfigError
from pipeline.model import tokens as model_tokens
from pipeline.model.load import load_model
from pipeline.run import Model
from services.inference.engines.hf.engine import build

VOCABULARY = ["<pad>", "<bos>", "<eos>", "<turn>", *"abcdefghij ,;'", *"0123456789"]


def make_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    ids = {token: id for id, token in enumerate(VOCABULARY)}
    inner = Tokenizer(models.WordLevel(ids))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    inner.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<bos>", pad_token="<pad>", **special
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model: its three end ids stand in three places."""
    model = tiny()
    model.config.eos_token_id = 3
    model.generation_config = GenerationConfig(eos_token_id=[2, 9])
    model.save_pretrained(tmp_path)
    make_tokenizer(eos_token="<eos>").save_pretrained(tmp_path)
    return tmp_path


def rewrite(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_loads_in_the_dtype_asked_for_and_evaluates(folder: Path, dtype: str) -> None:
    model = load_model(str(folder), dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
    assert not model.training
    expected = tiny().model.layers[0].mlp.up_proj.weight
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, expected.to(model.dtype))


def refused(call, *expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    for part in expected:
        assert part in line


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    refused(lambda: load_model(missing), "model.path", missing, "there is no such folder")
    refused(lambda: model_tokens.Tokenizer(missing), "model.path", "there is no such folder")


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    refused(lambda: load_model(str(folder), dtype="int3"), "model.dtype = 'int3'", "bfloat16")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    refused(lambda: load_model(str(tmp_path)), "model.path", "has no config.json")


def test_an_unknown_architecture_is_refused(folder: Path) -> None:
    rewrite(folder / "config.json", model_type="abacus", architectures=["Abacus"])
    refused(lambda: load_model(str(folder)), "model.path", "no causal language model")


def test_a_damaged_weight_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x09\0\0\0\0\0\0\0not json!")
    refused(lambda: load_model(str(folder)), "model.path", "no causal language model")


def test_C026_a_checkpoint_that_lacks_a_tensor_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(lambda: load_model(str(folder)), "lack 1 tensors", "model.layers.1.mlp.up_proj.weight")


def test_a_checkpoint_of_another_shape_is_refused(folder: Path) -> None:
    rewrite(folder / "config.json", intermediate_size=48)
    refused(lambda: load_model(str(folder)), "model.path")


def test_the_end_ids_are_those_of_all_three_places(folder: Path) -> None:
    assert model_tokens.end_ids(str(folder)) == {2, 3, 9}


def test_a_tokenizers_end_id_is_enough(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    rewrite(folder / "config.json", eos_token_id=None)
    assert model_tokens.end_ids(str(folder)) == {2}


def test_a_model_without_any_end_id_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    rewrite(folder / "config.json", eos_token_id=None)
    make_tokenizer().save_pretrained(folder)
    refused(lambda: model_tokens.end_ids(str(folder)), "end token", "eos_token_id")


def test_a_damaged_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    refused(lambda: model_tokens.Tokenizer(str(folder)), "model.path", "no tokenizer")


def test_C008_a_prompt_becomes_int32_bytes_with_one_bos(folder: Path) -> None:
    tokenizer = model_tokens.Tokenizer(str(folder))
    expected = array("i", [1, *(VOCABULARY.index(char) for char in "ab,7")]).tobytes()
    assert tokenizer.encode("ab,7") == expected
    assert tokenizer.encode("<bos>ab,7") == expected


def test_text_without_ids_is_refused_by_name(folder: Path) -> None:
    tokenizer = model_tokens.Tokenizer(str(folder))
    refused(lambda: tokenizer.encode("a?b"), "'a?b'", "no ids for this prompt")


def test_a_scorer_reads_the_text_without_special_tokens(folder: Path) -> None:
    tokenizer = model_tokens.Tokenizer(str(folder))
    ids = [VOCABULARY.index(char) for char in "a ,b 'c"]
    assert tokenizer.decode(array("i", [*ids, 2, 0]).tobytes()) == "a ,b 'c"


def test_an_engine_is_built_from_the_run_and_stops_at_every_end_id(folder: Path) -> None:
    engine = build(Model(path=str(folder)), boot="b", swap="recompute", slots=8)
    flip_to(engine, 0)
    engine.add(work(members=8, max_tokens=200))
    stopped = [c for c in drain(engine).values() if c.finish == "stop"]
    assert stopped
    assert {tokens(completion)[-1] for completion in stopped} <= {2, 3, 9}
