"""A small tied model, and the manifest of a version of it."""

import torch
from torch import Tensor, nn

from pipeline.messages import Manifest
from pipeline.model.fingerprint import describe, fingerprint_of


class Tied(nn.Module):
    """An output layer that is the embedding, a norm, a scalar, and a buffer that stays at home."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(3))


def manifest_of(tensors: dict[str, Tensor], *, version: int, location: str) -> Manifest:
    entries = tuple(describe(name, tensor) for name, tensor in tensors.items())
    return Manifest(
        version=version,
        step=version,
        epoch=1,
        fingerprint=fingerprint_of(entries),
        location=location,
        tensors=entries,
    )
