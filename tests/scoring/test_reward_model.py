"""A reward model with real, tiny classifiers: what it reads, grades and refuses, in batches."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from planting import Plant
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from pipeline.errors import ConfigError
from pipeline.model.tokens import Tokenizer as Tokens
from pipeline.protocols import Answer, Drawn, Verdict
from pipeline.verdicts import Fault, checked
from services.scoring.scorers.models.encoding import Encoding
from services.scoring.scorers.models.reward_model import AT, TOKENS_AT_ONCE, RewardModel, chunks

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "model"
VOCABULARY, CONTEXT = 22, 64
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
ROWS = [[3, 4, 2], [8, 4, 1, 7, 1], [6] * 40, [2], [9, 8, 1], [5, 5, 5, 5, 5, 5, 5], [4, 0]]
KINDS: dict[str, Callable[..., PretrainedConfig]] = {
    "llama": lambda **more: LlamaConfig(**SIZES, intermediate_size=48, **more),
    "qwen2": lambda **more: Qwen2Config(
        **SIZES, intermediate_size=48, num_key_value_heads=2, **more
    ),
    "gpt2": lambda **more: GPT2Config(n_embd=32, n_layer=2, n_head=4, **more),
    "bert": lambda **more: BertConfig(**SIZES, intermediate_size=48, **more),
}


def save(folder: Path, kind: str = "llama", **more: Any) -> Any:
    """A random classifier beside the demo's tokenizer, its output far from 0."""
    torch.manual_seed(3)
    plain = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "num_labels": 1}
    context = {"n_positions" if kind == "gpt2" else "max_position_embeddings": CONTEXT}
    config = KINDS[kind](vocab_size=VOCABULARY, initializer_range=0.3, **context, **plain | more)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(folder)
    for file in DEMO.glob("tokenizer*"):
        shutil.copy(file, folder)
    return model


def answer(ids: Sequence[int], prompt: Sequence[int] = (3, 4), text: str = "") -> Answer:
    drawn = Drawn(prompt=struct.pack(f"<{len(prompt)}i", *prompt), logprobs=b"", temperature=1.0)
    return Answer(text=text, prompt="", reference=None, finish="stop", ids=tuple(ids), drawn=drawn)


def rewards(scorer: RewardModel, answers: Sequence[Answer]) -> list[float]:
    return [checked(one).reward for one in scorer(answers)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pad", [None, 0, 1, 7])
def test_a_batch_gives_each_row_what_the_class_gives_it_alone(
    tmp_path: Path, kind: str, pad: int | None
) -> None:
    """Where rows end with the id that fills up others, and where there is none, too; in order."""
    model = save(tmp_path, kind, pad_token_id=pad)
    scorer = RewardModel(path=str(tmp_path), policy=str(DEMO))
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([[3, 4, *row]])).logits.item() for row in ROWS]
    assert len({round(value, 3) for value in alone}) == len(ROWS), "the rows differ"
    for order in (range(len(ROWS)), [4, 2, 0, 5, 1, 6, 3]):
        found = rewards(scorer, [answer(ROWS[n]) for n in order])
        assert found == pytest.approx([alone[n] for n in order], abs=1e-5)


def test_without_a_pad_the_output_is_that_at_the_last_token(tmp_path: Path) -> None:
    model = save(tmp_path, pad_token_id=None)
    scorer = RewardModel(path=str(tmp_path), policy=str(DEMO))
    with torch.no_grad():
        hidden = [model.model(torch.tensor([[3, 4, *row]])).last_hidden_state for row in ROWS]
        last = [model.score(one[0, -1]).item() for one in hidden]
    assert rewards(scorer, [answer(row) for row in ROWS]) == pytest.approx(last, abs=1e-5)


def test_in_bfloat16_it_says_about_the_same(tmp_path: Path) -> None:
    save(tmp_path)
    plain, short = (
        RewardModel(path=str(tmp_path), policy=str(DEMO), dtype=dtype)
        for dtype in ("float32", "bfloat16")
    )
    asked = [answer(row) for row in ROWS]
    assert rewards(short, asked) == pytest.approx(rewards(plain, asked), abs=0.2)
    assert rewards(short, asked) != rewards(plain, asked) and short.version != plain.version


def test_what_the_context_does_not_hold_is_a_fault_of_that_answer_alone(tmp_path: Path) -> None:
    save(tmp_path)
    scorer = RewardModel(path=str(tmp_path), policy=str(DEMO))
    found = scorer([answer([5] * 10), answer([5] * (CONTEXT - 1)), answer([], ()), answer([6])])
    assert [type(one) for one in found] == [Verdict, Fault, Fault, Verdict]
    assert "prompt and answer have 65 tokens, and the reward model's context holds 64" in str(
        found[1]
    )
    whole = scorer([answer([5] * (CONTEXT - 2))])
    assert isinstance(whole[0], Verdict), "as many as it holds are none too many"


def test_a_reward_that_is_no_number_is_the_fault_of_its_answer(tmp_path: Path) -> None:
    model = save(tmp_path)
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = torch.nan
    model.save_pretrained(tmp_path)
    good, bad = RewardModel(path=str(tmp_path), policy=str(DEMO))([answer([5]), answer([9])])
    assert checked(good).reward
    with pytest.raises(Fault, match="bad_verdict: the reward is nan"):
        checked(bad)


def test_rows_share_a_pass_as_long_as_it_is_small_enough() -> None:
    half = TOKENS_AT_ONCE // 2
    rows = {0: [1], 1: [1] * half, 2: [1] * (TOKENS_AT_ONCE + 5), 3: [1] * (half - 1), 4: [1] * 2}
    assert [*chunks(rows)] == [[2], [1, 3], [4, 0]]


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_classifier_of_several_outputs_is_refused(tmp_path: Path, outputs: int) -> None:
    save(tmp_path, num_labels=outputs)
    with pytest.raises(ConfigError, match=rf"has {outputs} outputs, and a reward is one"):
        RewardModel(path=str(tmp_path), policy=str(DEMO))


def test_a_language_model_is_refused_by_its_key(tmp_path: Path) -> None:
    """Its head would be noise, whether or not its configuration says 1."""
    with pytest.raises(ConfigError, match=rf"^{AT}.* has 2 outputs"):
        RewardModel(path=str(DEMO), policy=str(DEMO))
    shutil.copytree(DEMO, tmp_path / "named")
    config = tmp_path / "named" / "config.json"
    config.write_text(config.read_text().replace("{", '{"id2label": {"0": "LABEL_0"},', 1))
    with pytest.raises(ConfigError, match=rf"^{AT}.*lack 1 tensors of the model \(score.weight\)"):
        RewardModel(path=str(tmp_path / "named"), policy=str(DEMO))
    with pytest.raises(ConfigError, match=rf"^{AT} = .*: there is no such folder"):
        RewardModel(path="examples/gone/model", policy=str(DEMO))


def test_its_verdicts_reach_the_trainer_through_a_worker(
    plant: Plant,
    serving: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = save(tmp_path)
    texts = ["".join(map(chr, row)) for row in [*ROWS, [5] * CONTEXT]]
    plant.group(texts, prompt_text="".join(map(chr, (3, 4))))
    spec = {"use": "reward_model", "path": str(tmp_path), "batch": 4}
    with serving(spec, model=str(DEMO), timeout_seconds=60.0, workers=1):
        (group,) = plant.ready(1, seconds=60.0)
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([[3, 4, *row]])).logits.item() for row in ROWS]
    assert plant.rewards(group) == pytest.approx(dict(enumerate(alone)), abs=1e-5)
    assert [*group.failed] == [len(ROWS)], "what the context does not hold, and no other"
    assert "raised: ValueError: prompt and answer have 66 tokens" in caplog.text
    score = group.members[0].score
    assert score and score.scorer.startswith(f"reward_model/{tmp_path}@")


# What it reads.

CHATML = (
    "{% if messages[0].role != 'system' %}<|s|>system\nBe kind.<|e|>\n{% endif %}"
    "{% for m in messages %}<|s|>{{ m.role }}\n{{ m.content }}<|e|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
OTHER = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tokenizer(folder: Path, special: Sequence[str], template: str) -> str:
    """Of single letters, beside special tokens."""
    letters = [*special, *map(chr, range(32, 127)), "\n"]
    made = Tokenizer(models.WordLevel({t: n for n, t in enumerate(letters)}, unk_token=" "))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=special[0],
        eos_token=special[-1],
        additional_special_tokens=[*special],
        chat_template=template,
    )
    fast.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    return str(folder)


CHATS = {
    "a question": (({"role": "user", "content": "2 + 2?"},), None),
    "with a system": (
        ({"role": "system", "content": "Be\nbrief."}, {"role": "user", "content": "2 + 2?"}),
        None,
    ),
    "of several turns": (
        (
            {"role": "user", "content": "2?"},
            {"role": "assistant", "content": "3"},
            {"role": "user", "content": "no"},
        ),
        "system\nBe kind.\nuser\n2?\nassistant\n3\nuser\nno\nassistant",
    ),
}


@pytest.mark.parametrize("case", CHATS)
def test_a_model_of_another_family_reads_the_chat_by_its_own_template(
    tmp_path: Path, case: str
) -> None:
    """What is no single question is read whole, as text, and no special token of the policy's gets
    into it."""
    chat, whole = CHATS[case]
    policy = tokenizer(tmp_path / "policy", ["<b>", "<|s|>", "<|e|>"], CHATML)
    path = tokenizer(tmp_path / "model", ["<bos>", "<eos>"], OTHER)
    theirs, own = (PreTrainedTokenizerFast.from_pretrained(place) for place in (policy, path))
    ids = theirs.apply_chat_template([*chat], add_generation_prompt=True, return_dict=False)
    prompt = struct.pack(f"<{len(ids)}i", *ids)
    shown = Answer(
        text="It is 4.",
        prompt=Tokens(policy).decode(prompt),
        reference=None,
        finish="stop",
        ids=(1, 2),
        drawn=Drawn(prompt=prompt, logprobs=b"", temperature=1.0),
    )
    read = Encoding(path, policy, at=AT)
    assert not read.is_shared
    said = [*chat] if whole is None else [{"role": "user", "content": whole}]
    exchange = [*said, {"role": "assistant", "content": "It is 4."}]
    assert read(shown) == own.apply_chat_template(exchange, return_dict=False)
    assert own.decode(read(shown)).count("<bos>") == 1


def test_where_ids_mean_the_same_the_policys_own_are_read(tmp_path: Path) -> None:
    path = tokenizer(tmp_path, ["<bos>", "<eos>"], OTHER)
    read = Encoding(path, path, at=AT)
    assert read.is_shared and read(answer([9, 1], (0, 7), "no matter")) == [0, 7, 9, 1]
