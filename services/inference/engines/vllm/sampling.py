"""How a member is sampled, as vLLM has it; and what it cannot do. † torch"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pipeline.errors import ConfigError
from pipeline.messages import Sampling
from services.inference.engines.members import Refused
from services.inference.engines.vllm.api import RequestOutputKind, SamplingParams

COLDEST = 0.01
"""vLLM samples at no temperature between 0 and this: it would take this one instead."""


def fault(sampling: Sampling, *, masks: bool) -> str:
    """What of it this vLLM cannot sample, or not say how; empty if there is nothing.

    `masks`: it tells which ids were kept.
    """
    if 0 < sampling.temperature < COLDEST:
        return (
            f"temperature {sampling.temperature}, and vLLM samples at {COLDEST} and above, or at 0"
        )
    if sampling.truncates and not masks:
        return (
            f"top_p {sampling.top_p}, top_k {sampling.top_k}, min_p {sampling.min_p}, and vLLM was"
            " not told to say which ids could be drawn, as the trainer must know: on a GPU, set"
            " inference.engine.args.return_sampling_mask = true"
        )
    return ""


def check(group: str, sampling: Sampling, *, masks: bool) -> None:
    """Raises Refused for a group that cannot be sampled as it asks."""
    if why := fault(sampling, masks=masks):
        raise Refused("sampling_unsupported", f"group {group} asks for {why}")


def check_run(sampling: Sampling, *, masks: bool) -> None:
    """Raises ConfigError where no group of the run could be: its data would be used up in vain."""
    if why := fault(sampling, masks=masks):
        rule = f"asks for {why}"
        remedy = "leave top_p, top_k, min_p and temperature out, or use engine hf"
        raise ConfigError("sampling", msgspec.to_builtins(sampling), rule=rule, remedy=remedy)


def params(
    sampling: Sampling, *, tokens: int, ends: Iterable[int], seed: int, mask_width: int
) -> SamplingParams:
    """Of a request that may have so many tokens more.

    Where vLLM tells which ids were kept, `mask_width` is the size of the vocabulary, else 0. It
    then takes nothing without top-k: greedy is the likeliest one, and all is all.
    """
    limits = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    if mask_width and sampling.temperature == 0:
        limits = (1.0, 1.0, 1, 0.0)
    temperature, top_p, top_k, min_p = limits
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k or mask_width,
        min_p=min_p,
        max_tokens=tokens,
        seed=seed,
        stop_token_ids=sorted(ends),
        ignore_eos=True,  # all end ids are named
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


def scoring() -> SamplingParams:
    """Of a request whose prompt's log-probs are all that is wanted."""
    return SamplingParams(
        temperature=1.0,
        top_k=1,  # of the one token that vLLM must draw
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
