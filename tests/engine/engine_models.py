"""Tiny models for the engine suite, made on the spot; no part of it knows an engine."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from transformers import GPT2Config, LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

VOCABULARY = 32
CONTEXT = 256

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

CONFIGS = {
    "llama": LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "qwen2_grouped_heads": Qwen2Config(**_SHAPE, num_key_value_heads=2),
    "qwen2_half_sliding": Qwen2Config(
        **_SHAPE,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=1,
    ),
    "mistral_all_sliding": MistralConfig(**_SHAPE, num_key_value_heads=1, sliding_window=5),
    "gpt2_learned_positions": GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    ),
}


def tiny(name: str = "llama", *, seed: int = 0, attention: str = "sdpa") -> PreTrainedModel:
    """A random model whose distribution is far from flat."""
    torch.manual_seed(seed)
    config = deepcopy(CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model.eval()


def planted(token: int) -> PreTrainedModel:
    """A model that emits one token with certainty, whatever it reads."""
    config = deepcopy(CONFIGS["llama"])
    config.tie_word_embeddings = False
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[token] = 10.0
    return model.eval()


def plain_logprobs(
    model: PreTrainedModel, prompt: list[int], ids: list[int], temperature: float = 1.0
) -> Tensor:
    """Log-probs of `ids` after `prompt` by one forward pass without any cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[0]
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, -1)
    return logp.gather(-1, torch.tensor(ids)[:, None])[:, 0]
