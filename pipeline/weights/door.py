"""The trainer's side of a direct transport: it keeps the newest versions, and serves each engine
that asks for one in a thread of its own, so that none of them waits for another.

How tensors travel is a sender's, one for each engine: vLLM's trainer engines are such.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from pipeline.errors import ConfigError, WeightsError
from pipeline.weights.line import Act, Ask, Call, Done, Go, Line, Ready, Refused, Sent, hang_up

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

KEPT_VERSIONS = 2
Tensors = Mapping[str, "torch.Tensor"]


class Meta(NamedTuple):
    """What a tensor of a version is: as vLLM's `ParamMeta`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Source:
    """The tensors of the version that is being sent: what vLLM calls a `WeightSource`."""

    def __init__(self, prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """`prepare` brings a tensor to where it is sent from, one at a time."""
        self._prepare = prepare
        self.tensors: Tensors = {}

    def metadata(self) -> list[Meta]:
        """Of every tensor, in the order of iteration."""
        return [Meta(name, t.dtype, tuple(t.shape)) for name, t in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.tensors.items():
            yield name, self._prepare(tensor)


class Sender(Protocol):
    """Sends what the source holds to one engine: what vLLM calls a trainer engine."""

    def send_weights(self) -> None: ...

    def shutdown(self) -> None:
        """Ends a transfer that hangs as well; may come from another thread."""


Open = Callable[[Ask, "Session", Source], Sender]
"""Makes the group with the engine that asks; raises WeightsError where that cannot be."""


class Session:
    """An engine as a sender sees it: what vLLM calls a `VLLMWeightSyncClient`, of this one engine.

    A call that fails ends the transfer at both ends: the sender may be waiting for a peer that
    will never come.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.known = False  # whether it has the token, and may take its time
        self.sender: Sender | None = None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init", init_info)

    def start_weight_update(self) -> None:
        self._call("start")

    def update_weights(self, update_info: Any) -> None:
        self._call("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Which version it is the engine knows."""
        self._call("finish")

    def _call(self, act: Act, info: dict[str, Any] | None = None) -> None:
        try:
            self.line.say(Call(act=act, info=info or {}))
            said = self.line.hear()
            if not isinstance(said, Done):
                raise WeightsError(f"{self.line.peer} says {type(said).__name__} out of turn")
            if said.error:
                raise WeightsError(f"{self.line.peer}: {act} failed: {said.error}")
        except WeightsError:
            if self.sender is not None:
                self.sender.shutdown()
            raise


class Door:
    """Listens from when it is made until `close`. `keep` and `drop` wait for no engine."""

    def __init__(
        self,
        open_sender: Open,
        prepare: Callable[[torch.Tensor], torch.Tensor],
        *,
        address: tuple[str, int],
        seconds: float,
    ) -> None:
        """`address` is where it listens, and what engines are told; port 0: any free one.

        `prepare` brings a tensor to where it is sent from. Raises ConfigError.
        """
        self._open, self._prepare, self._seconds = open_sender, prepare, seconds
        self._token = secrets.token_hex(16)
        self._kept: dict[int, Tensors] = {}
        self._lock = threading.Lock()
        self._lines: set[Line] = set()
        self._server = _listening(address)
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.location = f"tcp://{host}:{self._server.getsockname()[1]}/{self._token}"
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def keep(self, version: int, tensors: Tensors) -> None:
        """From now on it can be had; of more than KEPT_VERSIONS the oldest cannot any more."""
        with self._lock:
            self._kept[version] = tensors
            for old in sorted(self._kept)[:-KEPT_VERSIONS]:
                del self._kept[old]

    def drop(self, version: int) -> None:
        """It cannot be had any more; who is being served keeps it until that is over."""
        with self._lock:
            self._kept.pop(version, None)

    def close(self) -> None:
        """Hang up on everybody."""
        hang_up(self._server)
        with self._lock:
            lines = [*self._lines]
        for line in lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, (host, port, *_) = self._server.accept()
            except OSError:  # closed
                return
            line = Line(sock, f"an engine at {host}:{port}", seconds=self._seconds)
            threading.Thread(target=self._serve, args=(line,), name="door", daemon=True).start()

    def _serve(self, line: Line) -> None:
        """One engine, until it hangs up or fails. Its faults are its own."""
        with self._lock:
            self._lines.add(line)
        session, source = Session(line), Source(self._prepare)
        try:
            while True:
                self._answer(session, source)
        except WeightsError as exc:
            log.info("door: %s", exc)
        except Exception as exc:  # a sender's, of any kind: it costs this engine's line
            log.warning("door: %s was not served: %s: %s", line.peer, type(exc).__name__, exc)
            _say(line, Refused(reason=f"the trainer could not send: {type(exc).__name__}: {exc}"))
        finally:
            self._let_go(session)

    def _let_go(self, session: Session) -> None:
        with self._lock:
            self._lines.discard(session.line)
        if session.sender is not None:
            session.sender.shutdown()
        session.line.close()

    def _answer(self, session: Session, source: Source) -> None:
        line = session.line
        match said := line.hear_whenever() if session.known else line.hear():
            case Ask():
                self._greet(said, session, source)
            case Go(version=version):
                self._send(version, session, source)
            case _:
                raise WeightsError(f"{line.peer} says {type(said).__name__} out of turn")

    def _greet(self, ask: Ask, session: Session, source: Source) -> None:
        line = session.line
        if not hmac.compare_digest(ask.token, self._token):
            line.say(Refused(reason="another trainer's door: its announcement is out of date"))
            raise WeightsError(f"{line.peer} asked with another door's token")
        session.known, line.peer = True, f"engine {ask.boot}"
        if (reason := self._lacks(ask.version)) or session.sender is not None:
            line.say(Refused(reason=reason) if reason else Ready(version=ask.version))
            return
        try:
            session.sender = self._open(ask, session, source)
        except WeightsError as exc:
            line.say(Refused(reason=str(exc)))
            raise
        line.say(Ready(version=ask.version))

    def _send(self, version: int, session: Session, source: Source) -> None:
        with self._lock:
            source.tensors = self._kept.get(version, {})
        if not source.tensors or session.sender is None:
            session.line.say(Refused(reason=self._lacks(version) or "ask first"))
            return
        started = perf_counter()
        try:
            session.sender.send_weights()
        finally:
            source.tensors = {}
        session.line.say(Sent(version=version))
        seconds = perf_counter() - started
        log.info("door: version=%d is in %s seconds=%.3f", version, session.line.peer, seconds)

    def _lacks(self, version: int) -> str:
        """Why it cannot be had; nothing where it can."""
        with self._lock:
            kept = sorted(self._kept)
        return "" if version in kept else f"version {version} is not kept, only {kept} are"


def _say(line: Line, message: Refused) -> None:
    with suppress(WeightsError):  # it is gone: that may be what went wrong
        line.say(message)


def _listening(address: tuple[str, int]) -> socket.socket:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as exc:
        rule = f"cannot be listened at on {socket.gethostname()}: {exc}"
        remedy = "name a free one, or 0, and as weights.host an address of this machine"
        raise ConfigError("weights.port", f"{host}:{port}", rule=rule, remedy=remedy) from exc


def own_address(redis: str) -> str:
    """This machine's address on the way to the server of a run: others can reach it there, too."""
    parts = urlsplit(redis)
    if not parts.hostname:  # a socket of this machine
        return "127.0.0.1"
    found = socket.getaddrinfo(parts.hostname, parts.port or 6379, type=socket.SOCK_DGRAM)
    family, kind, _, _, there = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)  # sends nothing: it only chooses the way
        return str(probe.getsockname()[0])


def size_of(*tensors: torch.Tensor) -> int:
    """Bytes of all of them."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
