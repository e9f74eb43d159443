"""Models of bytes for the endpoint's tests: each token is one byte of UTF-8, or a special one."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BEGIN, END, SEPARATOR = 256, 257, 258
VOCABULARY = 260
CHAT = "{% for m in messages %}{{ bos_token }}[{{ m.role }}]{{ m.content }}<sep>{% endfor %}[bot]"
"""As many templates do, it writes the beginning itself, and once too often."""


def letters(text: str) -> list[int]:
    """The token ids of a text."""
    return [*text.encode()]


def save(folder: Path, model: LlamaForCausalLM) -> Path:
    """With its tokenizer, as a run names it."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are bytes; it puts its beginning before each text."""
    alphabet = _byte_letters()
    vocabulary = {letter: byte for byte, letter in alphabet.items()}
    whole = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens(["<s>", "</s>", "<sep>"])
    whole.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BEGIN)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token="<s>", eos_token="</s>", chat_template=CHAT
    )


def random_model(seed: int = 0, *, hidden: int = 32) -> LlamaForCausalLM:
    """Its distribution is far from flat."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config(hidden, layers=2))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model.eval()


def saying(text: str, *, ends: bool = False) -> LlamaForCausalLM:
    """Says the text over and over, or once where it `ends`; no byte may stand in it twice.

    It goes on where the last byte stands, and begins after whatever is not in the text.
    """
    model = LlamaForCausalLM(_config(VOCABULARY + 4, layers=1))
    ids = letters(text)
    follows = dict(zip(ids, [*ids[1:], END if ends else ids[0]], strict=True))
    assert len(follows) == len(ids), "each byte once"
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding.zero_()
        head.zero_()
        for token in range(VOCABULARY):
            embedding[token, token] = 1.0
            head[follows.get(token, ids[0]), token] = 10.0
    return model.eval()


def plain_logprobs(model: LlamaForCausalLM, prompt: list[int], ids: list[int]) -> list[float]:
    """Of `ids` after the prompt, by one forward pass without a cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[0]
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), -1)
    found: list[float] = logp.gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()
    return found


def _config(hidden: int, *, layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=None,
    )


def _byte_letters() -> dict[int, str]:
    """The letter by which a byte-level vocabulary writes each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + n) for n, b in enumerate(others)}
