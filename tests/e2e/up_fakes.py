"""Small processes in the places of services: `up_fakes.py ROLE RUN.toml URL INSTANCE`.

Each is a real process with a real beat; what it lacks is the work.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pipeline import config
from pipeline.bus.bus import Bus
from pipeline.ledger import Sum
from pipeline.life import Life
from pipeline.messages import Prompt, Sampling
from pipeline.metrics import Metrics

STEPS = 3


class Fake:
    """A process of the run, until the run stops."""

    def __init__(self, run_path: str, url: str, instance: str) -> None:
        self.folder = Path(run_path).parent
        self.run = config.load(Path(run_path))
        self.bus = Bus.connect(url, self.run.name)
        self.life = Life(
            self.bus, instance.rpartition("-")[0], instance, metrics=Metrics("fake"), http=""
        )
        self.life.start()
        (self.folder / f"{instance}.{self.life.boot}.started").touch()

    def idle(self) -> None:
        """Waits to be told."""
        while not self.life.stopping:
            self.life.progress("nothing")
            time.sleep(0.05)
        self.life.end()

    def train_after_scoring(self) -> None:
        """Trains once the scorer is there to see the end."""
        while not list(self.folder.glob("scoring-0.*.started")):
            time.sleep(0.01)
        self.train()

    def fail_at_the_end(self) -> None:
        """Sees the stop before anybody else does, and does not take it well."""
        while not self.bus.state().stop:
            time.sleep(0.001)
        print("it was in a hurry", file=sys.stderr, flush=True)
        os._exit(1)  # at once: `up` must not have looked again meanwhile

    def freeze(self) -> None:
        """Has beaten once, and goes on no more: a process still, and silent."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def finish(self, fates: dict[str, Sum]) -> None:
        """All that came is closed with these sums, and no step was made."""
        epoch = self.bus.state().epoch + 1
        self.bus.groups.lead(epoch, self.life.boot)
        prompt = Prompt(group="0", seq=0, ids=b"", members=24, sampling=Sampling())
        self.bus.prompts.admit([prompt], cursor=0, next_cursor=1, eof=True)
        self.bus.groups.refuse(epoch, "0", fates)
        self.bus.groups.finish(epoch, "done", "the prompts are over")
        self.life.end()

    def train(self) -> None:
        """A few steps, then the end of the run."""
        epoch = self.bus.state().epoch + 1
        self.bus.groups.lead(epoch, self.life.boot)
        with (self.folder / "metrics.jsonl").open("a", buffering=1) as journal:
            for step in range(1, STEPS + 1):
                line = {"step": step, "seconds": step * 0.1, "reward": step / 10, "members": 8}
                journal.write(json.dumps(line) + "\n")
                self.bus.groups.commit(epoch, batch=step, changed=True, fates={})
        self.bus.groups.finish(epoch, "done", "")
        self.life.end()


def main(role: str, run_path: str, url: str, instance: str) -> None:
    """Plays the role."""
    if role == "refuses":
        print("sluice: data.path = 'nowhere': no such file; name one", file=sys.stderr)
        sys.exit(2)
    if role == "crashes":
        print("RuntimeError: the model is on fire", file=sys.stderr)
        sys.exit(1)
    if role == "leaves":
        print("all done, it seems")
        sys.exit(0)
    if role == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A grandchild that can be recognised: its command line names the run's folder.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", run_path])
        Fake(run_path, url, instance)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    fake = Fake(run_path, url, instance)
    if role == "gives way":
        fake.bus.groups.lead(1, "somebody:else")
        print("sluice: another trainer leads the run", file=sys.stderr, flush=True)
        sys.exit(3)
    if role == "exits with 3":
        sys.exit(3)
    acts = {
        "trains": fake.train,
        "freezes": fake.freeze,
        "sees scorer errors": lambda: fake.finish({"scorer_error": Sum(24, 240)}),
        "sees no signal": lambda: fake.finish({"zero_signal": Sum(24, 240)}),
        "trains after scoring": fake.train_after_scoring,
        "fails at the end": fake.fail_at_the_end,
    }
    acts.get(role, fake.idle)()


if __name__ == "__main__":
    main(*sys.argv[1:])
