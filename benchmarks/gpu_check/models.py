"""Models made on the spot, of shapes that vLLM's kernels take on a GPU. † torch"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from benchmarks.gpu_check.setting import Setting

VOCABULARY = 64
CONTEXT = 1024
HEAD = 64


def _config(hidden: int, layers: int, vocabulary: int, context: int = CONTEXT) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=hidden // HEAD,
        head_dim=HEAD,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def planted(token: int, dtype: torch.dtype) -> PreTrainedModel:
    """Emits one token with certainty, whatever it reads."""
    model = AutoModelForCausalLM.from_config(_config(2 * HEAD, 2, VOCABULARY), dtype=dtype)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[token] = 10.0
    return model.eval()


def drawn(setting: Setting, *, vocabulary: int = 0, dtype: torch.dtype) -> PreTrainedModel:
    """Random, of half a billion parameters (a few million in a rehearsal), far from flat."""
    hidden, layers = (2 * HEAD, 4) if setting.rehearses else (1024, 24)
    torch.manual_seed(5)
    with torch.device("cpu" if setting.rehearses else "cuda"):
        config = _config(hidden, layers, vocabulary or (512 if setting.rehearses else 32000))
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, (4 * parameter.shape[-1]) ** -0.5)
            model.lm_head.weight.mul_(4.0)
    return model.eval().cpu()


def saved(model: PreTrainedModel, folder: Path) -> str:
    """In Hugging Face's format; its path."""
    model.save_pretrained(folder)
    return str(folder)
