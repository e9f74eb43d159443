"""The endpoint with OpenAI's own client: what is asked, what is answered, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from endpoint_service import PLACES, ModelPlant, Served
from letter_models import BEGIN, END, SEPARATOR, letters, plain_logprobs, random_model, saying
from planted_run import wait_until

IDS = {"return_token_ids": True}
TEXT = "é€😀 "


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("endpoint")


@pytest.fixture(scope="module")
def random_served(server_url: str, module_folder: Path) -> Iterator[Served]:
    """Over a random model, for what leaves it as it was."""
    plant = ModelPlant(server_url, "endpoint-random", {0: random_model()}, module_folder / "random")
    served = Served(plant).start()
    yield served
    served.close()
    plant.bus.purge()


@pytest.fixture(scope="module")
def letter_served(server_url: str, module_folder: Path) -> Iterator[Served]:
    """Over a model that says characters of up to four bytes, a byte a token, on and on."""
    plant = ModelPlant(server_url, "endpoint-letters", {0: saying(TEXT)}, module_folder / "letters")
    served = Served(plant).start()
    yield served
    served.close()
    plant.bus.purge()


def spans_of(choice: Any) -> list[tuple[int, int, str]]:
    return [tuple(span) for span in choice.spans]


def test_ids_go_in_and_ids_come_out_with_the_log_probs_of_a_plain_forward(
    random_served: Served,
) -> None:
    prompt = [7, 200, 31, 4]
    reply = random_served.client.completions.create(
        model=random_served.run.name, prompt=prompt, max_tokens=20, logprobs=0, extra_body=IDS
    )
    choice: Any = reply.choices[0]
    model = random_served.plant.models[0]
    expected = plain_logprobs(model, prompt, choice.token_ids)
    assert choice.prompt_token_ids == prompt
    assert choice.token_logprobs == pytest.approx(expected, abs=1e-4)
    assert choice.logprobs.token_logprobs == choice.token_logprobs
    assert len(choice.token_ids) == 20 or choice.token_ids[-1] == END
    assert spans_of(choice) == [(0, len(choice.token_ids), random_served.life.boot)]
    assert choice.version == 0 and reply.system_fingerprint == f"{random_served.run.name}@0"
    usage = reply.usage
    assert usage and (usage.prompt_tokens, usage.completion_tokens) == (4, len(choice.token_ids))


def test_of_top_k_it_is_told_what_could_be_drawn(random_served: Served) -> None:
    reply = random_served.client.completions.create(
        model=random_served.run.name, prompt=[1, 2], max_tokens=5, extra_body=IDS | {"top_k": 3}
    )
    choice: Any = reply.choices[0]
    assert [len(ids) for ids in choice.kept_ids] == [3] * len(choice.token_ids)
    assert all(t in ids for t, ids in zip(choice.token_ids, choice.kept_ids, strict=True))


def test_a_text_is_encoded_once_and_several_prompts_are_answered_in_their_order(
    random_served: Served,
) -> None:
    reply = random_served.client.completions.create(
        model=random_served.run.model.path, prompt=["ab", "c"], n=2, max_tokens=6, extra_body=IDS
    )
    choices: list[Any] = reply.choices
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    ab, c = [BEGIN, *letters("ab")], [BEGIN, *letters("c")]
    assert [choice.prompt_token_ids for choice in choices] == [ab, ab, c, c]
    assert len({tuple(choice.token_ids) for choice in choices}) == 4, "noise of its own for each"
    assert reply.usage and reply.usage.prompt_tokens == 5


def test_a_seed_gives_the_same_again_and_none_does_not(random_served: Served) -> None:
    def ids(**more: Any) -> list[list[int]]:
        reply = random_served.client.completions.create(
            model=random_served.run.name, prompt="ab", n=2, max_tokens=12, extra_body=IDS, **more
        )
        return [choice.token_ids for choice in reply.choices]  # type: ignore[attr-defined]

    assert ids(seed=5) == ids(seed=5) != ids(seed=6)
    assert ids() != ids()


def test_a_chat_is_written_by_the_template_and_begins_once(random_served: Served) -> None:
    reply: Any = random_served.client.chat.completions.create(
        model=random_served.run.name,
        messages=[
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
        ],
        max_completion_tokens=9,
        n=2,
        logprobs=True,
        extra_body=IDS,
    )
    said = [BEGIN, *letters("[system]s"), SEPARATOR, BEGIN, *letters("[user]u"), SEPARATOR]
    assert reply.prompt_token_ids == [*said, *letters("[bot]")]
    for choice in reply.choices:
        content = choice.logprobs.content
        assert [one.logprob for one in content] == choice.token_logprobs
        for token, one in zip(choice.token_ids, content, strict=True):
            assert token > 255 or one.bytes == ([token] if token < 128 else None)
        assert choice.message.role == "assistant" and choice.message.content is not None


@pytest.mark.parametrize("tokens", [10, 13])
def test_deltas_are_the_whole_text_and_none_ends_within_a_character(
    letter_served: Served, tokens: int
) -> None:
    asked: dict[str, Any] = {"model": letter_served.run.name, "prompt": "?", "max_tokens": tokens}
    whole: Any = letter_served.client.completions.create(**asked, extra_body=IDS).choices[0]
    letter_served.engine.hold()
    letter_served.engine.allow(1)
    stream = letter_served.client.completions.create(**asked, stream=True, extra_body=IDS)
    chunks: list[Any] = []
    for chunk in stream:
        chunks.append(chunk.choices[0])
        letter_served.engine.allow(1)
    letter_served.engine.is_bounded = False
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [i for chunk in chunks for i in chunk.token_ids] == whole.token_ids
    assert len(chunks) > tokens // 2
    last = chunks.pop()
    assert last.finish_reason == "length" and not any(c.finish_reason for c in chunks)
    assert "\ufffd" not in "".join(chunk.text for chunk in chunks)
    assert chunks[0].prompt_token_ids == [BEGIN, *letters("?")]


def test_a_chat_streams_its_role_first_and_its_usage_last(letter_served: Served) -> None:
    stream = letter_served.client.chat.completions.create(
        model=letter_served.run.name,
        messages=[{"role": "user", "content": "?"}],
        max_tokens=10,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [*stream]
    roles = [c.choices[0].delta.role for c in chunks if c.choices and c.choices[0].delta.role]
    assert roles == ["assistant"] * 2
    for number in range(2):
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == number]
        assert "".join(choice.delta.content or "" for choice in mine) == TEXT
    usage = chunks[-1].usage
    assert usage and usage.completion_tokens == 20 and not chunks[-1].choices


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_an_answer_before_it_and_with_its_last_token(
    letter_served: Served, stream: bool
) -> None:
    asked: dict[str, Any] = {"model": letter_served.run.name, "prompt": "?", "max_tokens": 400}
    asked |= {"stop": ["never", "😀 é"], "extra_body": IDS}
    replies: Any = letter_served.client.completions.create(**asked, stream=stream)
    choices = [r.choices[0] for r in replies] if stream else replies.choices
    assert "".join(choice.text for choice in choices) == "é€"
    assert [i for c in choices for i in c.token_ids] == letters("é€😀 é")
    assert choices[-1].finish_reason == "stop"
    wait_until(lambda: letter_served.running() == 0)


def test_the_models_are_the_policy(letter_served: Served) -> None:
    models = letter_served.client.models
    [model] = models.list().data
    assert model == models.retrieve(letter_served.run.name)
    assert (model.id, model.version) == (letter_served.run.name, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("more", "status", "param", "words"),
    [
        ({"model": "gpt"}, 404, "model", "`gpt` does not exist"),
        ({"temprature": 1}, 400, "temprature", "Unrecognized request argument supplied"),
        ({"temperature": 3}, 400, "temperature", "<= 2"),
        ({"max_tokens": "many"}, 400, "max_tokens", "got `str`"),
        ({"max_tokens": 401}, 400, "max_tokens", "400 at most"),
        ({"n": PLACES + 1}, 400, "n", "4 at once are let in"),
        ({"prompt": [""] * (PLACES + 1)}, 400, "n", "asks for 5 sequences"),
        ({"top_k": 2**70}, 400, "top_k", "<= 2147483647"),
        ({"temperature": 1e-44}, 400, "temperature", "0, or 1e-09 at least"),
        ({"logprobs": 2}, 400, "logprobs", "can only be 0"),
        ({"frequency_penalty": 1}, 400, "frequency_penalty", "can only be 0"),
        ({"prompt": [1, 9999]}, 400, "prompt", "the model knows 0..259"),
        ({"prompt": [1] * 600}, 400, "prompt", "the context holds 512"),
        ({"prompt": [1, "a"]}, 400, "prompt", "a text, token ids, or a list of either"),
        ({"prompt": []}, 400, "prompt", "a text, token ids, or a list of either"),
        ({"prompt": None}, 400, "prompt", "missing required field"),
        ({"stop": [""]}, 400, "stop", "none of them empty"),
    ],
)
def test_what_cannot_be_answered_is_told_as_openai_tells_it(
    letter_served: Served, more: dict[str, Any], status: int, param: str, words: str
) -> None:
    fields = {"model": letter_served.run.name, "prompt": "?", **more}
    with pytest.raises(openai.APIStatusError) as caught:
        letter_served.client.completions.create(
            model=fields.pop("model"), prompt=fields.pop("prompt"), extra_body=fields
        )
    error: Any = caught.value.body
    assert (caught.value.status_code, error["param"]) == (status, param)
    assert words in error["message"] and error["type"] == "invalid_request_error"


def test_what_changes_nothing_is_let_through(letter_served: Served) -> None:
    reply = letter_served.client.completions.create(
        model=letter_served.run.name, prompt="?", user="u", best_of=1, echo=False, suffix=None
    )
    assert reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/engines", {}, 404),
        ("POST", "/v1/completions", {"Content-Type": "text/plain"}, 415),
        ("POST", "/elsewhere", {}, 404),
    ],
)
def test_other_requests_are_refused(
    letter_served: Served, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    reply = httpx.request(method, letter_served.url + path, content=b"{}", headers=headers)
    assert reply.status_code == status


def test_a_body_that_nests_without_end_is_no_json(letter_served: Served) -> None:
    body = b'{"prompt": ' + b"[" * 20_000
    headers = {"Content-Type": "application/json"}
    reply = httpx.post(letter_served.url + "/v1/completions", content=body, headers=headers)
    assert reply.status_code == 400 and "no JSON" in reply.json()["error"]["message"]


def test_beside_it_the_metrics_are_what_they_were(letter_served: Served) -> None:
    text = httpx.get(f"{letter_served.url}/metrics").text
    assert 'sluice_inference_endpoint_requests_total{outcome="answered"}' in text
    assert httpx.get(f"{letter_served.url}/healthz").text == "ok\n"


def test_many_at_once_are_answered_each_with_its_own(random_served: Served) -> None:
    """As many as there are places, again and again; each prompt is told apart by its log-probs."""
    wrong: list[object] = []

    def ask(number: int) -> None:
        for turn in range(4):
            prompt = [number, turn, 9]
            reply = random_served.client.completions.create(
                model=random_served.run.name, prompt=prompt, max_tokens=8, extra_body=IDS
            )
            choice: Any = reply.choices[0]
            expected = plain_logprobs(random_served.plant.models[0], prompt, choice.token_ids)
            if choice.token_logprobs != pytest.approx(expected, abs=1e-4):
                wrong.append((prompt, choice))

    def ask_all(number: int) -> None:
        try:
            ask(number)
        except Exception as exc:
            wrong.append(exc)

    threads = [threading.Thread(target=ask_all, args=(number,)) for number in range(PLACES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
