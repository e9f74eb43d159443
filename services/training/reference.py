"""The reference model: frozen, or the policy of every n-th step; each rank holds a copy. † torch

It fills `Pack.reference` just before a pack is learnt from. When it moves follows from the number
of steps alone, and it is part of the state: replays and resumes have it bit for bit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.model.fingerprint import named_parameters
from pipeline.model.packed import evaluate, moved, prepare
from pipeline.model.policy import load_policy
from pipeline.protocols import Pack, Packed, Rank, Snapshot, StepResult
from pipeline.run import Run
from services.training.world import world

log = logging.getLogger(__name__)

MARK, TENSORS = "reference.json", "reference.safetensors"


class Kept(NamedTuple):
    """Steps taken since the run began, and the parameters where they have moved."""

    steps: int
    tensors: dict[str, Tensor]

    def write(self, folder: Path) -> None:
        """Into a folder that exists; nothing is synced."""
        (folder / MARK).write_text(json.dumps({"steps": self.steps}))
        if self.tensors:
            save_file(self.tensors, folder / TENSORS)


class Reference:
    """Log-probs under a model that no optimizer has; after every `every`th step a policy's."""

    def __init__(self, model: Any, *, every: int = 0) -> None:
        """Takes the model as it is, on its device. Raises ConfigError where it cannot be packed."""
        prepare(model)
        self._names = [name for name, _ in named_parameters(model)]
        self._model, self._every = model.requires_grad_(False), every
        self._steps, self._has_moved = 0, False

    @torch.no_grad()
    def filled(self, pack: Pack) -> Pack:
        """The pack with the log-prob of each of its tokens."""
        seen = evaluate(self._model, moved(pack, self._model.device))
        return pack._replace(reference=seen.logp.to(pack.reference.device))

    def stepped(self, rank: Rank) -> None:
        """A step was taken by this rank, and by all others: where it is time, become its policy."""
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            self._copy(rank.weights())
            self._has_moved = True
            log.info("reference moved after step=%d", self._steps)

    def copied(self) -> Kept | None:
        """What `load` needs to have; the parameters only where they are no longer the first."""
        if not self._every:
            return None
        own = self._own() if self._has_moved else {}
        tensors = {n: p.detach().to("cpu", copy=True).contiguous() for n, p in own.items()}
        return Kept(self._steps, tensors)

    def load(self, folder: Path) -> None:
        """Be as it was when it was saved. Raises ConfigError where that cannot be read."""
        if not self._every:
            return
        try:
            self._steps = int(json.loads((folder / MARK).read_text())["steps"])
            self._has_moved = (folder / TENSORS).exists()
            if self._has_moved:
                self._copy(iter(load_file(folder / TENSORS).items()))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as exc:
            rule = f"has no reference model that can be read ({exc})"
            remedy = "go on from another checkpoint, with objective.reference as it was"
            raise ConfigError(str(folder), None, rule=rule, remedy=remedy) from exc

    @torch.no_grad()
    def _copy(self, named: Iterator[tuple[str, Tensor]]) -> None:
        own = self._own()
        for name, tensor in named:
            own[name].copy_(tensor)

    def _own(self) -> dict[str, nn.Parameter]:
        parameters = dict(self._model.named_parameters())
        return {name: parameters[name] for name in self._names}


class Both(NamedTuple):
    """Implements `pipeline.protocols.Snapshot`: a back end's, and the reference beside it."""

    taken: Snapshot
    kept: Kept | None

    def fingerprint(self) -> str:
        """Of the masters."""
        return self.taken.fingerprint()

    def write(self, folder: str) -> None:
        """As the protocol says."""
        self.taken.write(folder)
        if self.kept is not None:
            self.kept.write(Path(folder) / "state")


class Referred:
    """Implements `pipeline.protocols.Rank`: another one, and the reference that moves with it."""

    def __init__(self, rank: Rank, reference: Reference) -> None:
        self._rank, self._reference = rank, reference
        self.weights, self.masters, self.save = rank.weights, rank.masters, rank.save
        self.logprobs, self.backward, self.close = rank.logprobs, rank.backward, rank.close

    @property
    def last(self) -> Packed:
        """As the protocol says."""
        return self._rank.last

    def step(self, learning_rate: float) -> StepResult:
        """As the protocol says; a step that was not taken moves nothing."""
        result = self._rank.step(learning_rate)
        if result.finite:
            self._reference.stepped(self._rank)
        return result

    def snapshot(self) -> Snapshot:
        """As the protocol says; the reference is the same on all ranks, and rank 0 writes."""
        kept = self._reference.copied() if world().rank == 0 else None
        return Both(self._rank.snapshot(), kept)

    def load_state(self, folder: str) -> None:
        """As the protocol says; every rank reads the reference."""
        self._rank.load_state(folder)
        self._reference.load(Path(folder))


def reference_of(run: Run, policy: nn.Module) -> Reference | None:
    """As RUN.toml says, in the model's dtype; None where no term asks for it.

    Its memory is said. Raises ConfigError, also where its parameters are not those that the
    policy, still whole, has.
    """
    reference, dtype = run.objective.reference, run.model.dtype
    if run.objective.kl is None:
        return None
    path = reference.path or run.model.path
    model = load_policy(replace(run.model, path=path), dtype=dtype).to(world().device)
    _check_alike(path, model, policy)
    size = sum(parameter.nbytes for parameter in model.parameters())
    log.info("reference=%s dtype=%s every=%d bytes=%d", path, dtype, reference.every, size)
    return Reference(model, every=reference.every)


def _check_alike(path: str, model: nn.Module, policy: nn.Module) -> None:
    """Ids of the policy's would else be unknown to it, or its tensors of another shape."""
    theirs, own = ({n: p.shape for n, p in m.named_parameters()} for m in (model, policy))
    if wrong := [n for n in sorted({*theirs, *own}) if theirs.get(n) != own.get(n)]:
        rule = f"is of another architecture than the policy: {len(wrong)} parameters differ"
        remedy = "choose the policy's first model, or one that was trained from it"
        where = "objective.reference.path"
        raise ConfigError(where, path, rule=f"{rule} ({', '.join(wrong[:3])})", remedy=remedy)
