"""Load on vLLM's engine: groups in flight all the time, and a count of what came of them."""

from __future__ import annotations

import random
from itertools import pairwise

from engine_work import by_member, drain, versions, work

from pipeline.messages import Completion
from services.inference.engines.vllm.engine import VllmEngine

GROUPS, MEMBERS, PROMPT = 4, 4, [1, 2, 3]


class LiveLoad:
    """Whatever is waited for, the engine decodes: a group that ended is followed by another."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.done: list[Completion] = []
        self._chance = random.Random(7)
        self._lengths: dict[str, int] = {}

    def step(self) -> int:
        """Members for whoever ended, and one step; the tokens that came."""
        while len(self._lengths) * MEMBERS - len(self.done) <= (GROUPS - 1) * MEMBERS:
            group = f"g{len(self._lengths)}"
            self._lengths[group] = self._chance.randrange(50, 800)
            self.engine.add(work(group, prompt=PROMPT, max_tokens=self._lengths[group]))
        self.done += self.engine.step()
        return self.engine.last_step.rows

    def draw(self, tokens: int) -> None:
        """Until so many more came."""
        while tokens > 0:
            tokens -= self.step()

    def flip(self) -> None:
        """Until the version that is being received is adopted."""
        while self.engine.flip() is None:
            assert (error := self.engine.staging_error()) is None, error
            self.step()

    def settle(self) -> str:
        """Until a version is ready; or why it is not."""
        while not self.engine._live.is_ready:
            if error := self.engine.staging_error():
                return error
            self.step()
        return ""

    def end(self) -> set[int]:
        """Nobody was lost, doubled or cut; the versions that sampled anything."""
        self.done += drain(self.engine).values()
        found = by_member(self.done)
        assert found.keys() == {(g, m) for g in self._lengths for m in range(MEMBERS)}
        for (group, _), completion in found.items():
            assert completion.tokens == len(versions(completion)) == self._lengths[group]
        return {version for completion in self.done for version in versions(completion)}

    def crossed(self) -> set[tuple[int, int]]:
        """The flips that came in the midst of a sequence, from version to version."""
        spans = [completion.spans for completion in self.done]
        return {(a.version, b.version) for s in spans for a, b in pairwise(s)}
