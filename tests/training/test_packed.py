import pytest
import torch
from made import VOCABULARY, gradient, plain_logprobs, tiny_model
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.model.packed import check, evaluate
from pipeline.protocols import Pack

A, B = [10, 11, 12], [20, 21]


def pack_of(
    *sequences: list[int], temperature: float = 1.0, kept: dict[int, list[int]] | None = None
) -> Pack:
    """`kept` has what a token was drawn from, by its place in the pack."""
    sets = kept or {}
    ids = torch.tensor([token for sequence in sequences for token in sequence])
    zeros = torch.zeros(ids.shape)
    return Pack(
        ids=ids,
        positions=torch.tensor([t for sequence in sequences for t in range(len(sequence))]),
        sequence=torch.tensor([n for n, s in enumerate(sequences) for _ in s]),
        temperature=torch.full(ids.shape, temperature),
        behaviour=zeros,
        advantage=zeros,
        weight=torch.ones(ids.shape),
        lag=torch.zeros_like(ids),
        kept_counts=torch.tensor([len(sets.get(t, [])) for t in range(len(ids))]),
        kept_ids=torch.tensor([i for t in sorted(sets) for i in sets[t]], dtype=torch.int64),
        score=zeros,
        segment=torch.zeros_like(ids),
        ce_weight=zeros,
        kl_weight=zeros,
        teacher=zeros,
        teacher_ids=torch.zeros(len(ids), 0, dtype=torch.int64),
        teacher_logprobs=torch.zeros(len(ids), 0),
        reference=zeros,
    )


def plain(model: "object", *sequences: list[int], temperature: float = 1.0) -> Tensor:
    first = torch.zeros(1)
    parts = [
        part
        for sequence in sequences
        for part in (first, plain_logprobs(model, sequence, temperature))  # type: ignore[arg-type]
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk_elements", [1, 2 * VOCABULARY, 1 << 20])
def test_C106_no_target_crosses_a_border_and_packed_equals_unpacked(
    attention: str, temperature: float, chunk_elements: int
) -> None:
    model = tiny_model()
    model.set_attn_implementation(attention)
    sequences = A, B, [7, 3, 3, 9, 1], [2, 2]
    seen = evaluate(
        model, pack_of(*sequences, temperature=temperature), chunk_elements=chunk_elements
    )
    expected = plain(model, *sequences, temperature=temperature)
    assert (seen.logp != 0).tolist() == (expected != 0).tolist()
    assert (seen.logp != 0).tolist()[:5] == [False, True, True, False, True]
    assert torch.allclose(seen.logp, expected, atol=1e-5)


@pytest.mark.parametrize("kept", [{2: [12, 4, 5]}, {4: [21, 4]}, {2: [12, 4, 5], 4: [21, 3]}])
def test_a_teachers_likeliest_ids_leave_kept_sets_as_they_are(kept: dict[int, list[int]]) -> None:
    """Also where the last token was drawn from all ids, and has no set behind it."""
    model, pack = tiny_model(), pack_of(A, B, kept=kept)
    taught = pack._replace(
        teacher_ids=pack.ids[:, None].repeat(1, 2),
        teacher_logprobs=torch.full((len(pack.ids), 2), -1.0),
        kl_weight=torch.ones(pack.ids.shape),
    )
    alone, seen = evaluate(model, pack), evaluate(model, taught)
    assert torch.allclose(seen.logp, alone.logp, atol=1e-5)
    assert torch.allclose(seen.entropy, alone.entropy, atol=1e-5)
    assert seen.among is not None and torch.equal(seen.among, seen.logp[:, None].repeat(1, 2))


def test_C107_a_token_of_one_sequence_changes_nothing_in_another() -> None:
    model = tiny_model()
    before = evaluate(model, pack_of(A, B)).logp
    after = evaluate(model, pack_of([10, 5, 12], B)).logp
    assert torch.equal(before[3:], after[3:])
    assert not torch.equal(before[1:3], after[1:3])


@pytest.mark.parametrize("chunk_elements", [1, 1 << 20])
def test_the_gradient_is_that_of_unpacked_sequences(chunk_elements: int) -> None:
    model = tiny_model()
    coefficients = torch.tensor([0.0, 1.0, -2.0, 0.0, 3.0])
    (plain(model, A, B) * coefficients).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    (
        evaluate(model, pack_of(A, B), chunk_elements=chunk_elements).logp * coefficients
    ).sum().backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(got) == len(expected) == len(list(model.parameters()))
    for mine, yours in zip(got, expected, strict=True):
        assert torch.allclose(mine, yours, rtol=1e-4, atol=1e-5)


def test_entropy_is_that_of_the_tempered_distribution() -> None:
    model = tiny_model()
    seen = evaluate(model, pack_of(A, temperature=0.7))
    logits = model(input_ids=torch.tensor([A])).logits[0, :-1]
    expected = torch.distributions.Categorical(logits=logits / 0.7).entropy()
    assert torch.allclose(seen.entropy[1:], expected, atol=1e-5)
    assert seen.entropy[0] == 0 and not seen.entropy.requires_grad


KEPT = {1: [2, 11, 14], 2: [12], 4: [0, 3, 5, 21, 22], 6: [3, 9]}
SEQUENCES = A, B, [7, 3, 3, 9, 1]


def textbook(model: "object", temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of SEQUENCES by one sequence at a time and a mask over all ids."""
    logp, entropy, at = [], [], 0
    for sequence in SEQUENCES:
        logits = model(input_ids=torch.tensor([sequence])).logits[0] / temperature  # type: ignore[operator]
        logp.append(torch.zeros(()))
        entropy.append(torch.zeros(()))
        for t in range(1, len(sequence)):
            ids = torch.tensor(KEPT.get(at + t, [*range(VOCABULARY)]))
            some = torch.distributions.Categorical(logits=logits[t - 1][ids])
            logp.append(some.log_prob((ids == sequence[t]).nonzero()[0, 0]))
            entropy.append(some.entropy().detach())
        at += len(sequence)
    return torch.stack(logp), torch.stack(entropy)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk_elements", [1, 2 * VOCABULARY, 1 << 20])
def test_C002_where_a_token_has_a_kept_set_it_is_renormalised_over_that(
    temperature: float, chunk_elements: int
) -> None:
    model = tiny_model()
    coefficients = torch.linspace(-2, 3, 10)
    logp, entropy = textbook(model, temperature)
    (logp * coefficients).sum().backward()
    expected = gradient(model)
    model.zero_grad()
    pack = pack_of(*SEQUENCES, temperature=temperature, kept=KEPT)
    seen = evaluate(model, pack, chunk_elements=chunk_elements)
    (seen.logp * coefficients).sum().backward()
    assert torch.allclose(seen.logp, logp, atol=1e-5)
    assert seen.logp[2] == 0 and seen.entropy[2] == 0  # of one id there is no choice
    assert torch.allclose(seen.entropy, entropy, atol=1e-5) and not seen.entropy.requires_grad
    assert (gradient(model) - expected).norm() <= 1e-5 * expected.norm()


def test_kept_sets_need_no_second_array_as_wide_as_the_vocabulary() -> None:
    """The logits stand once, as they do without kept sets; what follows is as small as the sets."""
    model = tiny_model()
    shapes: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        evaluate(model, pack_of([4] * 40, kept={t: [2, 4, 7] for t in range(1, 40)}))
    assert shapes.count((39, 3)) >= 1
    assert shapes.count((39, VOCABULARY)) == 1


def test_a_small_chunk_keeps_no_whole_logits_for_the_backward() -> None:
    model = tiny_model()
    widths: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim() == 2 and tensor.shape[-1] == VOCABULARY:
            widths.append(tensor.shape[0])
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        evaluate(model, pack_of([4] * 40), chunk_elements=4 * VOCABULARY)
        assert widths == []
        evaluate(model, pack_of([4] * 40))
        assert max(widths) == 39


def test_sequences_of_one_token_have_no_logprob() -> None:
    seen = evaluate(tiny_model(), pack_of([4], [5], A))
    assert (seen.logp != 0).tolist() == [False, False, False, True, True]
    assert evaluate(tiny_model(), pack_of([4], [5])).logp.tolist() == [0, 0]


def test_a_model_that_can_be_packed_passes_the_check() -> None:
    check(tiny_model())


def test_C107_a_model_whose_sequences_see_each_other_is_refused() -> None:
    model = tiny_model()
    forward = model.model.forward
    model.model.forward = lambda **inputs: forward(  # a back end that ignores the restart
        **{**inputs, "position_ids": torch.arange(8)[None]}
    )
    with pytest.raises(ConfigError, match="must not see each other"):
        check(model)


def test_a_model_that_caps_its_logits_is_refused() -> None:
    model = tiny_model()
    forward = model.forward

    def capped(**inputs: object) -> object:
        out = forward(**inputs)
        out.logits = 30 * torch.tanh(out.logits / 30)
        return out

    model.forward = capped
    with pytest.raises(ConfigError, match="straight from the head"):
        check(model)
