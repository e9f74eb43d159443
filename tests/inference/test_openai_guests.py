"""Guests beside the run's own work: flips, proofs, places, and what the run is to see of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from endpoint_service import PLACES, ModelPlant, Served
from letter_models import letters, random_model, saying
from planted_run import wait_until
from transformers import LlamaForCausalLM

from pipeline.config import dump
from pipeline.errors import ConfigError
from pipeline.ledger import Sum

IDS = {"return_token_ids": True}
FORMER, LATTER = "abcd", "wxyz"
SLOTS = 8
ROOT = Path(__file__).resolve().parents[2]

Serve = Callable[..., Served]


@pytest.fixture
def serve(server_url: str, run_name: str, tmp_path: Path) -> Iterator[Serve]:
    """A service over these models by version; its engine makes no step that is not allowed."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    all_served: list[Served] = []

    def serve(*models: LlamaForCausalLM, start: bool = True, **inference: Any) -> Served:
        plant = ModelPlant(server_url, run_name, dict(enumerate(models)), tmp_path)
        all_served.append(served := Served(plant, **inference))
        served.engine.hold()
        return served.start() if start else served

    yield serve
    for served in all_served:
        served.close()
        served.plant.bus.purge()
        served.plant.bus.close()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def later() -> Iterator[Callable[..., Future[Any]]]:
    """A request in a thread of its own."""
    with ThreadPoolExecutor(16) as pool:

        def ask(served: Served, **fields: Any) -> Future[Any]:
            asked = {"model": served.run.name, "prompt": "?", "max_tokens": 12, "extra_body": IDS}
            return pool.submit(served.client.completions.create, **asked | fields)

        yield ask


Later = Callable[..., Future[Any]]


def await_look(served: Served) -> None:
    """Until those who watch were told what there is now."""
    guests = served.service.guests
    before = guests._look_at
    wait_until(lambda: guests._look_at > before or not served.engine.busy)


def flip_to(served: Served, version: int) -> None:
    served.plant.announce(version)
    wait_until(lambda: served.engine.version == version)


def check(choice: Any, boot: str, *, said: dict[int, str]) -> None:
    """Each token is one that the version of its span says, and no other says."""
    at = 0
    for version, tokens, on in choice.spans:
        assert on == boot and set(choice.token_ids[at : at + tokens]) <= {*letters(said[version])}
        at += tokens
    assert at == len(choice.token_ids)


def test_the_spans_of_an_answer_that_a_flip_came_into_are_those_of_its_tokens(
    serve: Serve, later: Later
) -> None:
    served = serve(saying(FORMER), saying(LATTER))
    reply = later(served, max_tokens=9)
    served.engine.allow(4)
    wait_until(lambda: served.tokens() == 4)
    flip_to(served, 1)
    served.engine.allow(5)
    choice = reply.result().choices[0]
    boot = served.life.boot
    assert [tuple(span) for span in choice.spans] == [(0, 4, boot), (1, 5, boot)]
    check(choice, boot, said={0: FORMER, 1: LATTER})
    assert choice.version == 1 and reply.result().system_fingerprint.endswith("@1")


def test_nothing_is_told_before_the_proof_of_what_sampled_it(serve: Serve, later: Later) -> None:
    """Of a stream the tokens before the flip are told, and the rest once the proof is there."""
    served = serve(saying(FORMER), saying(LATTER))
    whole = later(served, max_tokens=6)
    stream = later(served, max_tokens=6, stream=True)
    wait_until(lambda: served.engine.load.waiting == 2)
    served.engine.allow(3)
    chunks = stream.result()
    told: list[int] = []
    while len(told) < 3:
        told += next(chunks).choices[0].token_ids
    served.engine.may_prove.clear()
    flip_to(served, 1)
    served.engine.allow(1)
    wait_until(lambda: served.tokens() == 2 * 4)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, chunks)
        await_look(served)
        served.engine.allow(2)
        wait_until(lambda: served.running() == 0)
        before = served.total("wall_seconds")
        wait_until(lambda: served.total("wall_seconds") > before + 0.1)
        assert not whole.done() and not following.done()
        served.engine.may_prove.set()
        told += following.result().choices[0].token_ids
    told += [i for chunk in chunks for i in chunk.choices[0].token_ids]
    assert [c.version for c in whole.result().choices] == [1]
    for ids in (told, whole.result().choices[0].token_ids):
        assert {*ids[:3]} <= {*letters(FORMER)} and {*ids[3:]} <= {*letters(LATTER)}
        assert len(ids) == 6


@pytest.mark.parametrize("more", [2, 6], ids=["running", "finished"])
def test_a_stream_never_has_a_token_that_a_wrong_flip_takes_back(
    serve: Serve, later: Later, more: int
) -> None:
    served = serve(saying(FORMER), saying(LATTER))
    stream, whole = later(served, max_tokens=9, stream=True), later(served, max_tokens=9)
    wait_until(lambda: served.engine.load.waiting == 2)
    served.engine.allow(3)
    chunks = stream.result()
    pieces = [next(chunks).choices[0]]
    served.engine.wrong_flips[1] = 1
    served.engine.may_prove.clear()
    flip_to(served, 1)
    served.engine.allow(more)
    wait_until(lambda: served.tokens() in (2 * (3 + more), 0))
    await_look(served)
    served.engine.may_prove.set()
    wait_until(lambda: served.total("wrong_flips") == 1)
    wait_until(lambda: sum(served.engine.load[:2]) == 2)  # both go on from their third token
    served.engine.allow(1000)
    pieces += [chunk.choices[0] for chunk in chunks]
    told = [token for piece in pieces for token in piece.token_ids]
    spans = [span for piece in pieces for span in piece.spans]
    assert len(told) == 9 == sum(tokens for _, tokens, _ in spans)
    assert "".join(piece.text for piece in pieces).encode() == bytes(told)
    at = 0
    for version, tokens, _ in spans:
        said = letters({0: FORMER, 1: LATTER}[version])
        assert {*told[at : at + tokens]} <= {*said}
        at += tokens
    check(whole.result().choices[0], served.life.boot, said={0: FORMER, 1: LATTER})
    assert served.total("lost_tokens") == 0, "the run lost none"


def test_over_its_places_the_endpoint_says_when_to_come_again(serve: Serve, later: Later) -> None:
    served = serve(saying(FORMER))
    replies = [later(served, n=PLACES - 1), later(served)]
    wait_until(lambda: served.engine.load.waiting == PLACES)
    with pytest.raises(openai.RateLimitError) as caught:
        later(served).result()
    assert caught.value.response.headers["Retry-After"] == "1"
    served.engine.allow(1000)
    assert [len(reply.result().choices) for reply in replies] == [PLACES - 1, 1]
    assert later(served, n=PLACES).result(), "its places are free again"
    assert served.metrics.totals()['endpoint_requests{outcome="crowded"}'] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_away_frees_its_slots(serve: Serve, later: Later, stream: bool) -> None:
    served = serve(saying(FORMER))
    body = msgspec.json.encode(
        {"model": served.run.name, "prompt": "?", "n": PLACES, "stream": stream, "max_tokens": 400}
    )
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n"
    host, port = served.site.address.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        served.engine.allow(2)
        wait_until(lambda: served.running() == PLACES)
    wait_until(lambda: not served.engine.busy)
    served.engine.allow(1000)
    assert later(served, n=PLACES).result()
    wait_until(lambda: served.metrics.totals()['endpoint_requests{outcome="left"}'] == 1)


def test_before_the_first_version_there_is_nothing_to_sample_by(serve: Serve, later: Later) -> None:
    served = serve(saying(FORMER), start=False)
    with pytest.raises(openai.InternalServerError, match="no version of the weights") as caught:
        later(served).result()
    assert caught.value.status_code == 503 and caught.value.response.headers["Retry-After"] == "1"
    assert served.client.models.list().data[0].version is None  # type: ignore[attr-defined]


def test_a_key_is_asked_for_where_one_is_set(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_ENDPOINT_KEY", "secret")
    served = serve(saying(FORMER), start=False)
    with pytest.raises(openai.AuthenticationError, match="SLUICE_ENDPOINT_KEY"):
        served.client.models.list()
    assert served.client.with_options(api_key="secret").models.list().data


def test_nobody_waits_for_an_engine_that_hangs(serve: Serve, later: Later) -> None:
    served = serve(saying(FORMER), start=False)
    served.inbox.open()  # and its loop makes no turn
    served.life._alive_until = 0.0
    with pytest.raises(openai.InternalServerError, match="makes no progress") as caught:
        later(served).result()
    assert caught.value.status_code == 503


def test_who_waits_when_the_engine_leaves_is_told_why(serve: Serve, later: Later) -> None:
    served = serve(saying(FORMER))
    whole, stream = later(served, max_tokens=400), later(served, max_tokens=400, stream=True)
    served.engine.allow(3)
    chunks = stream.result()
    next(chunks)
    served.life.signal = "SIGTERM"
    with pytest.raises(openai.InternalServerError, match="this engine leaves the run") as caught:
        whole.result()
    assert caught.value.status_code == 503
    with pytest.raises(openai.APIError, match="this engine leaves the run"):
        for _ in chunks:
            pass
    served.thread.join(20)
    with pytest.raises(openai.InternalServerError, match="this engine leaves the run"):
        later(served).result()


def test_who_waits_when_the_engine_is_declared_dead_is_told_why_and_can_come_again(
    serve: Serve, later: Later
) -> None:
    served = serve(saying(FORMER))
    reply, boot = later(served, max_tokens=400), served.life.boot
    served.engine.allow(3)
    wait_until(lambda: served.tokens() == 3)
    served.plant.bus.bury("engine")
    with pytest.raises(openai.InternalServerError, match="starts over"):
        reply.result()
    wait_until(lambda: served.inbox.is_open and served.life.boot != boot)
    served.engine.allow(1000)
    assert later(served).result().choices[0].spans[0][2] == served.life.boot
    assert served.total("lost_tokens") == 0, "none of the run's"


def test_a_quarantined_engine_samples_for_nobody_new(serve: Serve, later: Later) -> None:
    """It gets no prompts of the run's any more; who is in goes on under the weights before."""
    served = serve(saying(FORMER), saying(LATTER))
    served.engine.wrong_flips[1] = 2
    inside = later(served, max_tokens=6)
    wait_until(lambda: served.engine.load.waiting == 1)
    served.plant.announce(1)
    wait_until(lambda: served.plant.seen(served.life.boot).quarantined)
    with pytest.raises(openai.InternalServerError, match="is quarantined: 2 flips went wrong"):
        later(served).result()
    served.engine.allow(6)
    check(inside.result().choices[0], served.life.boot, said={0: FORMER})


def test_the_stream_beside_it_is_the_run_s_own_and_whole(serve: Serve, later: Later) -> None:
    """Guests come and go all the while; neither ledger nor numbers know of them."""
    served = serve(random_model(), random_model(1))
    served.engine.is_bounded = False
    stopping = threading.Event()

    def keep_asking() -> int:
        count = 0
        while not stopping.is_set():
            count += len(later(served, n=2, max_tokens=5).result().choices)
        return count

    with ThreadPoolExecutor(2) as pool:
        guests = [pool.submit(keep_asking) for _ in range(2)]
        prompts = served.plant.admit(6)
        done = served.plant.await_delivered(12)
        flip_to(served, 1)
        prompts += served.plant.admit(2)
        wait_until(lambda: served.total("members") == 16)
        stopping.set()
        assert sum(guest.result() for guest in guests) > 8
    done = served.plant.delivered()
    wanted = {(prompt.group, member) for prompt in prompts for member in range(2)}
    assert {(c.group, c.member) for c in done} == wanted and len(done) == 16
    tokens = sum(completion.tokens for completion in done)
    assert served.plant.ledger()["generated"] == Sum(16, tokens)
    assert served.total("tokens") == tokens and served.total("lost_tokens") == 0
    assert served.total("endpoint_tokens") > 0


def test_a_guest_does_not_change_how_many_groups_an_engine_asks_for(
    serve: Serve, later: Later
) -> None:
    served = serve(saying(FORMER))
    reply = later(served)
    wait_until(lambda: served.engine.load.waiting == 1)
    served.plant.admit(16)
    wait_until(lambda: len(served.service.outbox.leases) >= SLOTS // 2)
    before = served.total("wall_seconds")
    wait_until(lambda: served.total("wall_seconds") > before + 0.1)
    assert len(served.service.outbox.leases) == SLOTS // 2, "groups of two"
    served.engine.allow(1000)
    reply.result()


def test_an_engine_that_only_guests_keep_busy_still_says_what_it_waits_for(
    serve: Serve, later: Later
) -> None:
    served = serve(saying(FORMER))
    reply = later(served, max_tokens=4)
    served.engine.allow(2)
    wait_until(lambda: served.tokens() == 2)
    assert served.service.waiting_for == "prompts"
    served.engine.allow(2)
    reply.result()


def test_a_prefix_is_saved_beside_guests(serve: Serve, later: Later) -> None:
    """The look at what is running meets guests, and leaves them alone."""
    served = serve(saying(FORMER))
    reply = later(served, max_tokens=300)
    served.plant.admit(tokens=300)
    wait_until(lambda: served.service.outbox.leases)
    served.engine.allow(299)
    wait_until(lambda: served.total("tokens") > 0)
    served.engine.allow(1000)
    assert len(reply.result().choices[0].token_ids) == 300
    assert [array("i", c.ids)[-1] for c in served.plant.await_delivered(2)]


def test_more_than_half_of_the_slots_is_refused_at_the_start(serve: Serve) -> None:
    with pytest.raises(ConfigError, match=r"inference.endpoint = 5: is more than half of .* 8"):
        serve(saying(FORMER), endpoint=5)


def test_a_killed_engine_ends_its_requests_and_none_is_taken_for_whole(
    server_url: str, run_name: str, tmp_path: Path
) -> None:
    plant = ModelPlant(server_url, run_name, {0: saying(FORMER)}, tmp_path)
    run = plant.as_run({"engine": {"use": "slow_fake:build"}})
    (tmp_path / "run.toml").write_text(dump(run))
    command = [sys.executable, "-m", "services.cli", "inference", "run.toml", "--redis", server_url]
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    port = free_port()
    process = subprocess.Popen(
        [*command, "--http", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    create = partial(client.completions.create, model=run.name, prompt="?", max_tokens=400)
    try:
        wait_until(lambda: is_answering(client, run.name), 60)
        chunks = create(stream=True)
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(create)
            next(chunks)
            process.kill()
            with pytest.raises(openai.APIConnectionError):
                whole.result()
            with pytest.raises((openai.APIError, httpx2.HTTPError)):
                for _ in chunks:
                    pass
    finally:
        process.kill()
        process.wait()
        plant.bus.purge()
        plant.bus.close()


def is_answering(client: openai.OpenAI, model: str) -> bool:
    with suppress(openai.APIError):
        return bool(client.completions.create(model=model, prompt="?", max_tokens=1).id)
    return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
