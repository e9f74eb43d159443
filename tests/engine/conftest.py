"""The engines under one contract: each test that takes `make` runs over all of them."""

from __future__ import annotations

import pytest
from engine_models import CONTEXT, VOCABULARY, tiny
from engine_work import Make, flip_to

from pipeline.protocols import Engine
from pipeline.run import Swap
from services.inference.engines.fake import FakeEngine
from services.inference.engines.hf.engine import HfEngine


@pytest.fixture(params=["fake", "hf"])
def make(request: pytest.FixtureRequest) -> Make:
    """An engine of this kind that serves version 0, or none yet where `version` is None."""

    def engine(
        *,
        boot: str = "boot-1",
        end_ids: frozenset[int] = frozenset({0}),
        slots: int = 64,
        max_length: int = CONTEXT,
        swap: Swap = "keep",
        version: int | None = 0,
    ) -> Engine:
        options = {"boot": boot, "end_ids": end_ids, "slots": slots, "max_length": max_length}
        options["swap"] = swap
        made: Engine
        if request.param == "fake":
            made = FakeEngine(vocabulary=VOCABULARY, **options)  # type: ignore[arg-type]
        else:
            made = HfEngine(tiny(), **options)  # type: ignore[arg-type]
        if version is not None:
            flip_to(made, version)
        return made

    return engine
