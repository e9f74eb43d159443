"""One process, plain PyTorch: gradients add up over packs, AdamW steps, a folder is saved. † torch

What is minimised comes from outside; how a pack becomes log-probs is in `pipeline.model.packed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from pipeline.model.fingerprint import named_parameters
from pipeline.model.packed import CHUNK_ELEMENTS, evaluate, moved, prepare
from pipeline.protocols import Pack, Packed, PackLoss, StepResult
from services.training.backends.folder import write_model
from services.training.backends.rng import numbers, restore
from services.training.backends.snapshot import Snapshot, copied
from services.training.backends.state import NUMBERS, PARAMETER, Named, entries, parted, read

RANK = "0"
"""The only one."""


class TorchBackend:
    """Implements `pipeline.protocols.Rank` for a transformers causal language model."""

    last: Packed
    """Log-probs and entropy of the latest pack, as they were in its backward; for statistics."""

    def __init__(
        self,
        model: Any,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        clip_norm: float = 1.0,
        chunk_elements: Annotated[int, Meta(ge=1)] = CHUNK_ELEMENTS,
        checkpoint_activations: bool = False,
    ) -> None:
        """Takes the model as it is, on its device. `chunk_elements` bounds the logits that stand
        at a time; with `checkpoint_activations` each layer keeps only its input for the backward
        pass, and is run once more there.

        Raises ConfigError where the model cannot be packed.
        """
        # Dropout would make the trainer's policy another than the one that was sampled from.
        self.model = model.eval()
        prepare(model, checkpoint_activations=checkpoint_activations)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=0.0, betas=betas, weight_decay=weight_decay
        )
        self._clip_norm, self._chunk_elements = clip_norm, chunk_elements

    @torch.no_grad()
    def logprobs(self, pack: Pack) -> Tensor:
        """Of the pack's tokens [T], on the CPU, without a gradient."""
        here = moved(pack, self.model.device)
        return evaluate(self.model, here, chunk_elements=self._chunk_elements).logp.cpu()

    def backward(self, pack: Pack, loss: PackLoss) -> None:
        """Add the gradient of `loss` over the pack's log-probs [T]."""
        here = moved(pack, self.model.device)
        seen = evaluate(self.model, here, chunk_elements=self._chunk_elements)
        learnt = [column for column in (seen.logp, seen.among) if column is not None]
        torch.autograd.backward(loss(*learnt))
        logp, *among = (column.detach().cpu() for column in learnt)
        self.last = Packed(logp, seen.entropy.cpu(), *among)

    def step(self, learning_rate: float) -> StepResult:
        """Clip and step, and drop the gradients. Not taken where they are not finite, or absent."""
        if all(p.grad is None for p in self._parameters):
            return StepResult(False, 0.0)
        norm = float(clip_grad_norm_(self._parameters, self._clip_norm))
        if finite := math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return StepResult(finite, norm)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters, tied ones once; copy what must outlive the next step."""
        return ((name, tensor.detach()) for name, tensor in named_parameters(self.model))

    def close(self) -> None:
        """There is nothing to end."""

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The weights, which the optimizer moves as they are."""
        return self.weights()

    def snapshot(self) -> Snapshot:
        """A copy in host memory of what a checkpoint holds."""
        own = {id(p) for p in self._parameters}
        whole = self.model.state_dict(keep_vars=True).items()
        rest = {name: tensor.detach() for name, tensor in whole if id(tensor) not in own}
        return Snapshot(self.model, copied(self._state()), rest)

    def load_state(self, folder: str) -> None:
        """Go on, bit for bit, where `snapshot` was called. Raises ConfigError for no such state.

        Gradients that were not stepped on are gone.
        """
        own, optimizer = self._trained(), self._optimizer
        entries = read(folder, {name: p.shape for name, p in own.items()})
        optimizer.state.clear()
        optimizer.zero_grad(set_to_none=True)
        for key, tensor in entries:
            kind, name = parted(key)
            if kind == PARAMETER:
                own[name].data.copy_(tensor)
            elif kind == NUMBERS:
                if name == RANK:
                    restore(tensor)
            else:  # AdamW keeps its count of steps on the CPU
                at = "cpu" if kind == "step" else own[name].device
                optimizer.state[own[name]][kind] = tensor.to(at)

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _state(self) -> Named:
        for name, parameter in self._trained().items():
            yield from entries(name, parameter, self._optimizer.state.get(parameter, {}))
        yield f"{NUMBERS}:{RANK}", numbers()

    def save(self, folder: str) -> None:
        """Write a Hugging Face folder, whole or not at all; it must not exist yet."""
        write_model(self.model, folder)
