"""The same step on one rank or two, whatever is sharded: the same gradient, the same parameters.

The steps are made by real processes, see `rank_cases.py`: one job of each size for all tests. What
they are held against is the plain back end in this process, and plain formulas.
"""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from made import gradient, tiny_model
from rank_cases import BETA, CANARY, CASES, GATHERED_BYTES, MODES, RATE, STAGES, Case
from rank_cases import main as leave
from rank_forks import forked
from safetensors.torch import load_file
from test_gradient import close, plain_cispo, plain_gradient, plain_ppo
from torch import Tensor
from transformers import AutoModelForCausalLM

from pipeline.model.fingerprint import fingerprint, named_parameters
from services.training.backends.torch import TorchBackend
from services.training.objective import Objective
from services.training.optimize import act_alone, told

WORLDS = (1, 2)
TOLERANCE = 1e-5
AFTER_ADAMW = 1e-4
"""Its first step divides a gradient by its own size: where that is about 0, rounding shows."""

pytestmark = pytest.mark.timeout(400)  # of which nearly all is the start of the jobs
everywhere = pytest.mark.parametrize("stage", STAGES)
on_any_world = pytest.mark.parametrize("world", WORLDS)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What the jobs left, by the number of their ranks; they run side by side."""
    folders = {world: tmp_path_factory.mktemp(f"ranks{world}") for world in WORLDS}
    logs = tmp_path_factory.mktemp("logs")
    running = [
        rank
        for world in WORLDS
        for rank in forked(world, logs, leave, folders[world], folders[3 - world])
    ]
    try:
        for rank in running:
            assert rank.end(300) == 0, f"{rank.output.name}: {rank.output.read_text()[-3000:]}"
    finally:
        for rank in running:
            rank.kill()
    return folders


def said(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.with_suffix(".json").read_text())
    return found


def left(folder: Path, kind: str, tied: bool) -> Tensor:
    """Of a state, all tensors of a kind in the order of the model's parameters, flat."""
    tensors = load_file(folder / "state-00000.safetensors")
    names = [name for name, _ in tiny_model(tied=tied).named_parameters()]
    return torch.cat([tensors[f"{kind}:{name}"].flatten() for name in names])


def gradient_of(folder: Path, tied: bool) -> Tensor:
    """AdamW's first moment after its first step is (1 - beta) times the gradient."""
    return left(folder, "exp_avg", tied) / (1 - BETA)


@cache
def plain(name: str, tied: bool) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Gradient, new parameters and statistics of a case on the plain back end, one process."""
    case, model = CASES[name], tiny_model(tied=tied)
    backend = TorchBackend(model, clip_norm=1e9)
    objective = told(backend, Objective(case.loss), case.packs())
    for pack in case.packs():
        backend.backward(pack, partial(objective, pack))
    found = gradient(model)
    backend.step(0.0)
    fresh = tiny_model(tied=tied)
    done = act_alone(TorchBackend(fresh, clip_norm=1e9), objective, case.packs(), RATE)
    assert done.result.finite
    parameters = torch.cat([p.detach().flatten() for p in fresh.parameters()])
    return found, parameters, done.statistics.summary()


@on_any_world
@everywhere
@pytest.mark.parametrize("name", CASES)
def test_C099_C100_a_step_is_that_of_one_process_with_plain_torch(
    jobs: dict[int, Path], world: int, stage: int, name: str
) -> None:
    folder, tied = jobs[world] / str(stage) / name, stage != 2
    expected, parameters, summary = plain(name, tied)
    assert close(gradient_of(folder, tied), expected) < TOLERANCE
    assert close(left(folder, "parameter", tied), parameters) < AFTER_ADAMW
    report = said(folder)
    ((finite, norm),) = report.pop("results")
    assert finite and norm == pytest.approx(expected.norm().item(), rel=TOLERANCE)
    assert report == pytest.approx(summary, rel=1e-4)


@on_any_world
@everywhere
@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("padded", plain_cispo),
        ("8 packs", plain_cispo),
        ("2 packs", plain_cispo),
        ("1 pack", plain_cispo),
        ("ppo", plain_ppo),
        ("long tail", plain_cispo),
        ("long tail padded", plain_cispo),
    ],
)
def test_C095_C097_a_step_is_that_of_the_plain_formula(
    jobs: dict[int, Path], world: int, stage: int, name: str, formula: Any
) -> None:
    folder, tied = jobs[world] / str(stage) / name, stage != 2
    expected, _, _ = plain_gradient(CASES[name].groups(), formula, tied=tied)
    assert close(gradient_of(folder, tied), expected) < TOLERANCE


def test_the_packs_are_as_many_as_they_are_called() -> None:
    counts = {name: len(case.packs()) for name, case in CASES.items()}
    assert (counts["padded"], counts["8 packs"], counts["2 packs"], counts["1 pack"]) == (
        8,
        8,
        2,
        1,
    )
    assert (counts["C099 3 and 2"], counts["C099 1 and 0"]) == (5, 1)


@on_any_world
@everywhere
def test_C096_one_token_of_loss_10_and_nine_of_0_weigh_a_tenth_on_two_ranks(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    """The gradient is that of the one token's log-prob: 10/10, and not 10/1/2."""
    tied = stage != 2
    model, case = tiny_model(tied=tied), CASES["C096"]
    (pack,) = case.packs()
    ids = pack.ids[pack.sequence == 0]
    (-model(input_ids=ids[None]).logits[0, -2].log_softmax(-1)[ids[-1]]).backward()
    folder = jobs[world] / str(stage) / "C096"
    assert close(gradient_of(folder, tied), gradient(model)) < TOLERANCE


@on_any_world
@everywhere
def test_C101_a_gradient_that_is_infinite_on_one_rank_skips_the_step_on_all(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    folder = jobs[world] / str(stage)
    report = said(folder / "C101")
    assert report["same"], "weights have moved"
    assert [finite for finite, _ in report["results"]] == [False] * 3
    assert all(norm in ("inf", "nan") for _, norm in report["results"])
    for kind in ("parameter", "exp_avg", "exp_avg_sq", "step"):
        after, never = (left(folder / name, kind, stage != 2) for name in ("after C101", "2 packs"))
        assert torch.equal(after, never), f"{kind} remembers the skipped steps"


@on_any_world
@everywhere
def test_the_canary_is_the_plain_models_on_every_rank_and_changes_no_step(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    folder, tied = jobs[world] / str(stage), stage != 2
    model = tiny_model(tied=tied)
    before, after = said(folder / "scored")["results"]
    assert before == pytest.approx(plain_canary(model), abs=1e-5)
    act_alone(
        TorchBackend(model, clip_norm=1e9),
        Objective(CASES["2 packs"].loss),
        CASES["2 packs"].packs(),
        RATE,
    )
    assert after == pytest.approx(plain_canary(model), abs=1e-3) and after != before
    for kind in ("parameter", "exp_avg", "exp_avg_sq", "step"):
        scored, never = (left(folder / name, kind, tied) for name in ("scored", "2 packs"))
        assert torch.equal(scored, never), f"{kind} has noticed that the canary was scored"


def plain_canary(model: Any) -> list[float]:
    with torch.no_grad():
        logp = model(torch.tensor([CANARY]), use_cache=False).logits[0].log_softmax(-1)
    return [float(logp[at, CANARY[at + 1]]) for at in range(len(CANARY) - 1)]


@on_any_world
@everywhere
def test_training_goes_on_after_a_load_bit_for_bit(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    straight, resumed = said(jobs[world] / str(stage) / "resumed")["results"]
    assert straight == resumed


@on_any_world
@everywhere
def test_a_state_goes_on_under_another_back_end(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    """Two more steps of the plain one, from the state that the sharded one left after its first."""
    folder, tied = jobs[world] / str(stage), stage != 2
    case = CASES["2 packs"]
    ends = []
    for start in ("resumed", "start"):
        model = tiny_model(tied=tied, seed=9)
        backend = TorchBackend(model, clip_norm=1e9)
        backend.load_state(str(folder / start))
        for _ in range(2 if start == "resumed" else 3):
            assert act_alone(backend, Objective(case.loss), case.packs(), RATE).result.finite
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert close(*ends) < TOLERANCE


@on_any_world
@everywhere
def test_a_state_goes_on_with_another_number_of_ranks(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    """2 -> 1 and 1 -> 2, against the run that was not interrupted."""
    tied = stage != 2
    crossed, straight = jobs[world] / str(stage) / "crossed", jobs[3 - world] / str(stage)
    for kind in ("parameter", "exp_avg", "exp_avg_sq", "step"):
        ends = (left(folder, kind, tied) for folder in (crossed, straight / "straight"))
        assert close(*ends) < TOLERANCE


@on_any_world
@everywhere
def test_a_state_of_the_plain_back_end_goes_on_in_shards(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    folder, tied = jobs[world] / str(stage), stage != 2
    ends = (left(folder / name, "parameter", tied) for name in ("from torch", "straight"))
    assert close(*ends) < TOLERANCE


@on_any_world
@pytest.mark.parametrize("mode", MODES)
def test_offloaded_or_in_bfloat16_training_goes_on_after_a_load_bit_for_bit(
    jobs: dict[int, Path], world: int, mode: str
) -> None:
    straight, resumed = said(jobs[world] / mode / "resumed")["results"]
    assert straight == resumed


@on_any_world
@pytest.mark.parametrize("mode", MODES)
def test_what_is_put_away_trains_alike_and_bfloat16_has_nearly_the_gradient(
    jobs: dict[int, Path], world: int, mode: str
) -> None:
    """And float32 masters, which bfloat16 could not hold."""
    folder, plain = jobs[world] / mode, jobs[world] / "1"
    ends = left(folder / "straight", "parameter", True)
    if "bfloat16" in mode:
        gradients = (gradient_of(one / "resumed", True) for one in (folder, plain))
        assert close(*gradients) < 0.1
        assert close(ends, ends.bfloat16().float()) > 1e-5
    else:
        assert close(ends, left(plain / "straight", "parameter", True)) < TOLERANCE


@on_any_world
def test_weights_are_gathered_in_buckets_and_never_all_at_once(
    jobs: dict[int, Path], world: int
) -> None:
    peaks = said(jobs[world] / "3" / "gathered")
    assert peaks["before"] == 0, "the parameters are in shards"
    whole = [parameter.nbytes for parameter in tiny_model().parameters()]
    assert max(whole) <= peaks["weights"] <= GATHERED_BYTES < sum(whole) / 4
    assert peaks["masters"] <= max(whole)


@on_any_world
@everywhere
def test_transformers_loads_what_was_saved_bit_for_bit(
    jobs: dict[int, Path], world: int, stage: int
) -> None:
    folder = jobs[world] / str(stage)
    loaded = AutoModelForCausalLM.from_pretrained(folder / "saved", dtype=torch.float32)
    assert fingerprint(named_parameters(loaded)) == said(folder / "resumed")["saved"]


def test_another_denominator_would_be_seen() -> None:
    """What the first tests hold against each other can differ: one token less in a batch of 56."""
    case: Case = CASES["1 pack"]
    model = tiny_model()
    backend, objective = TorchBackend(model), Objective(case.loss)
    (pack,) = case.packs()
    backend.backward(pack, lambda logp: objective(pack, logp) * 56 / 55)
    assert close(gradient(model), plain("1 pack", True)[0]) > 1e-2
