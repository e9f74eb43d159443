"""One process, plain PyTorch: gradients add up over packs, AdamW steps, a folder is saved. † torch

What is minimised comes from outside; how a pack becomes log-probs is in `pipeline.model.packed`.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from pipeline.model.fingerprint import named_parameters
from pipeline.model.packed import check, evaluate, moved
from pipeline.protocols import Pack, Packed, PackLoss, StepResult


class TorchBackend:
    """Implements `pipeline.protocols.Backend` for a transformers causal language model."""

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

    def save(self, folder: str) -> None:
        """Write a Hugging Face folder, whole or not at all; it must not exist yet."""
        final = Path(folder)
        partial = final.with_name(f"{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        self.model.save_pretrained(partial)
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        partial.rename(final)
        _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
