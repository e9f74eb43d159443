"""From a text or a chat to token ids: the template once, BOS once, and no torch."""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.errors import ConfigError, Unusable
from pipeline.messages import Completion, Prompt, Sampling, Span
from pipeline.model.tokens import Tokenizer, context_length
from pipeline.protocols import ChatMessage, Text
from pipeline.verdicts import answer_of

BOS, EOS = 9, 8
WORDS = {"<bos>": BOS, "<eos>": EOS, "user": 1, "system": 2, "policy": 3, "x": 4, "y": 5}
WITH_BOS = "{{ bos_token }}"
TURNS = (
    "{% for m in messages %}{{ ' ' + m.role + ' ' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' policy' }}{% endif %}"
)
CHAT = (ChatMessage("system", "y"), ChatMessage("user", "x"))
WRITTEN = [2, 5, 1, 4, 3]


def saved(folder: Path, *, adds: str = "<bos> $A", template: str | None = None) -> str:
    """A tokenizer of words, which adds its special tokens as `adds` says."""
    inner = Inner(models.WordLevel(WORDS))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single=adds, special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>")
    made.chat_template = template
    made.save_pretrained(folder)
    return str(folder)


def ids(tokenizer: Tokenizer, prompt: Text) -> list[int]:
    return array("i", tokenizer.encode(prompt)).tolist()


@pytest.mark.parametrize("adds", ["<bos> $A", "<bos> $A <eos>"])
@pytest.mark.parametrize(
    ("case", "template", "prompt", "after"),
    [
        ("C008a", WITH_BOS + TURNS, CHAT, WRITTEN),
        ("C008b", TURNS, CHAT, WRITTEN),
        ("C008c", None, "x y", [4, 5]),
        ("C008c", WITH_BOS + TURNS, "x y", [4, 5]),
        ("C008-own", None, "<bos> x y", [4, 5]),
        ("C008-end", None, "x <eos> y", [4, EOS, 5]),
    ],
)
def test_C008_ids_begin_with_one_bos(
    tmp_path: Path, adds: str, case: str, template: str | None, prompt: Text, after: list[int]
) -> None:
    tokenizer = Tokenizer(saved(tmp_path, adds=adds, template=template))
    assert ids(tokenizer, prompt) == [BOS, *after], case


@pytest.mark.parametrize(
    ("template", "expected"), [(WITH_BOS + TURNS, [BOS, *WRITTEN]), (TURNS, WRITTEN)]
)
def test_C008_what_a_tokenizer_does_not_add_is_the_templates_affair(
    tmp_path: Path, template: str, expected: list[int]
) -> None:
    assert ids(Tokenizer(saved(tmp_path, adds="$A", template=template)), CHAT) == expected


def test_with_a_template_chosen_a_text_is_what_a_user_says(tmp_path: Path) -> None:
    path = saved(tmp_path, template=TURNS)
    assert ids(Tokenizer(path, template="own"), "x y") == [BOS, 1, 4, 5, 3]
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[-1].content + ' policy' }}")
    assert ids(Tokenizer(path, template=str(file)), "x y") == [BOS, 4, 5, 3]
    assert ids(Tokenizer(path, template=str(file)), CHAT) == [BOS, 4, 3]
    assert ids(Tokenizer(path), CHAT) == [BOS, *WRITTEN], "the tokenizer's own, unless told"


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("own", "model.template = 'own': there is no chat template in it"),
        ("absent.jinja", "absent.jinja': cannot be read"),
        ("broken.jinja", "broken.jinja': is no jinja template (line 2: "),
        ("empty.jinja", "empty.jinja': there is no chat template in it"),
    ],
)
def test_a_template_that_cannot_be_had_is_refused(tmp_path: Path, template: str, rule: str) -> None:
    path = saved(tmp_path)
    (tmp_path / "broken.jinja").write_text("{{ messages }}\n{% for %}")
    (tmp_path / "empty.jinja").write_text("")
    name = template if template == "own" else str(tmp_path / template)
    with pytest.raises(ConfigError) as caught:
        Tokenizer(path, template=name)
    assert rule in str(caught.value) and "\n" not in str(caught.value)


def test_a_chat_without_a_template_is_told_at_the_start(tmp_path: Path) -> None:
    tokenizer = Tokenizer(saved(tmp_path))
    tokenizer.check("x")
    with pytest.raises(ConfigError, match=r"model\.template: the data holds chats"):
        tokenizer.check(CHAT)


@pytest.mark.parametrize(
    ("prompt", "rule"),
    [
        ((ChatMessage("user", "y"),), "the chat template refuses it (begin with x)"),
        ((ChatMessage("user", "x z"),), "the tokenizer has no ids for this prompt"),
    ],
)
def test_a_prompt_that_has_no_ids_costs_itself(tmp_path: Path, prompt: Text, rule: str) -> None:
    strict = (
        "{% if 'x' not in messages[0].content %}{{ raise_exception('begin with x') }}{% endif %}"
    )
    tokenizer = Tokenizer(saved(tmp_path, template=strict + TURNS))
    with pytest.raises(Unusable) as caught:
        tokenizer.encode(prompt)
    assert rule in str(caught.value)
    assert caught.value.reason == "not_encoded"


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ('{"max_position_embeddings": 128}', 128),
        ('{"n_positions": 64}', 64),
        ('{"max_position_embeddings": 5, "text_config": {"max_position_embeddings": 9}}', 9),
        ('{"model_type": "other"}', None),
    ],
)
def test_a_context_is_read_from_the_models_configuration(
    tmp_path: Path, config: str, length: int | None
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert context_length(str(tmp_path)) == length


def test_C014_a_scorer_sees_nothing_of_a_prompt_that_ends_within_a_character(
    tmp_path: Path,
) -> None:
    """The prompt ends with two of an emoji's bytes, and holds the answer."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Inner(models.BPE(letters, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path)
    tokenizer = Tokenizer(str(tmp_path))
    prompt = tokenizer.encode("\\boxed{42} 🙂")[: -2 * 4]
    said = tokenizer.encode("no idea")
    answer = answer_of(
        Prompt(group="g", seq=0, ids=prompt, members=1, sampling=Sampling(), reference=b"42"),
        Completion(group="g", member=0, ids=said, logprobs=b"", spans=(Span(0, 7, "b"),)),
        tokenizer.decode,
    )
    assert answer.text == "no idea"


def test_no_data_set_and_no_template_loads_torch(tmp_path: Path) -> None:
    path = saved(tmp_path / "model", template=TURNS)
    code = f"""
import json, sys, pyarrow, pyarrow.parquet
from pipeline.model.tokens import Tokenizer, context_length
from pipeline.plugins import build
from pipeline.families import DATASETS
folder = {str(tmp_path)!r}
row = dict(prompt=[dict(role="user", content="x")], reference=1)
pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), folder + "/rows.parquet")
open(folder + "/rows.jsonl", "w").write(json.dumps(row) + "\\n")
specs = [
    dict(use="jsonl", path=folder + "/rows.jsonl"),
    dict(use="parquet", path=folder + "/rows.parquet"),
    dict(use="hf", name=folder + "/rows.parquet"),
    dict(use="reasoning_gym", name="chain_sum", size=1),
]
tokenizer = Tokenizer({path!r}, template="own")
for spec in specs:
    example = build(DATASETS, spec, at="data")[0]
    assert spec["use"] == "reasoning_gym" or tokenizer.encode(example.prompt)
    assert context_length({path!r}) != 0 and "torch" not in sys.modules, spec
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
