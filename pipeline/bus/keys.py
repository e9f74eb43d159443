"""The names of a run's keys. All share one hash tag, hence one slot; what is in them: lua/*.lua."""

from __future__ import annotations

import re

from pipeline.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Keys:
    """The keys of one run, as `sluice:{RUN}:name`."""

    def __init__(self, run: str) -> None:
        """Raises ConfigError for a name that could not stand in a key or a path."""
        if not _NAME.fullmatch(run):
            raise ConfigError(
                "run",
                run,
                rule="a run's name has letters, digits, '.', '_' and '-' (100 at most)",
                remedy="choose another name",
            )
        self.prefix = f"sluice:{{{run}}}:"
        self.run = self.prefix + "run"
        self.state = self.prefix + "state"
        self.versions = self.prefix + "ver"
        self.beat = self.prefix + "beat"
        self.who = self.prefix + "who"
        self.live = self.prefix + "live"
        self.due = self.prefix + "due"
        self.ledger = self.prefix + "led"
        self.prompts = self.prefix + "prompts"
        self.completions = self.prefix + "completions"
        self.groups = self.prefix + "groups"
        self.dead = self.prefix + "dead"
        self.outcomes = self.prefix + "eval:out"

    def proof(self, version: int) -> str:
        """The hash of who has proven a version."""
        return f"{self.prefix}proof:{version}"

    def group(self, group: str) -> str:
        """The hash with the cargo of one group."""
        return f"{self.prefix}g:{group}"

    def weights(self, lane: str, name: str) -> str:
        """The hash with the pieces of a version, or the index of a lane."""
        return f"{self.prefix}weights:{lane}:{name}"

    def piece(self, blob: str, number: int) -> str:
        """The string with one piece of large cargo."""
        return f"{self.prefix}b:{blob}:{number}"
