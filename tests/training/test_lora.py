"""Adapters alone are trained and travel; the model beneath them is proven with each version."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made import tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from pipeline.errors import ConfigError
from pipeline.messages import Manifest
from pipeline.model.fingerprint import describe_all, fingerprint, frozen_parameters
from pipeline.model.lora import lora
from pipeline.model.merged import merged
from pipeline.weights.publisher import Publisher
from pipeline.weights.shm import ShmTransport
from services.inference.engines.hf.flip import LiveWeights
from services.training.backends.torch import TorchBackend

IDS = torch.arange(2, 20)[None]


class Trainer:
    """A model with adapters that moves at random, and publishes."""

    def __init__(self, folder: Path, *, seed: int = 5, **options: Any) -> None:
        self.model = lora(tiny_model(seed=seed), **{"rank": 4, **options})
        self.backend = TorchBackend(self.model)
        self.transport = ShmTransport(folder=str(folder), run="run")
        self.manifests: list[Manifest] = []
        frozen = describe_all(frozen_parameters(self.model))
        self.publisher = Publisher(self.manifests.append, self.transport, epoch=1, frozen=frozen)

    def step(self) -> None:
        for _, tensor in self.backend.weights():
            tensor += 0.05 * torch.randn_like(tensor)

    def publish(self, version: int) -> Manifest:
        self.publisher.publish(version, version, self.backend.weights())
        self.publisher.flush()
        return self.manifests[-1]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    torch.manual_seed(0)
    made = Trainer(tmp_path)
    yield made
    made.transport.close()


class Receiver:
    """Live parameters that follow what is announced."""

    def __init__(self, model: Any, transport: ShmTransport) -> None:
        self.model, self.live, self._transport = model, LiveWeights(model), transport

    def follow(self, manifest: Manifest) -> str:
        """Stage and flip; why that failed, or nothing."""
        self.live.stage(manifest, self._transport)
        assert self.live._staging.wait(20.0)
        return self.live.error() or ("" if self.live.swap() else "nothing was staged")


def base_of(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in frozen_parameters(model)}


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(IDS).logits
    return out


def test_the_policy_starts_as_the_model_that_it_adapts(trainer: Trainer) -> None:
    assert torch.equal(logits(trainer.model), logits(tiny_model()))


def test_adapters_travel_and_nothing_else(trainer: Trainer) -> None:
    trainer.step()
    manifest = trainer.publish(1)
    sent = dict(trainer.transport.receive(manifest))
    assert sent.keys() == dict(trainer.backend.weights()).keys()
    assert all("lora_" in name for name in sent)
    assert {entry.name for entry in manifest.tensors} > sent.keys()


def test_an_engine_that_follows_is_the_trainers_policy_bit_for_bit_and_its_base_never_drifts(
    trainer: Trainer,
) -> None:
    engine = Receiver(lora(tiny_model(), rank=4), trainer.transport)
    base = base_of(engine.model)
    for version in range(1, 21):
        trainer.step()
        manifest = trainer.publish(version)
        assert engine.follow(manifest) == ""
        assert engine.live.fingerprint() == manifest.fingerprint
    assert torch.equal(logits(engine.model), logits(trainer.model))
    assert all(torch.equal(base[name], tensor) for name, tensor in base_of(engine.model).items())


def test_an_engine_on_another_base_refuses_and_says_which_tensor(trainer: Trainer) -> None:
    engine = Receiver(lora(tiny_model(seed=6), rank=4), trainer.transport)
    trainer.step()
    error = engine.follow(trainer.publish(1))
    assert "frozen here with checksum" in error and "model.path" in error


def test_an_engine_without_adapters_refuses(trainer: Trainer) -> None:
    engine = Receiver(tiny_model(), trainer.transport)
    assert "unknown to this model" in engine.follow(trainer.publish(1))


def test_a_base_that_changed_under_the_engine_is_seen_in_its_fingerprint(trainer: Trainer) -> None:
    engine = Receiver(lora(tiny_model(), rank=4), trainer.transport)
    trainer.step()
    manifest = trainer.publish(1)
    assert engine.follow(manifest) == ""
    frozen_parameters(engine.model)[3][1].data.flatten()[0] += 1e-3
    assert engine.live.fingerprint() != manifest.fingerprint


@pytest.mark.parametrize("rslora", [False, True])
def test_the_saved_model_is_whole_and_needs_no_adapter(tmp_path: Path, rslora: bool) -> None:
    trainer = Trainer(tmp_path, rslora=rslora)
    trainer.step()
    trainer.backend.save(str(tmp_path / "whole"))
    plain: Any = AutoModelForCausalLM
    loaded = plain.from_pretrained(tmp_path / "whole")
    assert (logits(loaded) - logits(trainer.model)).abs().max() < 1e-4
    trainer.transport.close()


@pytest.mark.parametrize(("rslora", "scale"), [(False, 32 / 4), (True, 32 / 2)])
def test_the_scale_is_alpha_over_rank_or_its_root(rslora: bool, scale: float) -> None:
    """Hu et al., 2021, and Kalajdzievski, 2023: worked here without the library."""
    model = lora(tiny_model(), rank=4, alpha=32, rslora=rslora, targets=["q_proj"])
    named = dict(model.named_parameters())
    at = "model.layers.0.self_attn.q_proj"
    a, b = (named[f"{at}.lora_{one}.default.weight"].data for one in "AB")
    b.normal_()
    whole = merged(model)[f"{at}.weight"]
    assert torch.allclose(whole, named[f"{at}.base_layer.weight"] + scale * (b @ a), atol=1e-5)


def test_training_goes_on_bit_for_bit_from_a_state_of_adapters(tmp_path: Path) -> None:
    first, second = Trainer(tmp_path / "a"), Trainer(tmp_path / "b")
    first.step()
    first.backend.snapshot().write(str(tmp_path))
    second.backend.load_state(str(tmp_path / "state"))
    assert fingerprint(second.backend.weights()) == fingerprint(first.backend.weights())
    size = sum(path.stat().st_size for path in (tmp_path / "state").iterdir())
    assert size < sum(t.nbytes for t in base_of(first.model).values())


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.adapter\.targets.*nope.*linear layers"):
        lora(tiny_model(), targets=["nope"])
