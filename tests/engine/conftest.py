"""The engines under one contract: each test that takes `make` runs over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from engine_models import CONTEXT, VOCABULARY, tiny
from engine_work import Make, flip_to

from pipeline.protocols import Engine
from pipeline.run import Swap
from services.inference.engines.fake import FakeEngine
from services.inference.engines.hf.engine import HfEngine

HAS_VLLM = find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_VLLM else ["test_vllm_*"]
KINDS = ["fake", "hf", pytest.param("vllm", marks=pytest.mark.vllm)]


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all tests, started by the first that asks: that takes longer than most of them."""
    from vllm_engines import Vllm, tiny_for_vllm

    running = Vllm(tmp_path_factory.mktemp("vllm"), tiny_for_vllm(tied=False))
    yield running
    running.close()


@pytest.fixture(params=KINDS if HAS_VLLM else KINDS[:2])
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
        if request.param == "vllm":
            made = request.getfixturevalue("vllm").engine(**options, version=version)
            return made
        if request.param == "fake":
            made = FakeEngine(vocabulary=VOCABULARY, **options)  # type: ignore[arg-type]
        else:
            made = HfEngine(tiny(), **options)  # type: ignore[arg-type]
        if version is not None:
            flip_to(made, version)
        return made

    return engine
