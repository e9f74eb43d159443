"""What a back end leaves on disk is all that it needs to go on."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from made import build, consider, group, member, rules, tiny_model
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.protocols import Pack, Rank
from services.training.backends.state import buckets, read, write
from services.training.backends.torch import TorchBackend
from services.training.losses import cispo
from services.training.objective import Objective

BETAS = (0.9, 0.95)


def made_packs(seed: int) -> list[Pack]:
    members = [member([5 + seed, 6, 7], 1.0, logprobs=[-3.0] * 3), member([9, 2], 0.0)]
    batch = build([consider(group("g", members), rules())], rules(), pack_tokens=1)
    return list(batch.packs)


def train(backend: Rank, steps: range) -> None:
    objective = Objective(cispo)
    for step in steps:
        for pack in made_packs(step):
            backend.backward(pack, lambda logp, pack=pack: objective(pack, logp))
        assert backend.step(1e-2).finite


def weights(backend: Rank) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in backend.weights()}


def saved(backend: Rank, folder: Path) -> str:
    """The `state/` of a snapshot in the folder, which may not exist yet."""
    folder.mkdir(exist_ok=True)
    backend.snapshot().write(str(folder))
    return str(folder / "state")


def entries(folder: Path) -> dict[str, list[str]]:
    """By file: what a state has written itself, and what it refers to."""
    files: dict[str, list[str]] = json.loads((folder / "state.json").read_text())["files"]
    return files


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_training_goes_on_after_a_load_as_if_it_had_not_stopped_bit_for_bit(
    tmp_path: Path, before: int, tied: bool
) -> None:
    straight = TorchBackend(tiny_model(tied=tied), weight_decay=0.1)
    train(straight, range(before))
    folder = saved(straight, tmp_path)
    train(straight, range(before, before + 3))
    # Another start, and moments of its own: nothing of either may survive the load.
    resumed = TorchBackend(tiny_model(tied=tied, seed=8), weight_decay=0.1)
    train(resumed, range(7, 9))
    resumed.load_state(folder)
    train(resumed, range(before, before + 3))
    expected, got = weights(straight), weights(resumed)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_a_snapshot_is_as_it_was_whatever_is_trained_before_it_is_written(tmp_path: Path) -> None:
    backend = TorchBackend(tiny_model())
    train(backend, range(1))
    now, taken = (backend.snapshot() for _ in range(2))
    before = {key: tensor.clone() for key, tensor in now.state.items()}
    train(backend, range(1, 3))
    taken.write(str(tmp_path))
    resumed = TorchBackend(tiny_model(seed=8))
    resumed.load_state(str(tmp_path / "state"))
    after = resumed.snapshot().state
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_weights_that_the_model_beside_has_are_not_written_twice(tmp_path: Path) -> None:
    backend = TorchBackend(tiny_model())
    train(backend, range(2))
    model, own = entries(Path(saved(backend, tmp_path))).values()
    assert {key.partition(":")[0] for key in own} == {"step", "exp_avg", "exp_avg_sq", "numbers"}
    assert {key.removeprefix("parameter:") for key in model} == weights(backend).keys()


def test_a_weight_that_the_model_beside_has_otherwise_is_written(tmp_path: Path) -> None:
    backend = TorchBackend(tiny_model())
    backend.save(str(tmp_path / "model"))
    name, changed = next(iter(backend.weights()))
    changed.view(-1)[0] += 1
    (folder := tmp_path / "state").mkdir()
    write(str(folder), [(f"parameter:{n}", t) for n, t in backend.weights()])
    assert entries(folder)["state-00000.safetensors"] == [f"parameter:{name}"]
    resumed = TorchBackend(tiny_model(seed=8))
    resumed.load_state(str(folder))
    assert all(torch.equal(weights(backend)[n], t) for n, t in resumed.weights())


def test_a_state_without_the_model_that_it_refers_to_is_refused(tmp_path: Path) -> None:
    folder = saved(TorchBackend(tiny_model()), tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"\.\./model/model.safetensors cannot be read"):
        TorchBackend(tiny_model()).load_state(folder)


def test_gradients_that_were_not_stepped_on_do_not_survive_a_load(tmp_path: Path) -> None:
    backend = TorchBackend(tiny_model())
    folder = saved(backend, tmp_path)
    pack = made_packs(0)[0]
    backend.backward(pack, lambda logp: logp.sum())
    backend.load_state(folder)
    assert backend.step(1e-3) == (False, 0.0)


def test_files_are_of_bounded_size_and_hold_each_tensor_once(tmp_path: Path) -> None:
    lengths = (1, 40, 3, 2, 9)
    tensors = {f"parameter:{n}": torch.full((n,), float(n)) for n in lengths}
    write(str(tmp_path), tensors.items(), file_bytes=48)
    sizes = [[*part] for part in buckets(tensors.items(), 48)]
    assert sizes == [
        ["parameter:1"],
        ["parameter:40"],
        [f"parameter:{n}" for n in (3, 2)],
        ["parameter:9"],
    ]
    assert len([*tmp_path.glob("*.safetensors")]) == 4
    got = dict(read(str(tmp_path), {str(n): (n,) for n in lengths}))
    assert [*got] == [*tensors] and all(torch.equal(got[k], tensors[k]) for k in tensors)


def test_the_state_of_another_model_is_refused_with_both_sides_named_and_nothing_changed(
    tmp_path: Path,
) -> None:
    folder = saved(TorchBackend(tiny_model(tied=False)), tmp_path)
    backend = TorchBackend(tiny_model())
    train(backend, range(1))
    before = backend.snapshot().state
    said = "1 parameters differ (lm_head.weight is 23 x 32 there and absent here)"
    with pytest.raises(ConfigError, match=re.escape(said)):
        backend.load_state(folder)
    after = backend.snapshot().state
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_parameter_of_another_shape_is_refused_and_not_stretched(tmp_path: Path) -> None:
    """[1] would be copied into any shape."""
    own = {name: tensor for name, tensor in weights(TorchBackend(tiny_model())).items()}
    first = next(iter(own))
    write(str(tmp_path), [(f"parameter:{n}", t[:1] if n == first else t) for n, t in own.items()])
    with pytest.raises(ConfigError, match="is 1 x 32 there and 23 x 32 here"):
        TorchBackend(tiny_model()).load_state(str(tmp_path))


def test_the_state_of_another_optimizer_is_refused_with_both_sides_named(tmp_path: Path) -> None:
    own = weights(TorchBackend(tiny_model()))
    kinds = ("parameter", "momentum_buffer")
    named = [(f"{kind}:{n}", t.clone()) for n, t in own.items() for kind in kinds]
    write(str(tmp_path), named)
    with pytest.raises(ConfigError, match="has momentum_buffer, and AdamW has step, exp_avg"):
        TorchBackend(tiny_model()).load_state(str(tmp_path))


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    backend = TorchBackend(tiny_model())
    torch.rand(3), random.gauss(), np.random.randn()  # halves of a pair are kept
    folder = saved(backend, tmp_path)

    def draw() -> list[float]:
        gauss = [random.gauss(), random.random(), np.random.randn(), np.random.rand()]
        return [*torch.rand(4).tolist(), *gauss]

    expected = draw()
    backend.load_state(folder)
    assert draw() == expected


@pytest.mark.parametrize("fault", ["no table", "format", "no file", "cut", "cut table", "list"])
def test_a_state_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, fault: str) -> None:
    folder = Path(saved(TorchBackend(tiny_model()), tmp_path))
    table, (file,) = folder / "state.json", folder.glob("*.safetensors")
    match fault:
        case "no table":
            table.unlink()
        case "format":
            table.write_text(json.dumps({"format": "sluice-state/9", "files": {}}))
        case "no file":
            file.unlink()
        case "cut":
            file.write_bytes(file.read_bytes()[:1000])
        case "cut table":
            table.write_text(table.read_text()[:30])
        case "list":
            table.write_text(json.dumps({"format": "sluice-state/1", "files": []}))
    with pytest.raises(ConfigError, match="go on from another checkpoint") as raised:
        TorchBackend(tiny_model()).load_state(str(folder))
    assert "\n" not in str(raised.value)
