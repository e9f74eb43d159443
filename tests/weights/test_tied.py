"""Tied embeddings travel once, and an engine's model stays tied; real models, tied and untied."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cargo import Cargo
from receiver import Receiver, published
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.messages import Manifest
from pipeline.protocols import Transport

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
VOCABULARY, WIDTH = 64, 8


def llama(*, tied: bool, seed: int, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


@torch.no_grad()
def logits(model: LlamaForCausalLM) -> Tensor:
    return model(input_ids=torch.arange(6)[None]).logits


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_an_embedding_travels_once_if_it_is_the_output_layer_too(
    transport: Transport, cargo: Callable[[Manifest], Cargo], tied: bool
) -> None:
    model = llama(tied=tied, seed=0)
    manifest = published(transport, 1, model.named_parameters())
    names = {tensor.name for tensor in manifest.tensors}
    assert EMBEDDING in names and (HEAD in names) is not tied
    elements = sum(p.numel() for p in model.parameters())
    raw = cargo(manifest).read()
    header = 8 + int.from_bytes(raw[:8], "little")
    assert len(raw) == header + 4 * elements
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_receiving_model_is_as_the_sender_and_as_tied(
    opened: Callable[[Path], Transport], tmp_path: Path, tied: bool
) -> None:
    sender, engine = llama(tied=tied, seed=0), llama(tied=tied, seed=1)
    receiver = Receiver(engine, opened(tmp_path))
    assert receiver.follow(published(opened(tmp_path), 1, sender.named_parameters())) == ""
    assert torch.equal(logits(engine), logits(sender))
    head, embedding = engine.lm_head.weight, engine.model.embed_tokens.weight
    assert (head is embedding) is tied
    assert (head.data_ptr() == embedding.data_ptr()) is tied


def test_a_tied_model_and_an_untied_one_refuse_each_others_weights(
    opened: Callable[[Path], Transport], tmp_path: Path
) -> None:
    tied, untied = llama(tied=True, seed=0), llama(tied=False, seed=0)
    sender = opened(tmp_path)
    first = published(sender, 1, tied.named_parameters())
    assert f"{HEAD}: not announced" in Receiver(untied, opened(tmp_path)).follow(first)
    second = published(sender, 2, untied.named_parameters())
    assert f"{HEAD}: unknown to this model" in Receiver(tied, opened(tmp_path)).follow(second)


def test_C043_masters_in_float32_an_engine_in_bfloat16_and_then_the_head_alone(
    opened: Callable[[Path], Transport], tmp_path: Path
) -> None:
    """What the engine samples from is the masters, cast; no part of it is from an older step."""
    masters = llama(tied=False, seed=0)
    engine = llama(tied=False, seed=1, dtype=torch.bfloat16)
    sender, receiver = opened(tmp_path), Receiver(engine, opened(tmp_path))
    with torch.no_grad():
        masters.lm_head.weight[0, :2] = torch.tensor([1 + 2**-10, 1 + 2**-7])
    for version in (1, 2):
        named = masters.named_parameters()
        assert receiver.follow(published(sender, version, named, dtype=torch.bfloat16)) == ""
        cast = llama(tied=False, seed=2, dtype=torch.bfloat16)
        cast.load_state_dict(masters.state_dict())
        assert torch.equal(logits(engine), logits(cast))
        if version == 1:
            assert engine.lm_head.weight[0, :2].tolist() == [1.0, 1 + 2**-7]
        with torch.no_grad():
            masters.lm_head.weight.mul_(-1.5)
