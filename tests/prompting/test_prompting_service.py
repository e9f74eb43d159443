"""Prompting over a real bus: every prompt once, in order, and never more than the window holds."""

from __future__ import annotations

import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipeline.bus.bus import Bus
from pipeline.bus.keys import Keys
from pipeline.errors import ConfigError
from pipeline.ledger import Sum
from pipeline.life import Life
from pipeline.messages import Beat, Manifest, Prompt, Sampling
from pipeline.metrics import Metrics
from pipeline.order import index
from pipeline.protocols import Example, Text
from pipeline.run import Groups, Lag, Model, Run
from pipeline.run import Prompting as PromptingKeys
from pipeline.run import Sampling as SamplingKeys
from services.prompting.build import build
from services.prompting.metrics import Numbers
from services.prompting.recipe import Recipe
from services.prompting.service import Prompting

ENGINE = "engine:1"


class Letters:
    """Examples that tell their own place."""

    def __init__(self, size: int) -> None:
        self.size, self.reads = size, 0

    def __len__(self) -> int:
        return self.size

    def digest(self) -> str:
        return f"letters/{self.size}"

    def __getitem__(self, index: int) -> Example:
        self.reads += 1
        return Example(prompt=f"p{index}", reference={"place": index}, task="t")


def encode(text: Text, *, at: str = "data") -> bytes:
    assert isinstance(text, str)
    return array("i", map(ord, text)).tobytes()


def text_of(prompt: Prompt) -> str:
    return "".join(map(chr, array("i", prompt.ids)))


def made_run(name: str, *, per_step: int, epochs: int = 1) -> Run:
    return Run(
        name=name,
        steps=1,
        seed=5,
        model=Model(path="none"),
        data="jsonl",
        prompting=PromptingKeys(epochs=epochs),
        groups=Groups(members=2, per_step=per_step),
        sampling=SamplingKeys(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, max_tokens=7),
        lag=Lag(max=1),
    )


class Window:
    """A run with a window of `2 * per_step`, and hands that take its groups and end them."""

    def __init__(self, url: str, run: Run, *, per_step: int = 1000, lag_max: int = 1000) -> None:
        """An engine is fresh enough for whatever it finds, unless the sizes are the run's own."""
        self.url, self.run = url, run
        self.bus = Bus.connect(url, run.name)
        self.bus.open({}, window=run.window, per_step=per_step, lag_max=lag_max, members=2)
        self.bus.groups.lead(1, "training:1")
        manifest = Manifest(version=0, step=0, epoch=1, fingerprint="f", location="here")
        self.bus.versions.announce(manifest, min_version=0)
        self.bus.beat(Beat(service="inference", instance="engine", boot=ENGINE))
        assert self.bus.versions.confirm(ENGINE, 0, "f") == "ok"
        self.taken: dict[str, str] = {}
        self.prompts: list[Prompt] = []

    @property
    def alive(self) -> int:
        return self.bus.groups.collect(1).alive

    def take(self) -> list[str]:
        taken = self.bus.prompts.take(ENGINE, version=0, held=[*self.taken.values()], count=99)
        self.taken |= {lease.group: lease.entry for lease in taken.leases}
        self.prompts += [lease.work.prompt for lease in taken.leases]
        return [lease.group for lease in taken.leases]

    def end(self, count: int) -> None:
        """Ends the first `count` that were taken, which frees their places."""
        for group in [*self.taken][:count]:
            self.bus.groups.refuse(1, group, {"stale": Sum(2, 0)})
            del self.taken[group]


@contextmanager
def prompting(window: Window, data: Letters | None, *, count: int = 1) -> Iterator[list[Metrics]]:
    """Services that run in threads until the block ends; without data they are built whole."""

    former = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    lives, threads, all_metrics, errors = [], [], [], []
    for number in range(count):
        metrics = Metrics("prompting")
        bus = Bus.connect(window.url, window.run.name)
        life = Life(bus, "prompting", f"prompting-{number}", metrics=metrics)
        life.start()
        if data is None:
            service = build(window.run, bus, life=life, metrics=metrics)
        else:
            recipe = Recipe(data, run=window.run, encode=encode)
            numbers = Numbers(metrics)
            service = Prompting(bus, life, recipe, window=window.run.window, numbers=numbers)

        def serve(service: Prompting = service) -> None:
            try:
                service.run()
            except BaseException as exc:
                errors.append(exc)

        threads.append(threading.Thread(target=serve))
        lives.append(life)
        all_metrics.append(metrics)
    # One signal reaches the last Life alone, so that each is told by the run's end instead.
    for thread in threads:
        thread.start()
    try:
        yield all_metrics
    finally:
        window.bus.groups.finish(1, "done", "the test is over")
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), "prompting does not stop"
        for life in lives:
            life.end()
        for signal_number, handler in former.items():
            signal.signal(signal_number, handler)
    assert not errors, errors


@pytest.fixture
def window(server_url: str, run_name: str) -> Iterator[Window]:
    window = Window(server_url, made_run(run_name, per_step=4))
    yield window
    window.bus.close()


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def drain(window: Window) -> None:
    """Takes and ends groups until the data is at its end and nothing is alive."""

    def step() -> bool:
        window.take()
        window.end(99)
        look = window.bus.groups.collect(1)
        assert look.alive <= window.run.window
        return look.eof and look.alive == 0

    wait_until(step)


def test_a_group_says_all_that_an_engine_and_a_scorer_need(window: Window) -> None:
    with prompting(window, Letters(20)):
        wait_until(window.take)
    first = window.prompts[0]
    place = index(0, size=20, seed=5)
    assert text_of(first) == f"p{place}"
    assert first == Prompt(
        group="00000000",
        seq=0,
        ids=encode(f"p{place}"),
        members=2,
        sampling=Sampling(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, max_tokens=7),
        seed=5,
        task="t",
        reference=b'{"place":%d}' % place,
    )


def test_the_window_fills_and_is_never_exceeded(window: Window) -> None:
    data = Letters(100)
    with prompting(window, data) as (metrics,):
        wait_until(lambda: window.alive == 8)
        wait_until(lambda: metrics.totals()['refusals{reason="full"}'] >= 2)
        assert window.alive == 8
        wait_until(lambda: _waits_for(window) == "window")
        window.take()
        window.end(3)
        wait_until(lambda: window.alive == 8)
        wait_until(lambda: metrics.totals()["groups"] == 11)
    assert data.reads <= 11 + 8, "a prompt that is put off is made once"


def _waits_for(window: Window) -> str | None:
    return next(
        seen.beat.waiting_for
        for seen in window.bus.snapshot().beats
        if seen.beat.service == "prompting"
    )


def test_each_epoch_is_every_example_once_in_its_own_order(server_url: str, run_name: str) -> None:
    window = Window(server_url, made_run(run_name, per_step=4, epochs=2))
    with prompting(window, Letters(10)):
        drain(window)
        wait_until(lambda: _waits_for(window) == "the run's end")
    assert [p.seq for p in window.prompts] == list(range(20))
    assert [p.group for p in window.prompts] == [f"{i:08d}" for i in range(20)]
    texts = [text_of(p) for p in window.prompts]
    everything = sorted(f"p{i}" for i in range(10))
    assert sorted(texts[:10]) == sorted(texts[10:]) == everything
    assert texts[:10] != texts[10:]
    window.bus.close()


def test_two_at_once_admit_every_prompt_once(window: Window) -> None:
    """Each may count an admission that both sent at once: a repeat has the same answer."""
    with prompting(window, Letters(150), count=2) as metrics:
        drain(window)
        admitted = [m.totals()["groups"] for m in metrics]
    assert [p.seq for p in window.prompts] == list(range(150))
    assert min(admitted) > 0 and sum(admitted) >= 150


def test_it_goes_on_where_another_was_killed(window: Window) -> None:
    lone = [
        Prompt(group=f"{i:08d}", seq=i, ids=b"", members=2, sampling=Sampling()) for i in range(3)
    ]
    assert window.bus.prompts.admit(lone, cursor=0, next_cursor=3, eof=False) == "ok"
    with prompting(window, Letters(10)) as (metrics,):
        drain(window)
        wait_until(lambda: metrics.totals()["groups"] == 7)
    assert [p.seq for p in window.prompts] == list(range(10))


def test_data_that_has_grown_shorter_ends_the_run(window: Window) -> None:
    """The cursor stands beyond the end, and nobody has said so yet."""
    assert window.bus.prompts.admit([], cursor=0, next_cursor=30, eof=False) == "ok"
    with prompting(window, Letters(10)):
        wait_until(lambda: window.bus.state().eof)
    assert window.prompts == []


def test_C091_a_server_short_of_memory_puts_admission_off(window: Window, server_url: str) -> None:
    with redis.Redis.from_url(server_url) as server:
        used = server.info("memory")["used_memory"]
        server.config_set("maxmemory", int(used * 1.2))
        try:
            with prompting(window, Letters(10)) as (metrics,):
                wait_until(lambda: metrics.totals()['refusals{reason="memory"}'] >= 2)
                wait_until(lambda: _waits_for(window) == "memory")
                assert window.alive == 0
                server.config_set("maxmemory", 0)
                wait_until(lambda: window.alive == 8)
        finally:
            server.config_set("maxmemory", 0)


def test_C093_after_the_server_went_back_the_cursor_is_moved_again(
    window: Window, server_url: str
) -> None:
    with prompting(window, Letters(10)):
        drain(window)
        with redis.Redis.from_url(server_url) as server:
            server.hset(Keys(window.run.name).state, mapping={"cursor": 4, "eof": 0})
        wait_until(lambda: window.bus.state().cursor == 10 and window.bus.state().eof)
    assert [p.seq for p in window.prompts] == list(range(10))


@pytest.fixture
def built(server_url: str, run_name: str, tmp_path: Path) -> Iterator[Window]:
    """A window of the run's own sizes, with a model's tokenizer and a data set in files."""
    (tmp_path / "model").mkdir()
    tokenizer = Tokenizer(WordLevel({"a": 7, "b": 9}))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a b a", "reference": "b"}\n')
    run = structs.replace(
        made_run(run_name, per_step=4),
        model=Model(path=str(tmp_path / "model")),
        data={"use": "jsonl", "path": str(data)},
    )
    window = Window(server_url, run, per_step=4, lag_max=1)
    yield window
    window.bus.purge()
    window.bus.close()


def test_built_from_a_run_it_encodes_with_the_models_own_tokenizer(built: Window) -> None:
    with prompting(built, None):
        wait_until(built.take)
    assert [*array("i", built.prompts[0].ids)] == [7, 9, 7]


def test_other_data_under_the_name_of_a_run_are_refused(built: Window, tmp_path: Path) -> None:
    with prompting(built, None):
        wait_until(built.take)
    (tmp_path / "data.jsonl").write_text('{"prompt": "b b b", "reference": "b"}\n')
    life = Life(built.bus, "prompting", "prompting-9", metrics=Metrics("prompting"))
    with pytest.raises(ConfigError, match=r"data = '[0-9a-f]{32}': run .* was made with"):
        build(built.run, built.bus, life=life, metrics=Metrics("prompting"))
