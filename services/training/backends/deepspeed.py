"""Any number of processes, DeepSpeed's ZeRO: optimizer, gradients or parameters in shards. † torch

Started by torchrun, or as one process without it. What is minimised comes from outside; how a pack
becomes log-probs is in `pipeline.model.packed`; which rank has which packs is in `ranks`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import deepspeed
import torch
from deepspeed import zero
from msgspec import Meta
from torch import Tensor, nn

from pipeline.model.fingerprint import Named, frozen_parameters, named_parameters
from pipeline.model.packed import CHUNK_ELEMENTS, evaluate, moved, prepare
from pipeline.protocols import Pack, Packed, PackLoss, StepResult
from services.training.backends.configuration import Dtype, Offload, Zero, configuration
from services.training.backends.folder import write_model
from services.training.backends.shards import Shards
from services.training.backends.snapshot import Snapshot, copied
from services.training.backends.state import buckets, read
from services.training.world import join

# DeepSpeed would compile a shared-memory collective on first use, which training never calls.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
# Once a collective: it calls torch's by names that torch means to change.
warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)


class Evaluated(nn.Module):
    """A model as DeepSpeed runs it: a pack's columns in, log-probs and entropy [T] out.

    The head is called in chunks whose number differs from rank to rank, and under stage 3 each
    call would gather its weight: as a parameter of this module it stays whole for a whole pass.
    """

    def __init__(self, model: Any, chunk_elements: int) -> None:
        super().__init__()
        self.model, self._chunk_elements = model, chunk_elements

    def forward(self, *columns: Tensor) -> Tensor:
        """A pack's columns to [T, 2 + k]: log-probs, entropy, and those of a teacher's likeliest.

        One tensor, since under stage 3 each output with a gradient gathers parameters when that
        comes back: on every rank there must be as many, whatever streams its pack is of.
        """
        seen = evaluate(self.model, Pack(*columns), chunk_elements=self._chunk_elements)
        own = torch.stack([seen.logp, seen.entropy], dim=-1)
        return own if seen.among is None else torch.cat([own, seen.among], dim=-1)


def _seen(table: Tensor) -> Packed:
    """The columns of what `Evaluated` gives."""
    among = table[:, 2:]
    return Packed(table[:, 0], table[:, 1].detach(), among if among.shape[-1] else None)


class DeepSpeedBackend:
    """Implements `pipeline.protocols.Rank`; every call but `last` is made by all ranks."""

    last: Packed
    """Log-probs and entropy of this rank's latest pack, as in its backward; for statistics."""

    gathered_bytes = 1 << 28
    """Of parameters that stand whole at a time while they are copied out under stage 3."""

    def __init__(
        self,
        model: Any,
        *,
        stage: Literal[1, 2, 3] = 1,
        offload: Offload = "none",
        dtype: Dtype = "float32",
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        clip_norm: float = 1.0,
        whole_elements: Annotated[int, Meta(ge=0)] = 100_000,
        chunk_elements: Annotated[int, Meta(ge=1)] = CHUNK_ELEMENTS,
        checkpoint_activations: bool = False,
        args: dict[str, Any] | None = None,
    ) -> None:
        """Takes a float32 model. `offload` puts the optimizer, or with it the parameters, into the
        memory of the host. With `dtype` bfloat16 a pass is made in it, and the optimizer moves
        float32 masters, rounded to it at first. Under stage 3, parameters of at most
        `whole_elements` elements stay whole on each rank; `chunk_elements` bounds the logits that
        stand at a time; with `checkpoint_activations` each layer keeps only its input for the
        backward pass, and is run once more there. `args` go to DeepSpeed as they are, but for keys
        that have a name here.

        Raises ConfigError where the model cannot be packed, and for what does not fit together.
        """
        self.model, self._world = model, join()
        config = configuration(
            Zero(stage, offload, dtype),
            clip_norm=clip_norm,
            whole_elements=whole_elements,
            pinned=self._world.device.type == "cuda",
            args=args or {},
        )
        prepare(model.eval(), checkpoint_activations=checkpoint_activations)
        self._stage, self._passes = stage, 0
        optimizer = torch.optim.AdamW(
            self._trained().values(), lr=0.0, betas=betas, weight_decay=weight_decay
        )
        self._engine = _engine(Evaluated(model, chunk_elements), optimizer, config, stage=stage)
        self._shards = Shards(
            self._engine.optimizer, self._trained(), whole=stage < 3, device=self._world.device
        )

    @torch.no_grad()
    def logprobs(self, pack: Pack) -> Tensor:
        """Of the tokens [T] of this rank's pack, on the CPU, without a gradient."""
        return _seen(self._engine(*moved(pack, self._world.device))).logp.cpu()

    def backward(self, pack: Pack, loss: PackLoss) -> None:
        """Add the gradient of `loss` over the log-probs [T] of this rank's pack."""
        seen = _seen(self._engine(*moved(pack, self._world.device)))
        among = () if seen.among is None else (seen.among,)
        # DeepSpeed averages over ranks; the denominator in the pack's weight is of all of them.
        self._engine.backward(loss(seen.logp, *among) * self._world.size, scale_wrt_gas=False)
        self._passes += 1
        self.last = Packed(*(column.detach().cpu() for column in (seen.logp, seen.entropy, *among)))

    def step(self, learning_rate: float) -> StepResult:
        """Clip and step, and drop the gradients. Not taken where they are not finite, or absent."""
        if not self._passes:
            return StepResult(False, 0.0)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        self._passes = 0
        return StepResult(
            self._engine.was_step_applied(), float(self._engine.get_global_grad_norm())
        )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters, tied ones once; each may be gone when the next is asked for."""
        return self._whole(named_parameters(self.model))

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The float32 parameters; as `weights` otherwise."""
        return self._shards.masters()

    def save(self, folder: str) -> None:
        """Rank 0 writes a Hugging Face folder, whole or not at all; it must not exist yet."""
        tensors = self._copied(self._whole([*self.model.named_parameters()]))
        if self._world.rank == 0:
            write_model(self.model, folder, tensors | self._buffers())

    def snapshot(self) -> Snapshot:
        """On rank 0 a copy in host memory of what a checkpoint holds; nothing on the others."""
        state = self._copied(self._shards.entries())
        rest = self._copied(self._whole(frozen_parameters(self.model)))
        return Snapshot(self.model, state, rest | self._buffers())

    def _whole(self, named: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """In buckets under stage 3, never all at once."""
        if self._stage < 3:
            yield from ((name, p.detach()) for name, p in named)
            return
        for bucket in buckets(named, self.gathered_bytes, size=_whole_bytes):
            with zero.GatheredParameters([*bucket.values()]):
                yield from ((name, p.detach()) for name, p in bucket.items())

    def _copied(self, named: Named) -> dict[str, Tensor]:
        """Rank 0's copy; every rank takes part."""
        return copied((name, t) for name, t in named if self._world.rank == 0)

    def _buffers(self) -> dict[str, Tensor]:
        parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        own = self.model.state_dict().items()
        return {name: tensor for name, tensor in own if name not in parameters}

    def close(self) -> None:
        """There is nothing to end."""

    def load_state(self, folder: str) -> None:
        """Go on where `snapshot` was called: bit for bit on as many ranks.

        To be called between two steps. Rank 0 alone reads; raises ConfigError there for no state.
        """
        assert not self._passes, "a state is loaded between two steps"
        first = self._world.rank == 0
        self._shards.fill(read(folder, self._shards.shapes) if first else ())

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}


def _engine(
    evaluated: Evaluated, optimizer: torch.optim.Optimizer, config: dict[str, Any], *, stage: int
) -> Any:
    """DeepSpeed's around the model, which is as in inference throughout: without dropout."""
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed's first question, also when alone
    engine, *_ = deepspeed.initialize(model=evaluated, optimizer=optimizer, config=config)
    engine.eval()  # it has put the model into training mode
    if stage == 3:
        head = evaluated.model.get_output_embeddings()
        zero.register_external_parameter(evaluated, head.weight)
    return engine


def _whole_bytes(parameter: Any) -> int:
    return int(parameter.ds_numel) * int(parameter.element_size())
