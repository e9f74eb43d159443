"""vLLM for the engine suite: started once a module, and engines over it as fresh ones."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import psutil
import torch
from engine_models import CONFIGS, VOCABULARY, plain_logprobs
from engine_work import claim
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from pipeline.messages import Canary, Completion, Manifest
from pipeline.model.fingerprint import describe_all, fingerprint_of, named_parameters
from pipeline.protocols import Engine
from pipeline.run import Model, Swap
from pipeline.weights.origin import Origin
from pipeline.weights.shm import ShmTransport
from services.inference.engines.vllm.build import start
from services.inference.engines.vllm.engine import VllmEngine
from services.inference.engines.vllm.expected import Entry
from services.inference.engines.vllm.staged import Staged
from services.inference.engines.vllm.swaps import AS_LOADED

NO_END: frozenset[int] = frozenset()
LONG = 4096
CANARY = [3, 1, 4, 1, 5, 9, 2, 6]


def config(*, tied: bool = True) -> LlamaConfig:
    """The suite's Llama, with a head that vLLM's kernels are made for.

    Its context is long, since vLLM goes on decoding while a version is received.
    """
    made = deepcopy(CONFIGS["llama"])
    made.num_attention_heads = made.num_key_value_heads = 1
    made.head_dim, made.tie_word_embeddings = 32, tied
    made.max_position_embeddings = LONG
    return made


def tiny_for_vllm(seed: int = 0, *, tied: bool = True) -> PreTrainedModel:
    """A random model whose distribution is far from flat."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(tied=tied), attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model.eval()


def planted_for_vllm(token: int) -> PreTrainedModel:
    """A model that emits one token with certainty, whatever it reads."""
    model = AutoModelForCausalLM.from_config(config(tied=False))
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[token] = 10.0
    return model.eval()


class Vllm:
    """A running vLLM over a model of its own, and a trainer's transport beside it."""

    def __init__(self, folder: Path, model: PreTrainedModel, *, slots: int = 64) -> None:
        self.folder = folder
        model.save_pretrained(folder / "model")
        (folder / "shm").mkdir()
        self.model = Model(path=str(folder / "model"), dtype="float32")
        self.origin = Origin({"use": "shm", "folder": str(folder / "shm")}, "run")
        self.transport = self._trainer()
        others = {child.pid for child in psutil.Process().children()}
        self.first = start(
            self.model,
            boot="b",
            origin=self.origin,
            swap="keep",
            slots=slots,
            max_length=None,
            args={},
            ends=NO_END,
        )
        (self.core,) = (
            child.pid
            for child in psutil.Process().children()
            if child.pid not in others and "EngineCore" in " ".join(child.cmdline())
        )
        self.loader: Staged = self.first._live._loader  # type: ignore[assignment]
        self.print = self.first.fingerprint()

    def engine(
        self,
        *,
        boot: str = "b",
        end_ids: frozenset[int] = NO_END,
        slots: int = 64,
        max_length: int = LONG,
        swap: Swap = "keep",
        version: int | None = 0,
        more: Sequence[Entry] = (),
        origin: Origin | None = None,
    ) -> VllmEngine:
        """As one that was just started: vLLM's own weights, and nothing in flight.

        `more` are tensors that are expected, and vLLM has no place for. Versions come from
        `origin`, if not from the transport here.
        """
        host = self.first._host
        host.call(self.loader.load(AS_LOADED))
        loader = Staged(host, origin or self.origin, [*self.loader._expected, *more])
        host.call(loader.open())
        self.transport.close()
        self.transport = self._trainer()
        made = VllmEngine(
            host,
            loader,
            boot=boot,
            end_ids=end_ids,
            first=self.print,
            pressure=self.first._pressure,
            swap=swap,
            slots=slots,
            max_length=max_length,
            canary_gap=1e-3,
        )
        if version is not None:
            made.stage(claim(version, self.print), self.transport)
            assert made.flip()
        return made

    def expect(self, engine: VllmEngine) -> None:
        """Have this engine's workers expect vLLM's own tensors from now on, and hold none."""
        loader: Staged = engine._loader  # type: ignore[assignment]
        loader._expected = self.loader._expected
        self.first._host.call(loader.open())

    def _trainer(self) -> ShmTransport:
        """One that has sent nothing yet."""
        return ShmTransport(folder=str(self.folder / "shm"), run="run")

    def close(self) -> None:
        self.first.close()
        self.transport.close()

    def publish(
        self,
        version: int,
        model: PreTrainedModel,
        *,
        canary: PreTrainedModel | None = None,
        more: Sequence[tuple[str, Tensor]] = (),
    ) -> Manifest:
        """Send the model as this version, and `more`; its canary is this model's, or another's."""
        named = [*named_parameters(model), *more]
        entries = describe_all(named)
        found = plain_logprobs(canary or model, CANARY[:1], CANARY[1:]).tolist()
        return Manifest(
            version=version,
            step=version,
            epoch=1,
            fingerprint=fingerprint_of(entries),
            location=self.transport.send(version, named, epoch=1),
            tensors=entries,
            canary=Canary(ids=array("i", CANARY).tobytes(), logprobs=array("f", found).tobytes()),
        )


def flip_when_ready(engine: VllmEngine) -> list[Completion]:
    """Steps until the version that is being received is adopted; who finished meanwhile."""
    done: list[Completion] = []
    while engine.flip() is None:
        assert (error := engine.staging_error()) is None, error
        done += engine.step()
    return done


def settle_vllm(engine: Engine) -> str | None:
    """Until a version is ready, or why it is not."""
    assert isinstance(engine, VllmEngine)
    while not engine._live.is_ready:
        if error := engine.staging_error():
            return error
        engine.step()
    return None


def drawn(engine: VllmEngine, tokens: int) -> list[Completion]:
    """Steps until so many tokens more were drawn in all; who finished meanwhile."""
    done: list[Completion] = []
    while tokens > 0 and engine.busy:
        done += engine.step()
        tokens -= engine.last_step.rows
    return done


__all__ = ["VOCABULARY", "Vllm"]
