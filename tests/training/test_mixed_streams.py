"""Three streams in one batch, each by its own count: held against plain formulas on plain rows."""

import struct
from collections.abc import Sequence

import pytest
import torch
from made import (
    VOCABULARY,
    Batch,
    build,
    consider,
    gradient,
    group,
    member,
    plain_logprobs,
    rules,
    share,
    tiny_model,
)
from msgspec.structs import replace
from torch import Tensor

from pipeline.messages import Group, Member, Teaching
from pipeline.protocols import Pack
from services.training.backends.torch import TorchBackend
from services.training.losses import cispo
from services.training.objective import Objective
from services.training.optimize import act_alone
from services.training.planned import Imitated
from services.training.streams import Coefficients

PROMPT = (3, 4)
STREAMS = Coefficients(imitation=0.3, distillation=0.7)
RULES = rules()._replace(streams=STREAMS)
EXAMPLES = (
    Imitated(struct.pack("<2i", 5, 6), struct.pack("<3i", 7, 8, 0)),
    Imitated(struct.pack("<i", 9), struct.pack("<2i", 10, 0)),
)
ALONE = {"a0": [11, 12, 0], "a1": [13, 0], "b0": [14, 15, 16, 0], "b1": [17, 0]}
TEACHER = {"a0": [-0.5, -3.0, -0.1], "a1": [-4.0, -1.5], "b0": [-2.0] * 4, "b1": [-0.3, -6.0]}
MU = -1.7


def floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def taught(name: str, reward: float, teaching: Teaching | None = None) -> Member:
    ids = ALONE[name]
    made = member(ids, reward, logprobs=[MU] * len(ids))
    said = teaching or Teaching(logprobs=floats(TEACHER[name]))
    assert made.score
    return replace(made, score=replace(made.score, teaching=said))


def groups(**teachings: Teaching) -> list[Group]:
    """The first has a signal, the second has none."""
    rewards = {"a0": 1.0, "a1": 0.0, "b0": 1.0, "b1": 1.0}
    made = {name: taught(name, reward, teachings.get(name)) for name, reward in rewards.items()}
    return [
        group("a", [made["a0"], made["a1"]], seq=0, prompt=PROMPT),
        group("b", [made["b0"], made["b1"]], seq=1, prompt=PROMPT),
    ]


def batch(pack_tokens: int = 1000, **teachings: Teaching) -> Batch:
    judged = [consider(one, RULES) for one in groups(**teachings)]
    return build(judged, RULES, pack_tokens=pack_tokens, examples=EXAMPLES)


def learnt(packs: Sequence[Pack]) -> Tensor:
    model = tiny_model()
    backend, objective = TorchBackend(model), Objective(cispo)
    for pack in packs:
        backend.backward(
            pack,
            lambda logp, *among, pack=pack: objective(pack, logp, *among),  # type: ignore[misc]
        )
    return gradient(model)


def plain(kl: dict[str, Tensor] | None = None) -> Tensor:
    """Of 5 tokens with a signal, 5 to imitate, 11 to distil."""
    model = tiny_model()
    loss = torch.zeros(())
    for name, ids in ALONE.items():
        logp = plain_logprobs(model, [*PROMPT, *ids], 1.0)[1:]
        r = (logp.detach() - MU).exp()
        if name.startswith("a"):
            advantage = {"a0": 1.0, "a1": -1.0}[name] * 0.5**0.5
            loss = loss - (r.clamp(max=5) * advantage * logp).sum() / 5
        gap = (torch.tensor(TEACHER[name]) - logp.detach()).clamp(-20, 20)
        keep = (torch.tensor(MU).exp() - logp.detach().exp() <= 0.2).float()
        single = -(keep * r.clamp(max=5) * gap * logp).sum()
        if kl and name in kl:
            single = forward_kl(model, [*PROMPT, *ids], kl[name])
        loss = loss + 0.7 * single / 11
    for example in EXAMPLES:
        prompt, answer = (
            list(memoryview(raw).cast("i")) for raw in (example.prompt, example.answer)
        )
        logp = plain_logprobs(model, [*prompt, *answer], 1.0)[len(prompt) - 1 :]
        loss = loss - 0.3 * logp.sum() / 5
    loss.backward()
    return gradient(model)


def forward_kl(model: torch.nn.Module, ids: list[int], teacher: Tensor) -> Tensor:
    """Over the teacher's log-probs [T, V], of which some are -inf and left out."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, len(PROMPT) - 1 : -1]
    policy = logits.log_softmax(-1)
    there = teacher > -torch.inf
    return (teacher.exp()[there] * (teacher[there] - policy[there])).sum()


def likeliest(name: str, k: int) -> tuple[Teaching, Tensor]:
    """A teacher's k likeliest ids of each token, and the same as log-probs [T, V]."""
    logp = torch.randn(len(ALONE[name]), VOCABULARY, generator=torch.manual_seed(k)).log_softmax(-1)
    top, ids = logp.topk(k, dim=-1)
    said = Teaching(
        logprobs=floats(TEACHER[name]),
        top_ids=ids.int().numpy().tobytes(),
        top_logprobs=top.float().numpy().tobytes(),
    )
    return said, torch.full_like(logp, -torch.inf).scatter(1, ids, top)


def close(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(("pack_tokens", "packs"), [(1, 6), (12, 3), (1000, 1)])
def test_each_stream_is_weighed_by_its_own_count(pack_tokens: int, packs: int) -> None:
    made = batch(pack_tokens)
    assert len(made.packs) == packs
    assert close(learnt(made.packs), plain()) < 1e-5


def test_the_streams_are_shared_out_among_ranks_as_any_tokens() -> None:
    shares = share(batch().packs, 2, 12)
    assert close(learnt([pack for mine in shares for pack in mine]), plain()) < 1e-5


@pytest.mark.parametrize("pack_tokens", [1, 12, 1000])
def test_the_teachers_likeliest_ids_are_learnt_where_they_are_known(pack_tokens: int) -> None:
    """One member has three a token, another two, the others none."""
    first, second = likeliest("a0", 3), likeliest("b0", 2)
    made = batch(pack_tokens, a0=first[0], b0=second[0])
    assert made.packs[0].teacher_ids.shape[1] == 3
    expected = plain({"a0": first[1], "b0": second[1]})
    assert close(learnt(made.packs), expected) < 1e-5
    assert (
        close(learnt([one for mine in share(made.packs, 2, 12) for one in mine]), expected) < 1e-5
    )


def test_another_count_would_be_seen() -> None:
    (pack,) = batch().packs
    for column in ("weight", "ce_weight", "kl_weight"):
        changed = pack._replace(**{column: getattr(pack, column) * 1.1})
        assert close(learnt([changed]), plain()) > 1e-3, column


def test_a_group_without_a_signal_is_trained_for_its_teacher_alone() -> None:
    made = batch()
    assert [*made.fates["b"]] == ["trained"]
    weighed = (made.packs[0].weight > 0).sum(), (made.packs[0].kl_weight > 0).sum()
    assert [int(n) for n in weighed] == [5, 11]
    untaught = RULES._replace(streams=Coefficients(imitation=0.3))
    assert consider(groups()[1], untaught).verdict == "zero_signal"


def test_what_no_teacher_spoke_of_is_not_in_the_count_of_distillation() -> None:
    first, second = groups()
    untaught = first.members[1]
    assert untaught.score
    first.members[1] = replace(untaught, score=replace(untaught.score, teaching=None))
    judged = [consider(one, RULES) for one in (first, second)]
    (pack,) = build(judged, RULES, pack_tokens=1000).packs
    assert pack.kl_weight[pack.kl_weight > 0].tolist() == pytest.approx([0.7 / 9] * 9)


def test_examples_are_no_tokens_of_the_run_and_alone_no_step() -> None:
    made = batch()
    assert (
        made.tokens == 11 and sum(s.tokens for f in made.fates.values() for s in f.values()) == 11
    )
    assert not build([], RULES, pack_tokens=1000, examples=EXAMPLES).packs


def test_what_the_streams_learn_is_told_by_stream() -> None:
    done = act_alone(TorchBackend(tiny_model()), Objective(cispo), batch(12).packs, 1e-3)
    model = tiny_model()
    rows = [[*PROMPT, *ids] for ids in ALONE.values()]
    logp = torch.cat([plain_logprobs(model, row, 1.0)[1:] for row in rows])
    teacher = torch.tensor([value for values in TEACHER.values() for value in values])
    ce = [
        -plain_logprobs(model, [5, 6, 7, 8, 0], 1.0)[1:].sum().item(),
        -plain_logprobs(model, [9, 10, 0], 1.0).sum().item(),
    ]
    assert done.statistics.streams() == pytest.approx(
        {
            "imitated_tokens": 5,
            "ce_loss": sum(ce) / 5,
            "distilled_tokens": 11,
            "kl_loss": float((logp - teacher).mean()),
        },
        rel=1e-4,
    )
    assert sum(count for _, count in done.statistics.tokens_by_lag()) == 11


@pytest.mark.parametrize(
    "wrong",
    [
        Teaching(logprobs=floats([-1.0])),
        Teaching(logprobs=floats([-1.0, float("nan"), -1.0])),
        Teaching(logprobs=floats([-1.0, 0.5, -1.0])),
        Teaching(logprobs=floats([-1.0] * 3), top_ids=bytes(12), top_logprobs=bytes(8)),
        Teaching(
            logprobs=floats([-1.0] * 3),
            top_ids=struct.pack("<3i", 1, VOCABULARY, 1),
            top_logprobs=floats([-1.0] * 3),
        ),
    ],
)
def test_a_teachers_word_that_cannot_be_costs_the_member(wrong: Teaching) -> None:
    judged = consider(groups(a0=wrong)[0], RULES, vocabulary=VOCABULARY)
    assert judged.fates["scorer_error"].tokens == 3
    assert judged.rows[0].tokens == 0 and judged.rows[1].tokens == 2
