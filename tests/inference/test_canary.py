"""An engine is held against the canary: by how much it is off, and what becomes of a flip then."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from made import VOCABULARY, tiny_model
from planted_run import TOKENS, Plant, Running, check, wait_until
from torch import nn

from pipeline.messages import Canary, Manifest, Span
from pipeline.metrics import Metrics
from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.protocols import Flip
from pipeline.run import Inference, Model, Run, Training
from services.inference.canary import LIMITS, Examiner, Gap, fault_of, gap_of, limit_of
from services.inference.engines.fake import FakeEngine
from services.inference.engines.hf.engine import HfEngine
from services.inference.metrics import Numbers

IDS = [5, 21, 0, 9, 9, 14, 3, 17]
LIMIT = LIMITS["float32"]

Start = Callable[..., Running]


def canary(*logprobs: float, ids: list[int] | None = None) -> Canary:
    known = ids or [*range(len(logprobs) + 1)]
    return Canary(ids=array("i", known).tobytes(), logprobs=array("f", logprobs).tobytes())


def test_the_gap_is_the_largest_difference_and_the_mean_of_all() -> None:
    announced = canary(-1.0, -2.0, -0.5, -4.0)
    assert gap_of(announced, [-1.0, -2.25, -0.5, -3.0]) == Gap(1.0, 1.25 / 4)
    assert gap_of(announced, [-1.0, -2.0, -0.5, -4.0]) == Gap(0.0, 0.0)


@pytest.mark.parametrize("told", [[-1.0], [-1.0, math.nan], [-1.0, -math.inf], [-1.0, -2.0, -3.0]])
def test_what_is_no_number_or_not_as_many_is_beyond_every_limit(told: list[float]) -> None:
    assert gap_of(canary(-1.0, -2.0), told) == Gap(math.inf, math.inf)
    assert fault_of(gap_of(canary(-1.0, -2.0), told), 1e9)


def test_the_limit_itself_is_allowed_and_what_is_beyond_it_is_told() -> None:
    assert fault_of(Gap(0.5, 0.125), 0.5) == ""
    assert fault_of(Gap(0.75, 0.125), 0.5) == (
        "the engine's log-probs of the canary are 0.75 nats off the trainer's at most,"
        " 0.12 on average (limit 0.5)"
    )


@pytest.mark.parametrize(
    ("engine", "trainer", "said", "limit"),
    [
        ("float32", "torch", None, LIMITS["float32"]),
        ("bfloat16", "torch", None, LIMITS["bfloat16"]),
        ("float32", {"use": "deepspeed", "dtype": "bfloat16"}, None, LIMITS["bfloat16"]),
        ("float32", {"use": "deepspeed", "dtype": "float32"}, None, LIMITS["float32"]),
        ("bfloat16", "torch", 0.25, 0.25),
    ],
)
def test_the_limit_is_by_the_coarser_of_both_sides_unless_it_is_said(
    engine: str, trainer: object, said: float | None, limit: float
) -> None:
    run = Run(
        name="r",
        steps=1,
        data="jsonl",
        model=Model(path="-", dtype=engine),  # type: ignore[arg-type]
        training=Training(backend=trainer),  # type: ignore[arg-type]
        inference=Inference(canary_gap=said),
    )
    assert limit_of(run) == limit


# Real engines that compute something else than was announced.


def shift_vocabulary(model: Any) -> None:
    """As with a tokenizer whose ids stand for other words."""
    embedding = model.get_input_embeddings().weight
    embedding.data = embedding.data.roll(1, 0)


def heat(model: nn.Module) -> None:
    """The weights are right, and the temperature is 1 / 0.9 throughout."""

    def cool(_model: nn.Module, _inputs: object, out: Any) -> None:
        out.logits.mul_(0.9)

    model.register_forward_hook(cool)


def perturb(model: Any, by: float = 3e-2) -> None:
    """One matrix among all, by so much of its own spread."""
    weight = model.model.layers[0].mlp.down_proj.weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    weight.data = weight.data + by * weight.data.std() * noise


class Planted(HfEngine):
    """Is broken in some way each time that it has flipped."""

    def __init__(self, plant: Callable[[nn.Module], None]) -> None:
        self.model, self._plant = tiny_model(), plant
        super().__init__(self.model, boot="b", end_ids=frozenset())

    def flip(self) -> Flip | None:
        flip = super().flip()
        if flip:
            self._plant(self.model)
        return flip


def by_hand(model: nn.Module) -> list[float]:
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([IDS]), use_cache=False).logits[0], -1)
    return [float(logp[at, IDS[at + 1]]) for at in range(len(IDS) - 1)]


def announced(model: nn.Module, ids: list[int] | None = None) -> Manifest:
    return Manifest(
        version=0,
        step=0,
        epoch=1,
        fingerprint=fingerprint(named_parameters(model)),
        location="",
        canary=canary(*by_hand(model), ids=ids or IDS),
    )


def examined(engine: HfEngine, manifest: Manifest) -> tuple[str, dict[str, float]]:
    """What the examiner says of the flip to it, and the gauges afterwards."""
    metrics = Metrics("inference")
    examiner = Examiner(engine, Numbers(metrics), limit=LIMIT, every=1)
    examiner.expect(manifest)
    engine.stage(manifest, None)  # type: ignore[arg-type]
    assert engine.flip()
    return examiner.fault(0), metrics.gauges()


@pytest.mark.parametrize("plant", [shift_vocabulary, heat, perturb])
def test_an_engine_that_computes_something_else_is_found_and_by_how_much(
    plant: Callable[[nn.Module], None],
) -> None:
    fault, gauges = examined(Planted(plant), announced(tiny_model()))
    assert fault.startswith("version 0: the engine's log-probs of the canary are ")
    broken = tiny_model()
    plant(broken)
    pairs = zip(by_hand(broken), by_hand(tiny_model()), strict=True)
    apart = [abs(a - b) for a, b in pairs]
    assert gauges['canary_gap_nats{of="largest"}'] == pytest.approx(max(apart), rel=1e-3)
    assert gauges['canary_gap_nats{of="mean"}'] == pytest.approx(sum(apart) / 7, rel=1e-3)
    assert (gauges["canary_version"], gauges["canary_limit_nats"]) == (0, LIMIT)


def test_weights_that_are_off_by_less_pass_and_the_gap_is_told() -> None:
    fault, gauges = examined(
        Planted(lambda model: perturb(model, by=1e-5)), announced(tiny_model())
    )
    assert fault == "" and 1e-6 < gauges['canary_gap_nats{of="largest"}'] < LIMIT
    fault, gauges = examined(Planted(lambda model: None), announced(tiny_model()))
    assert fault == "" and gauges['canary_gap_nats{of="largest"}'] < 3e-6


def test_ids_that_the_engines_model_does_not_have_are_a_fault() -> None:
    strange = announced(tiny_model(), ids=[*IDS[:-1], VOCABULARY])
    fault, gauges = examined(Planted(lambda model: None), strange)
    assert fault == "version 0: token_unknown: the canary has ids in 0..23, the model knows 0..22"
    assert math.isnan(gauges['canary_gap_nats{of="largest"}'])


# Which flips are examined.


class Off(FakeEngine):
    """So many nats off, by version; notes which versions it was asked about."""

    def __init__(self) -> None:
        super().__init__(boot="b")
        self.off: dict[int, float] = {}
        self.asked: list[int] = []

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        self.asked.append(self.version)
        return [x + self.off.get(self.version, 0.0) for x in super().logprobs(ids)]


def flipped(engine: Off, examiner: Examiner, version: int, *, told: bool = True) -> str:
    manifest = Manifest(
        version=version,
        step=version,
        epoch=1,
        fingerprint="",
        location="",
        canary=canary(-1.0, -2.0) if told else None,
    )
    examiner.expect(manifest)
    engine.stage(manifest, None)  # type: ignore[arg-type]
    assert engine.flip()
    return examiner.fault(version)


@pytest.mark.parametrize(("every", "asked"), [(0, []), (1, [*range(7)]), (3, [0, 3, 6])])
def test_the_first_flip_is_examined_and_every_so_many_after_it(
    every: int, asked: list[int]
) -> None:
    engine = Off()
    examiner = Examiner(engine, Numbers(Metrics("inference")), limit=1e-6, every=every)
    assert [flipped(engine, examiner, version) for version in range(7)] == [""] * 7
    assert engine.asked == asked


def test_after_a_fault_the_next_flip_is_examined_again() -> None:
    engine = Off()
    examiner = Examiner(engine, Numbers(Metrics("inference")), limit=0.1, every=3)
    engine.off[3] = 0.5
    assert [bool(flipped(engine, examiner, version)) for version in range(4)] == [0, 0, 0, 1]
    assert [bool(flipped(engine, examiner, version)) for version in (4, 5, 6, 7)] == [0] * 4
    assert engine.asked == [0, 3, 4, 7]


def test_a_version_that_tells_of_no_canary_is_let_through() -> None:
    engine = Off()
    examiner = Examiner(engine, Numbers(Metrics("inference")), limit=0.1, every=1)
    assert flipped(engine, examiner, 0, told=False) == "" and engine.asked == []


# What becomes of the flip, in a service among others.


def test_one_engine_that_is_off_is_quarantined_by_name_and_the_others_go_on(
    plant: Plant, start: Start
) -> None:
    """It is tried once more; what fails has sampled nothing, and nothing of it is delivered."""
    [prompt] = plant.admit()
    bad = start(plant, "bad", steps=5, canary_gap=0.1)
    bad.flown(10)
    bad.engine.off[1] = 0.5
    plant.announce(1)
    boot = bad.life.boot
    wait_until(lambda: plant.seen(boot).quarantined)
    assert plant.seen(boot).quarantined == (
        "2 flips went wrong, the last one: version 1: the engine's log-probs of the canary are"
        " 0.5 nats off the trainer's at most, 0.5 on average (limit 0.1)"
    )
    assert bad.total("wrong_flips") == 2 and bad.total("lost_tokens") == 0
    bad.engine.allow(TOKENS)
    done = plant.await_delivered(2)
    assert {c.spans for c in done} == {(Span(0, TOKENS, boot),)}
    check(prompt, done)
    good = start(plant, "good", canary_gap=0.1)
    plant.admit()
    more = plant.await_delivered(4)
    assert {c.spans for c in more} == {
        (Span(v, TOKENS, b),) for v, b in ((0, boot), (1, good.life.boot))
    }
    assert plant.seen(good.life.boot).quarantined == "" and bad.thread.is_alive()


def test_one_bad_gap_is_measured_again_and_forgiven(plant: Plant, start: Start) -> None:
    [prompt] = plant.admit()
    running = start(plant, steps=5, canary_gap=0.1)
    running.flown(10)
    running.engine.off_once[1] = 0.5
    plant.announce(1)
    wait_until(lambda: running.service.weights.serves(1))
    boot = running.life.boot
    assert running.total("wrong_flips") == 1 and plant.seen(boot).quarantined == ""
    running.engine.allow(2 * TOKENS)
    done = plant.await_delivered(2)
    assert {c.spans for c in done} == {(Span(0, 5, boot), Span(1, TOKENS - 5, boot))}
    check(prompt, done)


def test_an_engine_that_is_off_from_the_first_version_on_takes_nothing(
    plant: Plant, start: Start
) -> None:
    plant.admit()
    running = start(plant, canary_gap=0.1, off={0: 9.0})
    wait_until(lambda: plant.seen(running.life.boot).quarantined)
    assert running.engine.version == -1 and not running.service.outbox.leases
    assert plant.delivered() == [] and plant.ledger() == {}
