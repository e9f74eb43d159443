"""`make compose-test`: the demo in containers, under what happens to containers.

    python tests/compose/run.py

Builds the image, starts compose.yaml under compose.ci.yaml, and lets the demo train while engines
come and go, a container of each kind is killed with -9, Redis is killed and started again, an
engine is cut off the network, and all is taken down and up again. Then the run must be done, its
ledger must balance, and the model must have learnt what it learns undisturbed. Takes the engine
that DOCKER_HOST names, and for the build PIP_FIND_LINKS where that is a folder. The last line is
one JSON object; exit 1 where something did not hold, and then the logs are kept.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from panels import empty
from stack import ROOT, Failed, Stack

SERVICES = ("prompting", "inference", "scoring", "training")
RUN = "demo"
FIRST_STEPS, STEPS, MORE_STEPS = 1000, 90, 10
"""At first more than can be made, so that all that is to happen happens in time; then the demo's
own, or some more than were made."""
START, TARGET = 0.3, 0.9
"""Held-out sampled accuracy: before training at most, afterwards at least."""
CUT_SECONDS = 20.0
"""Off the network: longer than a lease."""
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.5


class Test:
    """The acts, in order; `figures` is what was seen."""

    def __init__(self, stack: Stack, folder: Path, password: str) -> None:
        self.stack, self.folder, self.password = stack, folder, password
        self.steps = FIRST_STEPS
        self.figures: dict[str, Any] = {}

    def acts(self) -> list[Callable[[], None]]:
        """Each raises Failed where what it claims does not hold."""
        return [
            self.files_are_clean,
            self.image_is_built,
            self.stack_is_up,
            self.nothing_runs_as_root,
            self.password_is_nowhere,
            self.every_target_is_up,
            self.engines_join_and_leave,
            *(self.killed(service) for service in SERVICES),
            self.redis_is_killed,
            self.redis_is_restarted,
            self.an_engine_is_cut_off,
            self.down_and_up_goes_on,
            self.every_panel_has_data,
            self.run_is_done,
            self.ledger_balances,
            self.model_has_learnt,
            self.report_is_written,
            self.a_finished_run_stays_finished,
            self.down_leaves_nothing,
        ]

    def files_are_clean(self) -> None:
        """What the linters say of the files; hadolint where it is installed."""
        self.stack.compose("config", "--quiet")
        self.stack.compose("--profile", "gpu", "config", "--quiet")
        places = (str(Path(sys.executable).parent), os.environ.get("PATH", ""))
        hadolint = shutil.which("hadolint", path=os.pathsep.join(places))
        self.figures["hadolint"] = "clean" if hadolint else "not installed"
        if hadolint:
            self.stack.call(hadolint, "docker/Dockerfile")

    def image_is_built(self) -> None:
        """By its layers: the code's is small, since the libraries have their own."""
        self.stack.compose("build", "--quiet")
        size = self.stack.docker("image", "inspect", "-f", "{{.Size}}", "sluice:cpu").stdout
        self.figures["image_megabytes"] = int(size) // 10**6

    def stack_is_up(self) -> None:
        """Every service says that it is ready."""
        self.up()
        self.await_step(1)

    def nothing_runs_as_root(self) -> None:
        """Not one process of any container."""
        users = {}
        for container in self.stack.ids(ended=False):
            status = self.stack.inside(container, "cat /proc/[0-9]*/status")
            users[container[:12]] = sorted(set(re.findall(r"^Uid:\s+(\d+)", status, re.M)))
        expect(all(uids and "0" not in uids for uids in users.values()), f"user ids: {users}")

    def password_is_nowhere(self) -> None:
        """In no argument, no variable and no layer that the engine would show."""
        for container in self.stack.ids():
            told = json.dumps(self.stack.inspect(container))
            expect(self.password not in told, f"{container[:12]} is started with the password")
        history = self.stack.docker("history", "--no-trunc", "sluice:cpu").stdout
        expect(self.password not in history, "the image has the password")

    def every_target_is_up(self) -> None:
        """Of Prometheus, each service's."""
        self.await_targets({service: 1 for service in SERVICES})

    def engines_join_and_leave(self) -> None:
        """Three engines, each scraped and at work; then one again."""
        self.up("--scale", "inference=3")
        self.await_targets({"inference": 3})
        self.await_progress()
        self.up("--scale", "inference=1")
        await_that("one engine is left", lambda: len(self.stack.ids("inference")) == 1)
        self.await_progress()

    def killed(self, service: str) -> Callable[[], None]:
        """The act of killing all that a container runs with -9: it comes back by itself."""

        def act() -> None:
            (container,) = self.stack.ids(service)
            before = self.stack.inspect(container)["RestartCount"]
            self.stack.inside(container, "kill -9 -1", check=False)

            def is_back() -> bool:
                about = self.stack.inspect(container)
                is_well = about["State"].get("Health", {}).get("Status") == "healthy"
                return about["RestartCount"] > before and is_well

            await_that(f"{service} is back", is_back)
            self.await_progress()

        act.__name__ = f"{service}_is_killed"
        return act

    def redis_is_killed(self) -> None:
        """With -9, and started again: it has lost nothing that it had acknowledged."""
        self.stack.compose("kill", "-s", "SIGKILL", "redis")
        self.up()
        self.await_progress()

    def redis_is_restarted(self) -> None:
        """In order."""
        self.stack.compose("restart", "redis")
        self.await_progress()

    def an_engine_is_cut_off(self) -> None:
        """For longer than its lease, then connected again, under the name that it had."""
        (container,), network = self.stack.ids("inference"), f"{self.stack.project}_default"
        self.stack.docker("network", "disconnect", network, container)
        time.sleep(CUT_SECONDS)
        self.stack.docker("network", "connect", "--alias", "inference", network, container)
        self.await_progress()
        self.await_targets({"inference": 1})

    def down_and_up_goes_on(self) -> None:
        """Asked to stop, every service ends well; `up` after `down` goes on with the same run.

        How many steps it is to make may have changed meanwhile.
        """
        with self.leaving_no_process():
            self.stack.compose("stop", *SERVICES)
            codes = {service: self.exit_codes(service) for service in SERVICES}
            expect(all(set(c) == {0} for c in codes.values()), f"exit codes of a stop: {codes}")
            before = int(self.state()["step"])
            self.stack.compose("down")
        self.steps = max(STEPS, before + MORE_STEPS)
        write_run(self.folder, self.steps)
        self.up()
        after = self.await_progress()
        expect(after >= before, f"step {after} after `up`, and {before} before `down`")

    def every_panel_has_data(self) -> None:
        """Of each dashboard, whatever Grafana would ask."""
        blank: list[str] = []

        def are_filled() -> bool:
            blank[:] = empty(ROOT / "grafana" / "dashboards", self.stack.prometheus)
            return not blank

        self.figures["empty_panels"] = blank
        await_that("every panel has data", are_filled)

    def run_is_done(self) -> None:
        """All steps are made, and the services leave by themselves."""
        await_that("the run is over", lambda: self.state()["stop"] != "running", 600.0)
        state = self.state()
        expect(state["stop"] == "done", f"the run is {state['stop']}: {state['reason']}")
        expect(int(state["step"]) == self.steps, f"{state['step']} steps, and not {self.steps}")
        await_that("every service has left with 0", self.all_have_left)

    def ledger_balances(self) -> None:
        """By the doctor, and by our own sum."""
        self.figures["doctor"] = self.stack.once("doctor", "run.toml").stdout.strip().splitlines()
        booked = pairs(self.stack.redis("hgetall", f"sluice:{{{RUN}}}:led"))
        tokens = {k.partition("|")[0]: int(v) for k, v in booked.items() if k.endswith("|tokens")}
        generated = tokens.pop("generated")
        self.figures["tokens"] = {"generated": generated, **tokens}
        rest = generated - sum(tokens.values())
        expect(rest == 0, f"{rest} tokens have no fate: {self.figures['tokens']}")

    def model_has_learnt(self) -> None:
        """Held-out prompts on the first weights and on the last."""
        self.stack.once("evaluate", "run.toml")
        points = json.loads(self.reads(f"runs/{RUN}/evaluation.json"))["points"]
        first, last = points[0]["sampled"], points[-1]["sampled"]
        self.figures["held_out_sampled"] = [round(first, 3), round(last, 3)]
        expect(first < START and last >= TARGET, f"held-out sampled {first:.3f} -> {last:.3f}")

    def report_is_written(self) -> None:
        """Without a `sluice up` that would write it."""
        self.stack.once("report", "run.toml")
        page = self.reads(f"runs/{RUN}/report.html")
        expect("</html>" in page, "the report is no whole page")
        self.figures["report_bytes"] = len(page)

    def a_finished_run_stays_finished(self) -> None:
        """A third `up` makes no step: everybody leaves with 0."""
        self.stack.compose("up", "-d")
        await_that("every service has left with 0", self.all_have_left)
        expect(int(self.state()["step"]) == self.steps, "a run that was done made another step")

    def down_leaves_nothing(self) -> None:
        """No container, no volume and no network."""
        with self.leaving_no_process():
            self.stack.compose("--profile", "*", "down", "--volumes", "--remove-orphans")
        label = f"label=com.docker.compose.project={self.stack.project}"
        for kind in ("container", "volume", "network"):
            everything = ("-a",) if kind == "container" else ()
            left = self.stack.docker(kind, "ls", "-q", *everything, "--filter", label).stdout
            expect(not left, f"`down` leaves a {kind}: {left}")

    # What the acts are made of.

    def up(self, *words: str) -> None:
        """`docker compose up -d --wait`."""
        self.stack.compose("up", "-d", "--wait", *words)

    @contextmanager
    def leaving_no_process(self) -> Iterator[None]:
        """Raises Failed where one of those that ran in the containers still does."""
        processes = self.stack.processes()
        yield
        alive = [pid for pid in processes if Path(f"/proc/{pid}").exists()]
        expect(not alive or not is_local(), f"`down` leaves processes: {alive}")

    def state(self) -> dict[str, str]:
        """Where the run stands."""
        return pairs(self.stack.redis("hgetall", f"sluice:{{{RUN}}}:state"))

    def step(self) -> int:
        """The run's last step; -1 where it cannot be asked now."""
        try:
            return int(self.state().get("step", -1))
        except Failed:
            return -1

    def await_step(self, step: int) -> int:
        """Returns once that step is made, which must not be the run's last."""
        await_that(f"step {step} is made", lambda: self.step() >= step)
        expect(self.step() < self.steps, "the run was over before all had happened")
        return self.step()

    def await_progress(self) -> int:
        """Two more steps: the one under way may have had all that it needed."""
        await_that("Redis answers", lambda: self.step() >= 0)
        return self.await_step(self.step() + 2)

    def await_targets(self, counts: dict[str, int]) -> None:
        """Returns once Prometheus scrapes that many of each service, and finds all of them up."""

        def are_up() -> bool:
            targets = self.stack.prometheus("targets", state="active")["activeTargets"]
            self.figures["targets"] = [(t["labels"]["job"], t["health"]) for t in targets]
            found = [job for job, health in self.figures["targets"] if health == "up"]
            return len(found) == len(targets) and all(
                found.count(job) == count for job, count in counts.items()
            )

        await_that(f"Prometheus finds {counts} up", are_up)

    def exit_codes(self, service: str) -> list[int]:
        """Of its containers, -1 while one runs."""
        states = self.stack.states(service)
        return [s["ExitCode"] if s["Status"] == "exited" else -1 for s in states]

    def all_have_left(self) -> bool:
        """Whether no service runs any more, and none was at fault."""
        return all(set(self.exit_codes(service)) == {0} for service in SERVICES)

    def reads(self, path: str) -> str:
        """A file of the run's volume."""
        tool = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "cat", "sluice", path)
        return self.stack.compose(*tool).stdout


def expect(holds: bool, otherwise: str) -> None:
    """Raises Failed where it does not."""
    if not holds:
        raise Failed(otherwise)


def await_that(what: str, holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Returns once it holds; raises Failed where it does not in time."""
    deadline, error = time.monotonic() + seconds, ""
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except OSError as exc:
            error = f" ({exc})"
        time.sleep(LOOK_SECONDS)
    raise Failed(f"waited {seconds:.0f} s in vain: {what}{error}")


def pairs(lines: list[str]) -> dict[str, str]:
    """A hash as redis-cli prints it."""
    return dict(zip(lines[::2], lines[1::2], strict=False))  # none is one empty line


def is_local() -> bool:
    """Whether the engine's processes are this machine's."""
    return os.environ.get("DOCKER_HOST", "unix://").startswith("unix://")


def write_run(folder: Path, steps: int) -> None:
    """The demo, but for its number of steps, and for a scorer that watches from the shadow."""
    text = (ROOT / "examples" / "demo.toml").read_text()
    watched = 'scorers = ["exact", { use = "regex", pattern = \'^[a-z]\', shadow = true }]'
    for line, instead in (
        (r"^steps = \d+$", f"steps = {steps}"),
        (r"^scorers = .*$", watched),
    ):
        text, count = re.subn(line, instead, text, flags=re.M)
        expect(count == 1, f"examples/demo.toml has no line {line}")
    (folder / "run.toml").write_text(text)


def settings(folder: Path) -> tuple[dict[str, str], str]:
    """What compose.yaml takes from the environment, and the password that it is to use."""
    write_run(folder, FIRST_STEPS)
    password = secrets.token_hex(24)
    (folder / "redis_password").write_text(f"{password}\n")
    (folder / "wheels").mkdir()
    wheels = Path(os.environ.get("PIP_FIND_LINKS", ""))
    return {
        "COMPOSE_PROFILES": "cpu",
        "RUN_TOML": str(folder / "run.toml"),
        "REDIS_PASSWORD_FILE": str(folder / "redis_password"),
        "WHEELS": str(wheels if wheels.is_absolute() else folder / "wheels"),
        "REDIS_PORT": "0",
        "PROMETHEUS_PORT": "0",
    }, password


def perform(test: Test) -> dict[str, Any]:
    """All acts up to the first that fails."""
    seconds: dict[str, float] = {}
    for act in test.acts():
        started = time.monotonic()
        try:
            act()
        except Exception as exc:  # one act; it is the verdict
            traceback.print_exc()
            return {"passed": False, "failed": act.__name__, "why": str(exc), "seconds": seconds}
        seconds[act.__name__] = round(time.monotonic() - started, 1)
        print(f"held {act.__name__} ({seconds[act.__name__]} s)", flush=True)
    return {"passed": True, "seconds": seconds}


def main() -> int:
    """The test; its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and nothing is left
    folder = Path(tempfile.mkdtemp(prefix="compose-"))
    environment, password = settings(folder)
    stack = Stack(f"sluice-{os.getpid()}", environment)
    test, started = Test(stack, folder, password), time.monotonic()
    try:
        verdict = perform(test)
        if not verdict["passed"]:
            (folder / "logs").write_text(stack.compose("logs", "--no-color", check=False).stdout)
            verdict["logs"] = str(folder / "logs")
    finally:
        stack.compose("--profile", "*", "down", "-v", "-t", "5", "--remove-orphans", check=False)
    if verdict["passed"]:
        shutil.rmtree(folder)
    print(json.dumps(verdict | test.figures | {"in_all": round(time.monotonic() - started)}))
    return 0 if verdict["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
