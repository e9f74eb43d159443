"""The sequences of a step as rank 0 plans them, from briefs alone. Torch-free.

With its cargo each is a `Pack`, which is made in `sequences` by the rank that steps on it.
"""

from __future__ import annotations

from msgspec import Struct

from pipeline.versions import Stretch


class Imitated(Struct, frozen=True, array_like=True):
    """An example to imitate: ids (int32) of its prompt, and of its answer with the end token."""

    prompt: bytes
    answer: bytes

    @property
    def tokens(self) -> int:
        """That are counted: the answer's."""
        return len(self.answer) // 4


class Planned(Struct, frozen=True, array_like=True, tag="planned"):
    """A member of a group: the step's `number`th sequence, of so many tokens with its prompt.

    What each token inside the loss weighs: `weight` for rewards, `kl_weight` for a teacher.
    """

    number: int
    group: str
    member: int
    tokens: int
    advantage: float
    outcome: float
    weight: float
    kl_weight: float
    stretches: tuple[Stretch, ...]


class Copied(Struct, frozen=True, array_like=True, tag="copied"):
    """An example, whose cargo is so small that it travels with the plan."""

    number: int
    example: Imitated
    weight: float

    @property
    def tokens(self) -> int:
        """With its prompt."""
        return (len(self.example.prompt) + len(self.example.answer)) // 4


Sequence = Planned | Copied
