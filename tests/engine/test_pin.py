"""An engine keeps a version beside the newest: what it answers is of that one to its last token."""

from __future__ import annotations

import threading

import pytest
from engine_models import tiny
from engine_work import drain, flip_to, logprobs, tokens, versions, work
from msgspec.structs import replace

from pipeline.model.fingerprint import fingerprint, named_parameters
from services.inference.engines.fake import FakeEngine
from services.inference.engines.hf.engine import HfEngine

NO_END: frozenset[int] = frozenset()


def engine_of(seed: int, **options) -> HfEngine:
    engine = HfEngine(tiny(seed=seed), boot="b", end_ids=NO_END, slots=8, **options)
    flip_to(engine, 0)
    return engine


@pytest.mark.parametrize("fixed", [False, True])
def test_pinned_work_is_of_its_version_whatever_is_adopted_meanwhile(fixed: bool) -> None:
    options = {"fixed_shapes": True, "max_length": 32} if fixed else {}
    alone = engine_of(0, **options)
    alone.add(work("p", members=2))
    wanted = drain(alone)

    engine = engine_of(0, **options)
    pinned = engine.pin()
    pinned.add(work("p", members=2))
    engine.add(work("t", members=2))
    done = []
    for version in range(1, 60):
        done += [*engine.step(), *pinned.step()]
        if version < 8:
            flip_to(engine, version, tiny(seed=version))
    found = {(c.group, c.member): c for c in done}
    for key, completion in wanted.items():
        assert set(versions(found[key])) == {0} and tokens(found[key]) == tokens(completion)
        assert logprobs(found[key]) == pytest.approx(logprobs(completion), abs=1e-5)
    assert max(versions(found["t", 0])) == 7, "and the engine's own work moved on"
    assert not engine.busy and not pinned.busy


def test_the_fingerprint_is_of_the_live_weights_while_others_run() -> None:
    engine = engine_of(0)
    pinned = engine.pin()
    pinned.add(work("p", members=4, max_tokens=200))
    flip_to(engine, 1, tiny(seed=1))
    live, seen = fingerprint(named_parameters(tiny(seed=1))), []
    watch = threading.Thread(target=lambda: seen.extend(engine.fingerprint() for _ in range(40)))
    watch.start()
    while watch.is_alive():
        pinned.step()
    assert set(seen) == {live} and engine.fingerprint() == live


def test_a_wrong_flip_is_undone_beside_pinned_work() -> None:
    engine = engine_of(0)
    pinned = engine.pin()
    pinned.add(work("p", members=2))
    before = engine.fingerprint()
    pinned.step()
    flip_to(engine, 1, tiny(seed=1))
    pinned.step()
    engine.revert()
    assert engine.fingerprint() == before
    assert {*map(tuple, map(versions, drain(pinned).values()))} == {(0,) * 24}


def test_a_fake_engine_keeps_a_version_too() -> None:
    engine = FakeEngine(boot="b", end_ids=NO_END, planted={0: 1, 1: 2})
    flip_to(engine, 0)
    pinned = engine.pin()
    flip_to(engine, 1)
    pinned.add(work("p")), engine.add(work("t"))
    assert {*tokens(drain(pinned)["p", 0])} == {1} and {*tokens(drain(engine)["t", 0])} == {2}


def test_noise_stands_for_the_group_where_versions_are_compared() -> None:
    found = []
    for group, noise in (("eval/0/1", "sampled-1"), ("eval/9/1", "sampled-1"), ("eval/9/1", "")):
        engine = engine_of(0)
        asked = work(group, members=1)
        engine.add(replace(asked, prompt=replace(asked.prompt, noise=noise)))
        [(_, one)] = drain(engine).items()
        found.append(tokens(one))
    assert found[0] == found[1] != found[2]
