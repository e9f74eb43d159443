"""Any number of processes, DeepSpeed's ZeRO: optimizer, gradients or parameters in shards. † torch

Started by torchrun, or as one process without it. What is minimised comes from outside; how a pack
becomes log-probs is in `pipeline.model.packed`; which rank has which packs is in `ranks`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import deepspeed
import torch
from deepspeed import zero
from msgspec import Meta
from torch import Tensor, nn

from pipeline.model.fingerprint import named_parameters
from pipeline.model.packed import CHUNK_ELEMENTS, check, evaluate, moved
from pipeline.protocols import Pack, Packed, PackLoss, StepResult
from services.training.backends.folder import write_model
from services.training.backends.shards import Shards
from services.training.backends.state import buckets, read, write
from services.training.world import join

# DeepSpeed would compile a shared-memory collective on first use, which training never calls.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
# Once a collective: it calls torch's by names that torch means to change.
warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)

BUCKET_ELEMENTS = 50_000_000
"""Of gradients or parameters in one collective."""
GATHERED_BYTES = 1 << 28
"""Of parameters that stand whole at a time while weights are copied out under stage 3."""


class Evaluated(nn.Module):
    """A model as DeepSpeed runs it: a pack's columns in, log-probs and entropy [T] out.

    The head is called in chunks whose number differs from rank to rank, and under stage 3 each
    call would gather its weight: as a parameter of this module it stays whole for a whole pass.
    """

    def __init__(self, model: Any, chunk_elements: int) -> None:
        super().__init__()
        self.model, self._chunk_elements = model, chunk_elements

    def forward(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """`columns` are a pack's."""
        seen = evaluate(self.model, Pack(*columns), chunk_elements=self._chunk_elements)
        return seen.logp, seen.entropy


class DeepSpeedBackend:
    """Implements `pipeline.protocols.Rank`; every call but `last` is made by all ranks."""

    last: Packed
    """Log-probs and entropy of this rank's latest pack, as in its backward; for statistics."""

    def __init__(
        self,
        model: Any,
        *,
        stage: Literal[1, 2, 3] = 1,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        clip_norm: float = 1.0,
        whole_elements: Annotated[int, Meta(ge=0)] = 100_000,
        chunk_elements: Annotated[int, Meta(ge=1)] = CHUNK_ELEMENTS,
    ) -> None:
        """Takes a float32 model. Under stage 3, parameters of at most `whole_elements` elements
        stay whole on each rank; `chunk_elements` bounds the logits that stand at a time.

        Raises ConfigError where the model cannot be packed.
        """
        check(model.eval())
        self.model, self._world = model, join()
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed's first question, also when alone
        self._stage, self._passes = stage, 0
        self._engine, *_ = deepspeed.initialize(
            model=(evaluated := Evaluated(model, chunk_elements)),
            optimizer=torch.optim.AdamW(
                self._trained().values(), lr=0.0, betas=betas, weight_decay=weight_decay
            ),
            config=_config(stage, clip_norm=clip_norm, whole_elements=whole_elements),
        )
        self._engine.eval()  # it has put the model into training mode
        if stage == 3:
            zero.register_external_parameter(evaluated, model.get_output_embeddings().weight)
        self._shards = Shards(self._engine.optimizer, self._trained(), whole=stage < 3)

    def backward(self, pack: Pack, loss: PackLoss) -> None:
        """Add the gradient of `loss` over the log-probs [T] of this rank's pack."""
        logp, entropy = self._engine(*moved(pack, self._world.device))
        # DeepSpeed averages over ranks; the denominator in the pack's weight is of all of them.
        self._engine.backward(loss(logp) * self._world.size, scale_wrt_gas=False)
        self._passes += 1
        self.last = Packed(logp.detach().cpu(), entropy.cpu())

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
        named = named_parameters(self.model)
        if self._stage < 3:
            yield from ((name, p.detach()) for name, p in named)
            return
        for bucket in buckets(named, GATHERED_BYTES, size=_whole_bytes):
            with zero.GatheredParameters([*bucket.values()]):
                yield from ((name, p.detach()) for name, p in bucket.items())

    def save(self, folder: str) -> None:
        """Rank 0 writes a Hugging Face folder, whole or not at all; it must not exist yet."""
        first = self._world.rank == 0
        tensors = {name: p.to("cpu", copy=True) for name, p in self.weights() if first}
        if first:
            parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
            own = self.model.state_dict().items()
            buffers = {name: tensor for name, tensor in own if name not in parameters}
            write_model(self.model, folder, tensors | buffers)

    def close(self) -> None:
        """There is nothing to end."""

    def save_state(self, folder: str) -> None:
        """Rank 0 writes what training on needs, in whole tensors, to a folder that is empty."""
        entries = self._shards.entries()
        if self._world.rank == 0:
            write(folder, entries)
        else:
            deque(entries, maxlen=0)

    def load_state(self, folder: str) -> None:
        """Go on where `save_state` was called: bit for bit on as many ranks.

        To be called between two steps. Rank 0 alone reads; raises ConfigError there for no state.
        """
        assert not self._passes, "a state is loaded between two steps"
        names = self._trained()
        self._shards.fill(read(folder, names) if self._world.rank == 0 else ())

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}


def _config(stage: int, *, clip_norm: float, whole_elements: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,  # `step` is the boundary, after any number
        "gradient_clipping": clip_norm,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": whole_elements,
        },
    }


def _whole_bytes(parameter: Any) -> int:
    return int(parameter.ds_numel) * int(parameter.element_size())
