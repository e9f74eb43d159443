"""One process, plain PyTorch: gradients add up over packs, AdamW steps, a folder is saved. † torch

What is minimised comes from outside; how a pack becomes log-probs is in `pipeline.model.packed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from pipeline.model.fingerprint import named_parameters
from pipeline.model.packed import check, evaluate, moved
from pipeline.protocols import Pack, Packed, PackLoss, StepResult
from services.training.backends.folder import write_model
from services.training.backends.state import PARAMETER, Named, entries, parted, read, write


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
    ) -> None:
        """Takes the model as it is, on its device. Raises ConfigError where it cannot be packed."""
        # Dropout would make the trainer's policy another than the one that was sampled from.
        self.model = model.eval()
        check(model)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=0.0, betas=betas, weight_decay=weight_decay
        )
        self._clip_norm = clip_norm

    def backward(self, pack: Pack, loss: PackLoss) -> None:
        """Add the gradient of `loss` over the pack's log-probs [T]."""
        seen = evaluate(self.model, moved(pack, self.model.device))
        torch.autograd.backward(loss(seen.logp))
        self.last = Packed(seen.logp.detach().cpu(), seen.entropy.cpu())

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

    def save_state(self, folder: str) -> None:
        """Write what training on needs to a folder that exists and is empty; sync it yourself."""
        write(folder, self._state())

    def load_state(self, folder: str) -> None:
        """Go on, bit for bit, where `save_state` was called. Raises ConfigError for no such state.

        Gradients that were not stepped on are gone.
        """
        own = self._trained()
        optimizer = self._optimizer
        optimizer.state.clear()
        optimizer.zero_grad(set_to_none=True)
        for key, tensor in read(folder, own):
            kind, name = parted(key)
            parameter = own[name]
            if kind == PARAMETER:
                parameter.data.copy_(tensor)
            else:  # AdamW keeps its count of steps on the CPU
                at = "cpu" if kind == "step" else parameter.device
                optimizer.state[parameter][kind] = tensor.to(at)

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _state(self) -> Named:
        for name, parameter in self._trained().items():
            yield from entries(name, parameter, self._optimizer.state.get(parameter, {}))

    def save(self, folder: str) -> None:
        """Write a Hugging Face folder, whole or not at all; it must not exist yet."""
        write_model(self.model, folder)
