"""How any process makes the run's transport: of plain strings, so that it can travel to one."""

from __future__ import annotations

from typing import NamedTuple

from pipeline import plugins
from pipeline.families import TRANSPORTS
from pipeline.protocols import Transport
from pipeline.run import Spec


class Origin(NamedTuple):
    """The spec of RUN.toml's `weights`, the run's name, and the URL of its server, if any."""

    spec: Spec
    run: str
    redis: str = ""

    def transport(self) -> Transport:
        """Made anew, one for each process. Raises ConfigError."""
        transport: Transport = plugins.make(
            TRANSPORTS, self.spec, at="weights", run=self.run, redis=self.redis
        )
        return transport

    @property
    def patches(self) -> bool:
        """Whether only what changed may travel: a receiver then keeps the version that it has."""
        return int(plugins.options_of(self.spec).get("whole_every", 1)) > 1
