"""Sequences of a pack that attend by themselves, and layers that are run once more."""

import copy

import pytest
import torch
from made import VOCABULARY, gradient, tiny_model
from test_gradient import close
from test_packed import A, B, pack_of, plain
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from pipeline.errors import ConfigError
from pipeline.model.attention import APART, ROWS, Blocks, blocks
from pipeline.model.chosen import chosen
from pipeline.model.packed import evaluate, prepare

SEQUENCES = A, B, [7, 3, 3, 9, 1, 4, 4, 8, 2], [5, 5]
COEFFICIENTS = torch.linspace(-2, 3, sum(map(len, SEQUENCES)))


def sliding_model() -> MistralForCausalLM:
    torch.manual_seed(3)
    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=3,
        initializer_range=0.3,
    )
    return MistralForCausalLM(config).eval()


def gradient_of(model: "object", logp: Tensor) -> Tensor:
    model.zero_grad()  # type: ignore[attr-defined]
    (logp * COEFFICIENTS).sum().backward()
    return gradient(model)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [tiny_model, sliding_model])
@pytest.mark.parametrize("checkpoint_activations", [False, True])
def test_log_probs_and_gradient_are_those_of_each_sequence_alone(
    make: "object", checkpoint_activations: bool
) -> None:
    model = make()  # type: ignore[operator]
    logp = plain(model, *SEQUENCES)
    expected = gradient_of(model, logp)
    prepare(model, checkpoint_activations=checkpoint_activations)
    assert model.config._attn_implementation == APART
    seen = evaluate(model, pack_of(*SEQUENCES))
    assert torch.allclose(seen.logp, logp, atol=1e-5)
    assert close(gradient_of(model, seen.logp), expected) < 1e-5


def test_the_sliding_window_would_be_missed() -> None:
    model = sliding_model()
    window = plain(model, *SEQUENCES)
    model.config.sliding_window = None
    assert not torch.allclose(plain(model, *SEQUENCES), window, atol=1e-2)


def test_C107_to_the_bit_nothing_of_a_sequence_depends_on_its_neighbours() -> None:
    model = tiny_model()
    prepare(model)
    for first, second in ((A, B), (B, A)):
        length = len(first)
        logp = evaluate(model, pack_of(first, second)).logp[:length]
        other = evaluate(model, pack_of(first, [9] * len(second))).logp
        assert torch.equal(other[:length], logp)


def test_a_causal_row_has_no_mask_and_a_window_has_one_of_its_sequence_alone() -> None:
    seen: list[Blocks] = []
    for model in (tiny_model(), sliding_model()):
        prepare(model)
        layer = model.model.layers[0].self_attn
        hook = layer.register_forward_pre_hook(
            lambda _, __, named: seen.append(named["attention_mask"]), with_kwargs=True
        )
        evaluate(model, pack_of(*SEQUENCES))
        hook.remove()
    causal, window = seen
    assert [block.length for block in causal] == [*map(len, SEQUENCES)] and len(seen) == 2
    assert all(block.mask is None for block in causal)
    assert [b.mask if b.mask is None else tuple(b.mask.shape[2:]) for b in window] == [
        *(None, None, (9, 9), None)
    ]


@pytest.mark.parametrize("sees_all", [True, False])
def test_a_long_sequence_is_looked_at_some_rows_at_a_time_and_to_its_last_pair(
    sees_all: bool,
) -> None:
    length, sizes = 2 * ROWS + 5, []

    def causal(_: object, __: object, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & ((query < length - 1) | (key > 0) | sees_all)
        sizes.append(seen.numel())
        return seen

    (block,) = blocks(mask_function=causal, batch_size=1, q_length=length, kv_length=length)
    assert (block.mask is None) == sees_all
    assert not sees_all or max(sizes) == ROWS * length


def test_what_is_no_row_to_train_on_gets_the_mask_that_sdpa_takes() -> None:
    model, other = tiny_model(), tiny_model()
    prepare(model)
    ids = torch.tensor([[0, 0, 10, 11, 12], [7, 3, 3, 9, 1]])
    given = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    assert torch.equal(model(**given).logits[1], other(**given).logits[1])
    generated = [
        m.generate(ids[1:], max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=1)
        for m in (model, other)
    ]
    assert torch.equal(*generated)


def test_layers_that_are_run_once_more_give_the_same_gradient_bit_for_bit() -> None:
    gradients = []
    for again in (False, True):
        model = tiny_model()
        prepare(model, checkpoint_activations=again)
        gradients.append(gradient_of(model, evaluate(model, pack_of(*SEQUENCES)).logp))
    assert torch.equal(*gradients)


def test_layers_that_are_run_once_more_keep_only_their_input() -> None:
    def kept(checkpoint_activations: bool) -> int:
        model = tiny_model()
        prepare(model, checkpoint_activations=checkpoint_activations)
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            evaluate(model, pack_of([4] * 60))
        return sum(sizes.values()) - sum(p.numel() for p in model.parameters())

    assert kept(True) < kept(False) / 3


def test_a_copy_of_a_model_that_is_run_once_more_is_its_own() -> None:
    model = tiny_model()
    prepare(model, checkpoint_activations=True)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight.zero_()
    before = evaluate(model, pack_of(*SEQUENCES)).logp
    assert not torch.allclose(evaluate(other, pack_of(*SEQUENCES)).logp, before)
    gradient_of(other, evaluate(other, pack_of(*SEQUENCES)).logp)
    assert all(p.grad is None for p in model.parameters())


def test_a_model_whose_layers_cannot_be_run_once_more_is_refused() -> None:
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    model.transformer.h = torch.nn.ModuleList()
    with pytest.raises(ConfigError, match=r"cannot be run once more.*leave out"):
        prepare(model, checkpoint_activations=True)


WIDE = (1 << 17) + 3  # two rows are one block, so that five are three


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chosen_is_the_log_softmax_its_gradient_and_the_entropy(temperature: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, WIDE) * 4
    ids, temperatures = torch.randint(WIDE, (5,)), torch.full((5,), temperature)
    upstream = torch.tensor([1.0, -2.0, 0.0, 3.0, 1e4])
    exact = logits.double().requires_grad_()
    all_logp = (exact / temperature).log_softmax(-1)
    (all_logp.gather(-1, ids[:, None])[:, 0] * upstream).sum().backward()
    given = logits.clone().requires_grad_()
    logp, entropy = chosen(given * 1, temperatures, ids)
    assert torch.allclose(logp.double(), all_logp.gather(-1, ids[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(entropy.double(), -(all_logp.exp() * all_logp).sum(-1), atol=1e-5)
    assert not entropy.requires_grad
    (logp * upstream).sum().backward()
    assert close(given.grad.double(), exact.grad) < 1e-6  # type: ignore[union-attr]
    assert given.grad is not None and not given.grad[2].any()


def test_logits_that_are_used_up_give_no_second_gradient() -> None:
    given = torch.randn(3, 7, requires_grad=True)
    logp, _ = chosen(given * 1, torch.ones(3), torch.tensor([1, 2, 3]))
    logp.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.sum().backward()
