import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from made import build, consider, gradient, group, member, rules, tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from pipeline.disk import new_folder
from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.protocols import Pack, Rank
from services.training.backends.torch import TorchBackend
from services.training.losses import cispo
from services.training.objective import Objective

BAD = [float("nan"), float("inf")]


@pytest.fixture
def pack() -> Pack:
    members = [member([5, 6, 7], 1.0, logprobs=[-3.0] * 3), member([9, 2], 0.0)]
    (pack,) = build([consider(group("g", members), rules())], rules(), pack_tokens=99).packs
    return pack


def backward(backend: Rank, pack: Pack, scale: float = 1.0) -> None:
    objective = Objective(cispo)
    backend.backward(pack, lambda logp: scale * objective(pack, logp))


def copies(backend: Rank) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in backend.weights()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_step_moves_every_parameter_and_raises_what_was_rewarded(pack: Pack) -> None:
    backend = TorchBackend(tiny_model())
    before = copies(backend)
    backward(backend, pack)
    good = (pack.advantage > 0) & (pack.weight > 0)
    was = backend.last.logp[good].sum()
    result = backend.step(1e-3)
    assert result.finite and result.grad_norm > 0
    assert all(not torch.equal(before[name], tensor) for name, tensor in backend.weights())
    backward(backend, pack)
    assert backend.last.logp[good].sum() > was


@pytest.mark.parametrize("bad", BAD)
def test_C101_a_step_that_is_not_finite_is_not_taken_and_leaves_no_trace(
    pack: Pack, bad: float
) -> None:
    backend, twin = TorchBackend(tiny_model()), TorchBackend(tiny_model())
    before = copies(backend)
    backward(backend, pack, scale=bad)
    result = backend.step(1e-3)
    assert not result.finite and not torch.tensor(result.grad_norm).isfinite()
    assert same(before, copies(backend))
    for each in (backend, twin):
        backward(each, pack)
        assert each.step(1e-3).finite
    assert same(copies(backend), copies(twin))


def test_C072_a_step_without_gradients_is_not_taken(pack: Pack) -> None:
    backend = TorchBackend(tiny_model())
    backward(backend, pack)
    backend.step(1e-3)
    before = copies(backend)
    assert backend.step(1e-3) == (False, 0.0)
    assert same(before, copies(backend))


def test_the_norm_is_that_before_clipping_and_the_clip_bounds_the_step(pack: Pack) -> None:
    loose, tight = (TorchBackend(tiny_model(), clip_norm=norm) for norm in (1e9, 1e-9))
    for backend in (loose, tight):
        backward(backend, pack)
    expected = gradient(loose.model).norm().item()
    before = copies(tight)
    norms = [backend.step(1e-2).grad_norm for backend in (loose, tight)]
    assert norms == pytest.approx([expected, expected], rel=1e-5)
    # AdamW's epsilon is 1e-8: gradients far below it hardly move anything.
    moved = max((before[n] - t).abs().max().item() for n, t in tight.weights())
    assert 0 < moved < 2e-3


def test_the_learning_rate_is_that_of_the_step(pack: Pack) -> None:
    backend = TorchBackend(tiny_model())
    before = copies(backend)
    for rate, still in ((0.0, True), (1e-3, False)):
        backward(backend, pack)
        backend.step(rate)
        assert same(before, copies(backend)) is still


def test_dropout_is_off_so_that_the_policy_is_the_one_that_was_sampled_from(pack: Pack) -> None:
    model = tiny_model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    backend = TorchBackend(model.train())
    seen = []
    for _ in range(2):
        backward(backend, pack)
        seen.append(backend.last.logp)
    assert torch.equal(*seen)


def test_two_runs_give_the_same_weights_bit_for_bit(pack: Pack) -> None:
    ends = []
    for _ in range(2):
        backend = TorchBackend(tiny_model())
        for _ in range(3):
            backward(backend, pack)
            backend.step(1e-3)
        ends.append(fingerprint(backend.weights()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_what_was_saved_bit_for_bit(
    tmp_path: Path, pack: Pack, tied: bool
) -> None:
    backend = TorchBackend(tiny_model(tied=tied))
    names = [name for name, _ in backend.weights()]
    assert ("lm_head.weight" in names) is not tied
    backward(backend, pack)
    backend.step(1e-3)
    folder = tmp_path / "v1"
    backend.save(str(folder))
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert fingerprint(named_parameters(loaded)) == fingerprint(backend.weights())
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def die_in(folder: Path) -> None:
    with new_folder(folder) as half:
        (half / "model.safetensors").write_bytes(b"half of")
        (half / "left-over").write_bytes(b"")
        os.kill(os.getpid(), signal.SIGKILL)


def test_C039_a_save_that_was_cut_off_has_no_name_and_does_not_stop_the_next(
    tmp_path: Path,
) -> None:
    backend = TorchBackend(tiny_model())
    folder = tmp_path / "v1"
    child = multiprocessing.get_context("fork").Process(target=die_in, args=(folder,))
    child.start()
    child.join()
    (half,) = tmp_path.glob("*")
    backend.save(str(folder))
    assert not half.exists() and not (folder / "left-over").exists()
    AutoModelForCausalLM.from_pretrained(folder)


def test_a_folder_that_exists_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "v1"
    folder.mkdir()
    (folder / "mine").write_bytes(b"")
    with pytest.raises(OSError, match="v1"):
        TorchBackend(tiny_model()).save(str(folder))
    assert [path.name for path in folder.iterdir()] == ["mine"]
