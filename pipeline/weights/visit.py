"""An engine's side of a direct transport: it asks the trainer's door for a version, and does what
the door has it do until that version is in the live model.

What the acts are to an engine is its own affair; the trainer's side is `door`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.weights.line import Ask, Call, Done, Go, Line, Ready, Refused, Said, Sent, dial

ANSWER_SECONDS = 5.0
"""Between `go` and the first act: the engine stands still meanwhile, and the door is ready."""


class Broken(WeightsError):
    """A transfer broke off half-way: what the engine holds is no version at all."""


class Caller(NamedTuple):
    """Who asks: the engine's boot, the processes that hold its model, and what these run on."""

    boot: str
    workers: int = 1
    devices: tuple[str, ...] = ()


Perform = Callable[[Call], None]
"""Has the engine do one act; returns once that is done, and raises what went wrong."""


class Visit:
    """One engine at one door, used by one thread at a time.

    The line stays open between versions, and so does vLLM's group of the two.
    """

    def __init__(self, location: str, caller: Caller, perform: Perform, *, seconds: float) -> None:
        """`location` is a manifest's; `seconds` bound every wait. Raises WeightsError."""
        self.location, self._caller, self._perform = location, caller, perform
        parts = urlsplit(location)
        if parts.scheme != "tcp" or not parts.hostname or not parts.port:
            raise WeightsError(
                f"{location}: is no address of a door; weights must be the same here"
            )
        self._token = parts.path.strip("/")
        self._line: Line = dial(parts.hostname, parts.port, seconds=seconds)

    def ask(self, manifest: Manifest) -> None:
        """Until the door is ready to send the version. Nothing of the live model is touched.

        Raises WeightsError where it does not have it, or cannot reach this engine.
        """
        boot, workers, devices = self._caller
        self._line.say(
            Ask(
                token=self._token,
                version=manifest.version,
                boot=boot,
                workers=workers,
                devices=devices,
            )
        )
        while not isinstance(said := self._line.hear(), Ready):
            match said:
                case Call(act="init"):
                    self._do(said)
                case Refused(reason=reason):
                    raise WeightsError(reason)
                case _:
                    raise self._out_of_turn(said)

    def fetch(self, manifest: Manifest) -> None:
        """Have the version sent into the live model; returns once it is whole.

        Raises WeightsError where nothing was touched, and Broken where something was.
        """
        self._line.say(Go(version=manifest.version))
        match first := self._line.hear(ANSWER_SECONDS):
            case Call(act="start"):
                pass
            case Refused(reason=reason):
                raise WeightsError(reason)
            case _:
                raise self._out_of_turn(first)
        try:
            self._do(first)
            self._receive(manifest)
        except WeightsError as exc:
            raise Broken(f"version {manifest.version} broke off half-way: {exc}") from exc

    def close(self) -> None:
        """Hang up: the door lets go of this engine."""
        self._line.close()

    def _receive(self, manifest: Manifest) -> None:
        arrived = set[str]()
        while not isinstance(said := self._line.hear(), Sent):
            match said:
                case Call(act="update" | "finish" as act, info=info):
                    arrived |= set(names_of(info))
                    if act == "finish":
                        _check_whole(manifest, arrived)
                    self._do(said)
                case Refused(reason=reason):
                    raise WeightsError(reason)
                case _:
                    raise self._out_of_turn(said)

    def _out_of_turn(self, said: Said) -> WeightsError:
        return WeightsError(f"{self._line.peer} says {type(said).__name__.lower()} out of turn")

    def _do(self, call: Call) -> None:
        """Raises WeightsError where the engine could not, after it has told the door."""
        try:
            self._perform(call)
        except Exception as exc:  # vLLM's, of any kind: it costs this transfer
            said = str(exc) if isinstance(exc, WeightsError) else f"{type(exc).__name__}: {exc}"
            self._line.say(Done(error=said))
            raise WeightsError(f"{call.act} failed here: {said}") from exc
        self._line.say(Done())


def names_of(info: dict[str, Any]) -> Collection[str]:
    """The tensors that an update is about: every back end of vLLM's names them so."""
    names: Collection[str] = info.get("names", ())
    return names


def _check_whole(manifest: Manifest, arrived: set[str]) -> None:
    """vLLM's loader takes what comes: that it is all of the version is checked here."""
    missing = sorted({entry.name for entry in manifest.tensors} - arrived)
    if missing:
        raise WeightsError(
            f"version {manifest.version}: {', '.join(missing[:5])} never came"
            f" ({len(missing)} missing)"
        )
