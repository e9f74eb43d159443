"""Work for engines, what came of it as lists, and weights that travel through memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator

import pytest
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.messages import Completion, Manifest, Prompt, Sampling, Work
from pipeline.model.fingerprint import describe, fingerprint_of, named_parameters
from pipeline.protocols import Engine, Held
from pipeline.weights.staging import Staging


class MemoryTransport:
    """Versions in a dict; a receiver gets copies, as from any other process."""

    def __init__(self) -> None:
        self.sent: dict[int, dict[str, Tensor]] = {}

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        epoch: int = 1,
        fingerprint: str = "",
    ) -> str:
        self.sent[version] = {name: tensor.detach().clone() for name, tensor in tensors}
        return "memory"

    def receive(self, manifest: Manifest, held: Held | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.sent[manifest.version].items():
            yield name, tensor.clone()

    def drop(self, version: int) -> None:
        del self.sent[version]


def publish(transport: MemoryTransport, version: int, model: PreTrainedModel) -> Manifest:
    """Send a model's parameters as this version."""
    named = named_parameters(model)
    entries = tuple(describe(name, tensor) for name, tensor in named)
    return Manifest(
        version=version,
        step=version,
        epoch=1,
        fingerprint=fingerprint_of(entries),
        location=transport.send(version, named),
        tensors=entries,
    )


def claim(version: int, fingerprint: str) -> Manifest:
    """A manifest of weights that the engine has already."""
    return Manifest(version=version, step=version, epoch=1, fingerprint=fingerprint, location="")


def flip_to(engine: Engine, version: int, model: PreTrainedModel | None = None) -> None:
    """Stage and flip; `model` None for the weights that are live, or for a fake engine."""
    if model is None:
        engine.stage(claim(version, engine.fingerprint()), MemoryTransport())
        assert engine.flip()
        return
    offer(engine, version, model)
    assert engine.flip(), engine.staging_error()


def offer(engine: Engine, version: int, model: PreTrainedModel) -> None:
    """Stage, and wait until that is done."""
    transport = MemoryTransport()
    engine.stage(publish(transport, version, model), transport)
    settle(engine)


def settle(engine: Engine) -> None:
    """Wait until nothing is being received any more."""
    staging: Staging = engine._weights._staging  # type: ignore[attr-defined]
    assert staging.wait(10)


def work(
    group: str = "g",
    *,
    prompt: Iterable[int] = (1, 2, 3),
    members: int = 4,
    todo: Iterable[int] | None = None,
    prefixes: Iterable[Completion] = (),
    seed: int = 0,
    **sampling: float,
) -> Work:
    """A group as an engine takes it."""
    return Work(
        prompt=Prompt(
            group=group,
            seq=0,
            ids=array("i", prompt).tobytes(),
            members=members,
            seed=seed,
            sampling=Sampling(**{"max_tokens": 24, **sampling}),  # type: ignore[arg-type]
        ),
        todo=tuple(range(members) if todo is None else todo),
        prefixes={prefix.member: prefix for prefix in prefixes},
    )


Make = Callable[..., Engine]
IN_STEP = pytest.mark.parametrize("make", ["fake", "hf"], indirect=True)
"""Of a test that counts steps, or truncates: vLLM's own process makes its steps, and without a GPU
it does not say what was kept."""
Key = tuple[str, int]


def by_member(completions: Iterable[Completion]) -> dict[Key, Completion]:
    """By group and member; each may be there once."""
    found: dict[Key, Completion] = {}
    for completion in completions:
        key = (completion.group, completion.member)
        assert key not in found, f"{key} was delivered twice"
        found[key] = completion
    return found


def drain(engine: Engine) -> dict[Key, Completion]:
    """Step until nothing is left to do."""
    done: list[Completion] = []
    while engine.busy:
        done += engine.step()
    return by_member(done)


def tokens(completion: Completion) -> list[int]:
    return array("i", completion.ids).tolist()


def logprobs(completion: Completion) -> list[float]:
    return array("f", completion.logprobs).tolist()


def versions(completion: Completion) -> list[int]:
    """The version of each token."""
    return [span.version for span in completion.spans for _ in range(span.tokens)]
