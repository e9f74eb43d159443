"""What vLLM's engine refuses, what a version at fault costs, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from engine_models import plain_logprobs
from engine_work import drain, logprobs, tokens, versions, work
from msgspec.structs import replace
from transformers import PreTrainedModel
from vllm_engines import (
    NO_END,
    Vllm,
    drawn,
    flip_when_ready,
    planted_for_vllm,
    settle_vllm,
    tiny_for_vllm,
)

from pipeline.errors import ConfigError, SluiceError
from pipeline.kept import fits
from pipeline.messages import Manifest, Sampling
from pipeline.run import Model
from pipeline.weights.origin import Origin
from services.inference.engines.members import Refused, members
from services.inference.engines.vllm.arguments import OWN, check
from services.inference.engines.vllm.build import build, start
from services.inference.engines.vllm.events import Told
from services.inference.engines.vllm.expected import Entry
from services.inference.engines.vllm.flight import Flight
from services.inference.engines.vllm.host import EngineDied
from services.inference.engines.vllm.sampling import params

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def renamed(manifest: Manifest, **changes: object) -> Manifest:
    """The manifest with its first tensor described otherwise."""
    first, *rest = manifest.tensors
    changed = replace(first, **changes)  # type: ignore[arg-type]
    return replace(manifest, tensors=(changed, *rest))


def wider() -> PreTrainedModel:
    """Another model."""
    model = tiny_for_vllm(1, tied=False)
    model.model.norm.weight = torch.nn.Parameter(torch.ones(48))
    return model


FAULTS = {
    "another_model": lambda vllm: vllm.publish(2, wider(), canary=tiny_for_vllm(1, tied=False)),
    "a_tensor_missing": lambda vllm: replace(
        vllm.publish(2, planted_for_vllm(2)),
        tensors=vllm.publish(2, planted_for_vllm(2)).tensors[1:],
    ),
    "another_checksum": lambda vllm: renamed(vllm.publish(2, planted_for_vllm(2)), checksum="00"),
    "gone": lambda vllm: replace(
        vllm.publish(2, planted_for_vllm(2)), location="/nowhere/v2.safetensors"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_version_at_fault_leaves_the_old_one_serving_and_the_next_one_succeeds(
    vllm: Vllm, fault: str
) -> None:
    engine = vllm.engine()
    engine.stage(vllm.publish(1, planted_for_vllm(1)), vllm.transport)
    flip_when_ready(engine)
    engine.add(work(max_tokens=900))
    done = drawn(engine, 40)
    engine.stage(FAULTS[fault](vllm), vllm.transport)
    error = settle_vllm(engine)
    assert error and "version 2 not staged" in error
    if fault == "another_model":
        assert "model.norm.weight: shape (48,), expected (32,)" in error
    assert engine.flip() is None and engine.version == 1
    engine.stage(vllm.publish(3, planted_for_vllm(3)), vllm.transport)
    done += flip_when_ready(engine)
    done += [*drain(engine).values()]
    assert {v for c in done for v in versions(c)} <= {1, 3} and len(done) == 4
    assert all(tokens(c) == versions(c) for c in done)


def test_C027_a_load_that_breaks_off_half_way_is_undone_by_content(vllm: Vllm) -> None:
    """vLLM has no place for one of the tensors, and finds that out when others are in."""
    name, extra = "model.layers.1.unknown.weight", torch.ones(3)
    engine = vllm.engine(more=[Entry(name, "float32", (3,))])
    engine.add(work(max_tokens=900))
    done = drawn(engine, 40)
    engine.stage(vllm.publish(1, planted_for_vllm(1), more=[(name, extra)]), vllm.transport)
    assert settle_vllm(engine) is None
    assert engine.flip() is None and engine.version == 0
    assert "version 1 not loaded" in (engine.staging_error() or "")
    engine.add(work("after", prompt=[5] * 150, max_tokens=30))
    done += [*drain(engine).values()]
    assert len(done) == 8 and {v for c in done for v in versions(c)} == {0}
    for completion in done:
        prompt = [5] * 150 if completion.group == "after" else [1, 2, 3]
        plain = plain_logprobs(tiny_for_vllm(tied=False), prompt, tokens(completion))
        assert (torch.tensor(logprobs(completion)) - plain).abs().max().item() <= 1e-4
    following = vllm.engine()
    following.stage(vllm.publish(2, planted_for_vllm(2)), vllm.transport)
    flip_when_ready(following)
    following.add(work())
    assert {token for c in drain(following).values() for token in tokens(c)} == {2}


@pytest.mark.parametrize(
    "sampling", [{"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"temperature": 0.005}]
)
def test_what_vllm_cannot_sample_or_not_tell_is_refused_with_the_reason(
    vllm: Vllm, sampling: dict[str, float]
) -> None:
    engine = vllm.engine()
    with pytest.raises(Refused, match="sampling_unsupported: group g asks for"):
        engine.add(work(**sampling))
    assert not engine.busy


@pytest.mark.parametrize("truncated", [{"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_what_was_kept_is_taken_over_where_vllm_tells_it(truncated: dict[str, float]) -> None:
    """On a GPU alone: here what it says is made up, and what becomes of it is not."""
    given = work(members=1, **truncated)
    (member,) = members(given, max_length=99, vocabulary=32)
    flight = Flight(member, 99)
    flight.take(
        Told("r", (5, 7, 1), (-0.1, 0.0, -3.0), kept=((9, 5), (7,), tuple(range(32)))),
        vocabulary=32,
    )
    flight.close_span(0, "b")
    kept = flight.completion("b").kept
    assert kept and fits(kept, 3)
    assert array("i", kept.counts).tolist() == [2, 1, 0]
    assert array("i", kept.ids).tolist() == [5, 9, 7]
    with pytest.raises(SluiceError, match="1 tokens, 1 log-probs and 0 kept sets"):
        flight.take(Told("r", (5,), (-0.1,)), vocabulary=32)
    asked = params(given.prompt.sampling, tokens=9, ends=(), seed=1, mask_width=32)
    assert asked.top_k == (3 if "top_k" in truncated else 32)


def test_a_greedy_member_truncates_nothing_and_its_log_probs_are_0(vllm: Vllm) -> None:
    engine = vllm.engine()
    engine.add(work(temperature=0.0, top_p=0.5, members=2))
    done = drain(engine)
    assert len({c.ids for c in done.values()}) == 1
    assert {c.logprobs for c in done.values()} == {b"\0" * 4 * 24}


def test_an_argument_that_vllm_does_not_know_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"args.gpu_memory_utilisation.*gpu_memory_utilization"):
        check({"gpu_memory_utilisation": 0.5})


@pytest.mark.parametrize("key", OWN)
def test_an_argument_that_sluice_sets_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        check({key: 1})


STARTED = """
import sys
from pathlib import Path
from vllm_engines import Vllm, tiny_for_vllm
from engine_work import work

if __name__ == "__main__":
    running = Vllm(Path(sys.argv[1]), tiny_for_vllm())
    engine = running.engine()
    engine.add(work(max_tokens=4000))
    engine.step()
    print("up", flush=True)
    sys.stdin.read()
"""


def started(folder: Path) -> subprocess.Popen[str]:
    """A process that owns a vLLM, and stands still."""
    script = folder / "owner.py"
    script.write_text(STARTED)
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    owner = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout
    assert any(line.startswith("up") for line in owner.stdout)
    return owner


def test_C109_a_kill_of_the_service_leaves_no_process_of_vllms_behind(tmp_path: Path) -> None:
    owner = started(tmp_path)
    family = psutil.Process(owner.pid).children(recursive=True)
    assert len(family) >= 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """One over a model whose head is its embedding; the last test with it ends it."""
    running = Vllm(tmp_path_factory.mktemp("tied"), tiny_for_vllm())
    yield running
    running.close()


def test_tied_embeddings_travel_once_and_the_head_is_renewed_with_them(tied: Vllm) -> None:
    engine = tied.engine(swap="recompute")
    for version in (1, 2):
        manifest = tied.publish(version, tiny_for_vllm(version))
        assert "lm_head.weight" not in {entry.name for entry in manifest.tensors}
        engine.stage(manifest, tied.transport)
        flip_when_ready(engine)
        assert engine.fingerprint() == manifest.fingerprint
        engine.add(work(f"g{version}", max_tokens=30))
        for completion in drain(engine).values():
            plain = plain_logprobs(tiny_for_vllm(version), [1, 2, 3], tokens(completion))
            assert (torch.tensor(logprobs(completion)) - plain).abs().max().item() <= 1e-4


def test_an_engine_core_that_dies_ends_the_engine_with_the_reason_and_hangs_nothing(
    tied: Vllm,
) -> None:
    """While sequences are in flight, and the next act is a step, a flip or a call."""
    engine = tied.engine()
    engine.add(work(max_tokens=4000))
    drawn(engine, 20)
    core = psutil.Process(tied.core)
    began = time.monotonic()
    core.kill()
    with pytest.raises(EngineDied, match="vLLM died"):
        while time.monotonic() < began + 30:
            engine.step()
    for act in (engine.step, engine.flip, lambda: engine.logprobs([1, 2, 3])):
        with pytest.raises(EngineDied, match="vLLM died"):
            act()
    assert time.monotonic() - began < 30


def test_a_model_that_vllm_cannot_run_is_refused_at_the_start(tmp_path: Path) -> None:
    """Its heads are too small for vLLM's kernels, which find that out in the first pass."""
    from engine_models import tiny

    tiny().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="vLLM does not start"):
        start(
            Model(path=str(tmp_path), dtype="float32"),
            boot="b",
            origin=Origin("shm", "run"),
            swap="keep",
            slots=4,
            max_length=None,
            args={},
            ends=NO_END,
        )


def test_a_context_beyond_the_models_is_refused_with_both_sides(tmp_path: Path) -> None:
    tiny_for_vllm().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"max_length.*5000.*must be 2 to 4096"):
        start(
            Model(path=str(tmp_path), dtype="float32"),
            boot="b",
            origin=Origin("shm", "run"),
            swap="keep",
            slots=4,
            max_length=5000,
            args={},
            ends=NO_END,
        )


def test_a_run_whose_every_group_would_be_refused_is_refused_at_start(tmp_path: Path) -> None:
    model = Model(path=str(tmp_path), dtype="float32")
    with pytest.raises(ConfigError, match=r"^sampling = .*top_p 0.9.*return_sampling_mask"):
        build(model, boot="a:1", sampling=Sampling(top_p=0.9))
    with pytest.raises(ConfigError, match=r"^sampling = .*temperature 0.001"):
        build(model, boot="a:1", sampling=Sampling(temperature=0.001))
