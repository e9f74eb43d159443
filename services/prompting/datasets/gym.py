"""reasoning-gym: tasks made when they are asked for, by name and seed."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Any, get_type_hints

import msgspec
import reasoning_gym
from msgspec import Meta
from reasoning_gym.factory import DATASETS

from pipeline.config import nearest
from pipeline.errors import ConfigError, Unusable
from pipeline.protocols import Example

AT = "data"
OWN = ("size", "seed")
MIXED = "composite"


class ReasoningGym:
    """The first `size` tasks of one of its data sets; `args` are that data set's own options.

    The reference is the whole entry, so that a scorer needs no more than that; with `args` in it,
    since some verdicts depend on them. Raises ConfigError for a name or an option that the library
    does not know, and for the few data sets whose verdicts do not outlive JSON.
    """

    def __init__(
        self,
        *,
        name: str,
        size: Annotated[int, Meta(ge=1)],
        seed: int = 0,
        args: dict[str, Any] | None = None,
    ) -> None:
        self._name, self._size = name, size
        self._args = args or {}
        self._data = _created(name, self._args, size=size, seed=seed)
        parts = [reasoning_gym.__version__, name, size, seed, self._args]
        self._digest = hashlib.blake2b(_json(parts), digest_size=16).hexdigest()
        self._check_first()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Example:
        """The task; raises Unusable for one that the library fails to make."""
        entry = self._entry(index)
        reference = msgspec.json.decode(_json(entry))
        if self._args:
            reference["args"] = self._args
        return Example(prompt=entry["question"], reference=reference, task=self._name)

    def digest(self) -> str:
        """BLAKE2b of the library's version, the name, size, seed and args."""
        return self._digest

    def _entry(self, index: int) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = self._data[index]
        except Exception as exc:  # a stranger's generator: one task
            where = f"{AT}, task {index} of {self._name}"
            rule = f"it could not be made ({type(exc).__name__}: {exc})"
            raise Unusable(where, None, rule=rule, remedy="choose other args") from exc
        return entry

    def _check_first(self) -> None:
        """Arrays that were tuples are lists afterwards, which some verdicts tell apart."""
        entry = self._entry(0)
        again = msgspec.json.decode(_json(entry))
        own = entry["answer"]
        if self._data.score_answer(own, entry) != self._data.score_answer(own, again):
            rule = "its verdicts need tuples, which a reference, being JSON, cannot hold"
            raise ConfigError(f"{AT}.name", self._name, rule=rule, remedy="choose another data set")


def _created(name: str, args: dict[str, Any], *, size: int, seed: int) -> Any:
    if name not in DATASETS or name == MIXED:
        remedy = nearest(name, [known for known in DATASETS if known != MIXED])
        raise ConfigError(
            f"{AT}.name", name, rule="reasoning-gym has no such data set", remedy=remedy
        )
    options = _options(DATASETS[name][1], args)
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **options)
    except Exception as exc:  # its configurations assert, and name the option
        raise ConfigError(
            f"{AT}.args",
            args,
            rule=f"{name} refuses them ({type(exc).__name__}: {exc})",
            remedy="change the option that it names",
        ) from exc


def _options(config: type, args: dict[str, Any]) -> dict[str, Any]:
    """The args as the data set's configuration has them; TOML knows neither tuples nor enums."""
    known = {f.name: f for f in dataclasses.fields(config) if f.name not in OWN}
    hints = get_type_hints(config)
    options = {}
    for key, value in args.items():
        if key not in known:
            remedy = nearest(key, [*known])
            raise ConfigError(f"{AT}.args.{key}", value, rule="no such option", remedy=remedy)
        try:
            options[key] = msgspec.convert(value, hints[key], strict=True)
        except (msgspec.ValidationError, TypeError) as exc:
            if type(value) is not type(known[key].default):  # some of its annotations are wrong
                at, rule = f"{AT}.args.{key}", str(exc)
                raise ConfigError(at, value, rule=rule, remedy="change the value") from exc
            options[key] = value
    return options


def _json(thing: object) -> bytes:
    """Entries may hold numpy's own strings and numbers."""
    return msgspec.json.encode(thing, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is no JSON")
