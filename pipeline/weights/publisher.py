"""Copies a version out, and sends and announces it in a thread, so that training never waits."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline import messages
from pipeline.messages import Canary, Manifest
from pipeline.model.fingerprint import Named, describe_all, fingerprint_of
from pipeline.protocols import Transport

log = logging.getLogger(__name__)

REMEMBERED_VERSIONS = 100


class _Version(NamedTuple):
    version: int
    step: int
    tensors: dict[str, Tensor]
    canary: Canary | None


class Publisher:
    """One version is sent at a time; of those that wait the newest wins, the others never existed.

    To be called after the commit of the step that made the version.
    """

    def __init__(
        self,
        announce: Callable[[Manifest], None],
        transport: Transport,
        *,
        epoch: int,
        dtype: torch.dtype | None = None,
        frozen: tuple[messages.Tensor, ...] = (),
    ) -> None:
        """`dtype` is the transport's, for floating-point tensors; None sends them as they are.

        `frozen` are tensors that each manifest names and that never travel.
        """
        self._announce, self._transport = announce, transport
        self.epoch, self._dtype, self._frozen = epoch, dtype, frozen
        self._announced: deque[Manifest] = deque(maxlen=REMEMBERED_VERSIONS)
        self._announcing = threading.RLock()
        self._idle = threading.Condition()
        self._waiting: _Version | None = None
        self._sending = False
        self._error: Exception | None = None

    def publish(
        self, version: int, step: int, tensors: Named, *, canary: Canary | None = None
    ) -> None:
        """Returns after one copy. Raises what the sender met since, and then publishes nothing."""
        self.check()
        copied = {name: self._copy(tensor) for name, tensor in tensors}
        with self._idle:
            self._waiting = _Version(version, step, copied, canary)
            if not self._sending:
                self._sending = True
                threading.Thread(target=self._send_all, name="publisher", daemon=True).start()

    def flush(self) -> None:
        """Wait until nothing is pending. Raises what the sender met since the last call."""
        with self._idle:
            self._idle.wait_for(lambda: not self._sending)
        self.check()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is announced meanwhile but by `announce_again`."""
        with self._announcing:
            yield

    def announce_again(self, *, after: int) -> None:
        """Announce once more the latest versions above `after`: the server has lost them."""
        with self._announcing:
            for manifest in self._announced:
                if manifest.version > after:
                    self._announce(manifest)

    def check(self) -> None:
        """Raises what the sender met since the last call; to be asked by whoever waits for work.

        Without a version nobody could do any.
        """
        with self._idle:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _copy(self, tensor: Tensor) -> Tensor:
        dtype = self._dtype if tensor.is_floating_point() else None
        return tensor.detach().to("cpu", dtype, copy=True).contiguous()

    def _send_all(self) -> None:
        while (version := self._next()) is not None:
            try:
                self._send(version)
            except Exception as exc:  # raised again in the caller's thread
                log.error("version=%d was not published: %s", version.version, exc)
                with self._idle:
                    self._error = exc

    def _next(self) -> _Version | None:
        with self._idle:
            version, self._waiting = self._waiting, None
            if version is None:
                self._sending = False
                self._idle.notify_all()
            return version

    def _send(self, version: _Version) -> None:
        entries = (*describe_all(version.tensors.items()), *self._frozen)
        fingerprint = fingerprint_of(entries)
        location = self._transport.send(
            version.version, version.tensors.items(), epoch=self.epoch, fingerprint=fingerprint
        )
        manifest = Manifest(
            version=version.version,
            step=version.step,
            epoch=self.epoch,
            fingerprint=fingerprint,
            location=location,
            tensors=entries,
            canary=version.canary,
        )
        with self._announcing:
            self._announce(manifest)
            self._announced.append(manifest)
