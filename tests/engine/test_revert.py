"""A flip that proved wrong is undone; each test that takes `make` runs over all engines."""

from __future__ import annotations

import pytest
import torch
from engine_models import plain_logprobs, planted, tiny
from engine_work import (
    IN_STEP,
    Make,
    MemoryTransport,
    claim,
    drain,
    flip_to,
    logprobs,
    offer,
    tokens,
    versions,
    work,
)

from pipeline.errors import WeightsError
from pipeline.kept import fits
from pipeline.run import MaxAge, Swap
from services.inference.engines.hf.engine import HfEngine

NO_END: frozenset[int] = frozenset()
MODES = pytest.mark.parametrize("swap", ["keep", "recompute", MaxAge(max_age=1)], ids=str)


@IN_STEP
def test_what_a_wrong_version_sampled_is_dropped_and_the_rest_goes_on(make: Make) -> None:
    whole, engine = make(end_ids=NO_END), make(end_ids=NO_END)
    for each in (whole, engine):
        each.add(work("a", members=3, max_tokens=20))
        for _ in range(5):
            each.step()
    flip_to(engine, 1)
    engine.add(work("b", members=2, max_tokens=9))
    whole.add(work("b", members=2, max_tokens=9))
    for _ in range(4):
        engine.step()
    assert engine.revert() == 3 * 4 + 2 * 4
    assert engine.version == 0
    assert {(p.group, p.tokens) for p in engine.prefixes()} == {("a", 5)}
    done, expected = drain(engine), drain(whole)
    assert {key: c.ids for key, c in done.items()} == {key: c.ids for key, c in expected.items()}
    assert {key: c.spans for key, c in done.items()} == {k: c.spans for k, c in expected.items()}


@IN_STEP
def test_a_prefix_of_others_is_no_part_of_what_is_dropped(make: Make) -> None:
    first, second = make(end_ids=NO_END), make(end_ids=NO_END, boot="boot-2")
    first.add(work(members=2))
    for _ in range(6):
        first.step()
    flip_to(second, 1)
    second.add(work(members=2, prefixes=first.park()))
    second.step()
    assert second.revert() == 2
    assert {p.tokens for p in second.prefixes()} == {6}
    for completion in drain(second).values():
        assert [(s.version, s.tokens, s.boot) for s in completion.spans] == [
            (0, 6, "boot-1"),
            (0, 18, "boot-2"),
        ]


@IN_STEP
def test_the_version_that_was_wrong_can_be_adopted_again(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work(members=2, max_tokens=10))
    engine.step()
    for _ in range(2):
        flip_to(engine, 1)
        engine.step()
        engine.revert()
    flip_to(engine, 1)
    for completion in drain(engine).values():
        assert versions(completion) == [0] + [1] * 9


def test_a_first_version_that_was_wrong_leaves_none(make: Make) -> None:
    engine = make()
    assert engine.revert() == 0
    assert (engine.version, engine.room()) == (-1, 0)
    flip_to(engine, 0)
    assert engine.version == 0


def engine_of(model, **options) -> HfEngine:
    engine = HfEngine(model, **{"boot": "b", "end_ids": NO_END, **options})
    flip_to(engine, 0)
    return engine


@MODES
def test_the_former_weights_run_again_in_every_mode(swap: Swap) -> None:
    """By content, and each later log-prob is that of a plain pass under them."""
    engine = engine_of(tiny(seed=0), swap=swap)
    engine.add(work("a", prompt=[1, 2, 3], members=3, max_tokens=30))
    for _ in range(5):
        engine.step()
    before = engine.fingerprint()
    flip_to(engine, 1, tiny(seed=1))
    engine.add(work("b", prompt=[4, 9, 8], members=2, max_tokens=30))
    for _ in range(3):
        engine.step()
    engine.revert()
    assert engine.fingerprint() == before
    for (group, _), completion in drain(engine).items():
        assert {*versions(completion)} == {0}
        prompt = [1, 2, 3] if group == "a" else [4, 9, 8]
        plain = plain_logprobs(tiny(seed=0), prompt, tokens(completion))
        assert (torch.tensor(logprobs(completion)) - plain).abs().max().item() <= 1e-4


def test_kept_sets_are_cut_with_their_tokens() -> None:
    engine, whole = engine_of(tiny(seed=0)), engine_of(tiny(seed=0))
    for each in (engine, whole):
        each.add(work(members=4, max_tokens=20, top_p=0.8))
        for _ in range(7):
            each.step()
    flip_to(engine, 1, tiny(seed=1))
    for _ in range(5):
        engine.step()
    engine.revert()
    expected = drain(whole)
    for key, completion in drain(engine).items():
        assert completion.kept and fits(completion.kept, completion.tokens)
        assert (completion.ids, completion.kept) == (expected[key].ids, expected[key].kept)


def test_a_newer_version_that_was_staged_meanwhile_is_adopted_next() -> None:
    engine = engine_of(planted(0))
    engine.add(work(members=2, max_tokens=12))
    engine.step()
    flip_to(engine, 1, planted(1))
    engine.step()
    engine.revert()
    engine.step()
    flip_to(engine, 2, planted(2))
    for completion in drain(engine).values():
        assert tokens(completion) == versions(completion) == [0, 0] + [2] * 10


def test_the_former_weights_are_kept_until_the_next_version_is_received() -> None:
    engine = engine_of(tiny(seed=0))
    flip_to(engine, 1, tiny(seed=1))
    engine.stage(claim(2, engine.fingerprint()), MemoryTransport())
    with pytest.raises(WeightsError, match="version 1 is wrong, and the former weights are gone"):
        engine.revert()


def test_a_drained_flip_is_undone_as_well() -> None:
    engine = engine_of(planted(0), swap="drain")
    engine.add(work("a", members=2, max_tokens=3))
    done = drain(engine)
    offer(engine, 1, planted(1))
    assert engine.flip()
    engine.add(work("b", members=2, max_tokens=6))
    engine.step()
    assert engine.revert() == 2
    done |= drain(engine)
    assert {token for completion in done.values() for token in tokens(completion)} == {0}
