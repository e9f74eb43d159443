"""What a version tells of the canary: the trainer's own log-probs, through stops and losses."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from planted import MODEL, Lead, Stream, feed, made_run, put_back, saved, wait_until
from transformers import GPT2Config, LlamaConfig

from pipeline.codec import decode, encode
from pipeline.messages import Canary, Manifest
from pipeline.model.load import load_model
from pipeline.run import Run
from pipeline.run import Training as Keys
from pipeline.serve import EXIT_DONE
from services.training.canary import TOKENS, prompt_of
from services.training.replay import replay


@pytest.fixture(params=["float32", "bfloat16"])
def run(
    run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Run:
    """Its parameter is the dtype that the weights travel in."""
    monkeypatch.chdir(tmp_path)
    keys = Keys(learning_rate=1e-3, warmup_steps=0, checkpoint_every=2)
    weights = {"use": "shm", "folder": str(tmp_path)}
    return made_run(run_name, steps=9, weights=weights, training=keys, dtype=request.param)


float32 = pytest.mark.parametrize("run", ["float32"], indirect=True)


def told(stream: Stream, version: int) -> Canary:
    """Of the version, once it is announced."""
    wait_until(lambda: stream.bus.state().version == version, f"version {version}")
    manifest = stream.bus.versions.newest()
    assert manifest and manifest.version == version and manifest.canary
    return manifest.canary


def ids(canary: Canary) -> list[int]:
    return array("i", canary.ids).tolist()


def by_hand(canary: Canary, path: str) -> list[float]:
    """The log-probs of a model on disk, in float32."""
    known = torch.tensor([ids(canary)])
    with torch.no_grad():
        logp = load_model(path)(known, use_cache=False).logits[0, :-1].log_softmax(-1)
    found: list[float] = logp.gather(-1, known[0, 1:, None])[:, 0].tolist()
    return found


def test_each_version_tells_the_log_probs_of_the_policy_as_it_is_trained(
    stream: Stream, lead: Lead, run: Run, tmp_path: Path
) -> None:
    """In float32, whatever the weights are rounded to on their way."""
    trainer = lead()
    first = told(stream, 0)
    assert len(ids(first)) == TOKENS and len(first.logprobs) == 4 * (TOKENS - 1)
    assert array("f", first.logprobs) == pytest.approx(by_hand(first, str(MODEL)), abs=1e-5)
    stream.serve(0)
    feed(stream, 1)
    second = told(stream, 1)
    assert second.ids == first.ids and second.logprobs != first.logprobs
    trainer.stop()
    trainer.service.team.save(str(tmp_path / "after"))
    wanted = by_hand(second, str(tmp_path / "after"))
    assert array("f", second.logprobs) == pytest.approx(wanted, abs=1e-5)


@float32
def test_a_trainer_that_follows_tells_the_same_of_the_same_weights_and_the_replay_is_bit_for_bit(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    told(stream, 0)
    stream.serve(0)
    feed(stream, 3)
    before = told(stream, 3)
    assert first.stop() == EXIT_DONE
    second = lead()
    assert told(stream, 4) == before, "another number for the same weights"
    feed(stream, 1)
    assert second.stop() == EXIT_DONE
    lines: list[str] = []
    assert replay(run, say=lines.append) and lines[-1] == "replayed 4 batches, 4 steps"


@float32
def test_a_version_that_is_announced_again_keeps_it(stream: Stream, lead: Lead) -> None:
    lead()
    told(stream, 0)
    stream.serve(0)
    before = saved(stream.bus)
    feed(stream, 1)
    known = told(stream, 1)
    put_back(stream.bus, before)
    assert told(stream, 1) == known


@pytest.mark.parametrize("context", [8, 4096])
def test_the_prompt_is_of_the_vocabulary_the_seed_and_the_context_alone(context: int) -> None:
    config = LlamaConfig(vocab_size=1000, max_position_embeddings=context)
    prompt = prompt_of(config, seed=3)
    assert len(prompt) == min(TOKENS, context) and len({*prompt}) > len(prompt) / 2
    assert all(0 <= token < 1000 for token in prompt) and max(prompt) > 500
    assert prompt == prompt_of(config, seed=3) != prompt_of(config, seed=4)
    assert prompt == prompt_of(GPT2Config(vocab_size=1000, n_positions=context), seed=3)


def test_a_manifest_travels_with_a_canary_and_one_without_stays_valid() -> None:
    plain = Manifest(version=3, step=2, epoch=1, fingerprint="f", location="here")
    canary = Canary(ids=array("i", [1, 2]).tobytes(), logprobs=array("f", [-0.5]).tobytes())
    for manifest in (plain, replace(plain, canary=canary)):
        assert decode(Manifest, encode(manifest)) == manifest
    assert decode(Manifest, encode(plain)).canary is None
