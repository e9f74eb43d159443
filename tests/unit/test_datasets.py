"""The JSON Lines data set: read where asked, and checked whole before anything starts."""

from pathlib import Path

import pytest

from pipeline.errors import ConfigError, SluiceError
from pipeline.families import DATASETS
from pipeline.plugins import build
from pipeline.protocols import ChatMessage, Example
from services.prompting.datasets.jsonl import Jsonl


def written(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "data.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


GOOD = '{"prompt": "a", "reference": 1}\n'


def test_examples_are_read_by_their_place(tmp_path: Path) -> None:
    text = GOOD + '{"prompt": "ü", "reference": {"x": [2]}, "task": "t", "source": "own"}\r\n'
    data = Jsonl(path=written(tmp_path, text))
    assert len(data) == 2
    assert data[1] == Example(prompt="ü", reference={"x": [2]}, task="t")
    assert data[0] == Example(prompt="a", reference=1)


def test_a_prompt_may_be_a_chat(tmp_path: Path) -> None:
    text = '{"prompt": [{"role": "user", "content": "a"}], "reference": 1}\n' + GOOD
    data = Jsonl(path=written(tmp_path, text))
    assert [data[0].prompt, data[1].prompt] == [(ChatMessage("user", "a"),), "a"]


def test_empty_lines_are_skipped_and_the_last_needs_no_end(tmp_path: Path) -> None:
    data = Jsonl(path=written(tmp_path, f'\n{GOOD}  \n{{"prompt": "b", "reference": null}}'))
    assert [data[i].prompt for i in range(len(data))] == ["a", "b"]


def test_whole_numbers_of_any_size_are_kept(tmp_path: Path) -> None:
    data = Jsonl(path=written(tmp_path, f'{{"prompt": "a", "reference": {10**30}}}'))
    assert data[0].reference == 10**30


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ('{"prompt": "a"}', "missing required field `reference`"),
        ('{"reference": 1}', "missing required field `prompt`"),
        ('{"prompt": 3, "reference": 1}', "prompt: Expected `str | array`, got `int`"),
        ('{"prompt": "a", "reference": 1, "task": 2}', "task: Expected `str`, got `int`"),
        ('{"prompt": " ", "reference": 1}', "its prompt is empty"),
        ('{"prompt": [], "reference": 1}', "a chat without messages"),
        ('{"prompt": [{"role": "user"}], "reference": 1}', "missing required field `content`"),
        ('["a", 1]', "Expected `object`, got `array`"),
        ('{"prompt": "a", ', "not JSON"),
        (b'{"prompt": "\xff", "reference": 1}', "not JSON"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(
    tmp_path: Path, line: str | bytes, rule: str
) -> None:
    raw = line.encode() if isinstance(line, str) else line
    path = written(tmp_path, b"\n" + GOOD.encode() + raw + b"\n")
    with pytest.raises(ConfigError) as caught:
        Jsonl(path=path)
    assert f"{path}, line 3" in str(caught.value)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


def test_its_digest_is_that_of_every_byte(tmp_path: Path) -> None:
    first = Jsonl(path=written(tmp_path, GOOD * 2)).digest()
    assert first == Jsonl(path=written(tmp_path, GOOD * 2)).digest()
    assert first != Jsonl(path=written(tmp_path, GOOD * 2 + "\n")).digest()
    assert first != Jsonl(path=written(tmp_path, GOOD + GOOD.replace("1", "2"))).digest()


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_examples_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="there is no example in this file"):
        Jsonl(path=written(tmp_path, text))


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.jsonl.*No such file"):
        Jsonl(path=str(tmp_path / "absent.jsonl"))


def test_a_folder_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(.*directory"):
        Jsonl(path=str(tmp_path))


def test_a_file_that_is_cut_in_mid_run_is_told_by_line(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD * 3)
    data = Jsonl(path=path)
    with open(path, "r+b") as file:
        file.truncate(len(GOOD) + 4)
    assert data[0].prompt == "a"
    with pytest.raises(SluiceError, match="line 2: the file was changed"):
        data[1]


def test_it_is_built_by_its_name_with_its_path(tmp_path: Path) -> None:
    data = build(DATASETS, {"use": "jsonl", "path": written(tmp_path, GOOD)}, at="data")
    assert len(data) == 1
    with pytest.raises(ConfigError, match=r"data\.path: is required"):
        build(DATASETS, "jsonl", at="data")
