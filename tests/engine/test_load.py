"""What every engine tells of itself while it runs: how full it is, and what new weights cost it."""

from __future__ import annotations

import torch
from engine_models import CONTEXT, tiny
from engine_work import Make, MemoryTransport, claim, flip_to, offer, work

from pipeline.protocols import Device, StagingCost
from services.inference.engines.hf.engine import HfEngine


def test_members_without_a_slot_wait_and_are_counted_apart(make: Make) -> None:
    engine = make(end_ids=frozenset(), slots=4)
    assert engine.load == (0, 0, 0.0)
    engine.add(work("a"))
    engine.add(work("b", members=2))
    assert engine.load[:2] == (0, 6)
    engine.step()
    assert engine.load[:2] == (4, 2) and 0 < engine.load.kv_share <= 1
    engine.park()
    assert engine.load == (0, 0, 0.0)


def test_keys_and_values_fill_with_every_token_of_every_row() -> None:
    engine = HfEngine(tiny(), boot="b", end_ids=frozenset(), slots=4)
    flip_to(engine, 0)
    engine.add(work(prompt=range(1, 6), members=2))
    shares = []
    for _ in range(3):
        engine.step()
        shares.append(engine.load.kv_share)
    assert shares == [2 * (5 + n) / (4 * CONTEXT) for n in (1, 2, 3)]


def test_an_engine_on_a_processor_counts_its_cores() -> None:
    engine = HfEngine(tiny(), boot="b", end_ids=frozenset())
    assert engine.device == Device("core", torch.get_num_threads())


def test_a_flip_tells_what_staging_took_and_nothing_where_nothing_travelled() -> None:
    engine = HfEngine(tiny(), boot="b", end_ids=frozenset())
    engine.stage(claim(0, engine.fingerprint()), MemoryTransport())
    same = engine.flip()
    assert same is not None and same.staging == StagingCost()
    model = tiny(seed=1)
    offer(engine, 1, model)
    flip = engine.flip()
    assert flip is not None
    parameters = {id(p): p for p in model.parameters()}.values()
    assert flip.staging.num_bytes == sum(p.nbytes for p in parameters)
    assert 0 < flip.staging.verify_seconds < flip.staging.seconds
