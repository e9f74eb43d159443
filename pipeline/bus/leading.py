"""Acts that only the trainer that leads may do, and what it does where the server forgot it."""

from __future__ import annotations

import logging
from typing import Any

from pipeline.bus.scripts import Arg, Scripts
from pipeline.errors import Fenced, SluiceError

log = logging.getLogger(__name__)


class Leading:
    """Which epoch this process leads under, if it does; shared by the desks of one bus."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self.epoch: int | None = None
        self._boot = ""

    def lead(self, epoch: int, boot: str) -> None:
        """Become the trainer of the run; raises Fenced unless the epoch is above all before."""
        self._check(self._scripts.call("lead", epoch, boot), epoch)
        self.epoch, self._boot = epoch, boot

    def act(self, name: str, epoch: int, *args: Arg) -> Any:
        """The reply of a script that asks for the epoch; its status comes first where it is a list.

        Raises Fenced where a later epoch leads. A server that was put back to the time before this
        process led is told again, once: nothing but a later epoch can take the lead away.
        """
        reply = self._scripts.call(name, epoch, *args)
        if _status(reply) == b"leaderless" and epoch == self.epoch:
            log.warning("the server has forgotten who leads epoch=%d", epoch)
            self.lead(epoch, self._boot)
            reply = self._scripts.call(name, epoch, *args)
        self._check(reply, epoch)
        return reply

    def _check(self, reply: Any, epoch: int) -> None:
        run = self._scripts.keys.prefix
        if _status(reply) == b"FENCED":
            raise Fenced(f"epoch {epoch} of {run} is over: another trainer leads")
        if _status(reply) == b"leaderless":
            raise SluiceError(f"epoch {epoch} does not lead {run}: lead first")


def _status(reply: Any) -> Any:
    return reply[0] if isinstance(reply, list) else reply
