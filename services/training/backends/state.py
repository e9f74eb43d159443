"""A back end's state on disk: parameters and optimizer state by the parameter's name. † torch

The same for every back end and any number of ranks: whole tensors in safetensors files of bounded
size, and a table of them in `state.json`. Parameters that a model's folder beside it has, bit for
bit, are read from there. What is in a state is the back end's; when one is taken, synced and
renamed is its caller's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.errors import ConfigError

FORMAT = "sluice-state/1"
TABLE = "state.json"
FILE_BYTES = 1 << 30
PARAMETER, STEP, NUMBERS = "parameter", "step", "numbers"
MOMENTS = ("exp_avg", "exp_avg_sq")
MODEL = "../model"

Named = Iterable[tuple[str, Tensor]]
Shapes = Mapping[str, Sequence[int]]
Files = Mapping[str, Sequence[str]]


def entries(name: str, parameter: Tensor, moments: Mapping[str, Tensor]) -> Named:
    """A parameter and what its optimizer knows of it, as `write` takes them: ("kind:name", ...)."""
    yield f"{PARAMETER}:{name}", parameter
    for kind, tensor in moments.items():
        yield f"{kind}:{name}", tensor


def parted(key: str) -> tuple[str, str]:
    """Kind and name of an entry."""
    kind, _, name = key.partition(":")
    return kind, name


def buckets(
    named: Named, limit: int, *, size: Callable[[Tensor], int] = lambda tensor: tensor.nbytes
) -> Iterator[dict[str, Tensor]]:
    """In their order, in dicts of at most `limit` bytes unless one tensor alone is larger."""
    bucket: dict[str, Tensor] = {}
    filled = 0
    for name, tensor in named:
        if bucket and filled + size(tensor) > limit:
            yield bucket
            bucket, filled = {}, 0
        bucket[name] = tensor
        filled += size(tensor)
    if bucket:
        yield bucket


def write(folder: str, named: Named, *, file_bytes: int = FILE_BYTES) -> None:
    """Write the entries to a folder, which exists and is empty. Nothing is synced."""
    files: dict[str, list[str]] = {}
    own = _left(named, Beside(Path(folder) / MODEL), files)
    for number, bucket in enumerate(buckets(own, file_bytes)):
        file = f"state-{number:05}.safetensors"
        flat = {key: tensor.detach().cpu().contiguous() for key, tensor in bucket.items()}
        save_file(flat, Path(folder) / file)
        files[file] = [*bucket]
    table = {"format": FORMAT, "files": files}
    (Path(folder) / TABLE).write_text(json.dumps(table, indent=1))


def read(folder: str, own: Shapes) -> Iterator[tuple[str, Tensor]]:
    """The entries, in the order in which they were written, file by file.

    Raises ConfigError, before anything is read, where they are not of just the parameters that are
    `own`, in their shapes; and where they cannot be read.
    """
    files = _table(folder)
    _fit(folder, {key: shape for file in files for key, shape in _shapes(folder, file, files)}, own)
    return _entries(folder, files)


def _entries(folder: str, files: Files) -> Iterator[tuple[str, Tensor]]:
    for file, keys in files.items():
        with _opened(folder, file) as tensors:
            for key in keys:
                yield key, tensors.get_tensor(_name_in(file, key))


def _shapes(folder: str, file: str, files: Files) -> Iterator[tuple[str, tuple[int, ...]]]:
    with _opened(folder, file) as tensors:
        for key in files[file]:
            yield key, tuple(tensors.get_slice(_name_in(file, key)).get_shape())


def _name_in(file: str, key: str) -> str:
    return parted(key)[1] if file.startswith(MODEL) else key


@contextmanager
def _opened(folder: str, file: str) -> Iterator[Any]:
    try:
        opened: Any = safe_open(Path(folder) / file, framework="pt")
        yield opened
    except (OSError, SafetensorError) as exc:
        raise _unreadable(folder, f"{file} cannot be read ({exc})") from exc


class Beside:
    """The tensors of a model's folder, by their names there; none where there is no such folder."""

    def __init__(self, folder: Path) -> None:
        self._where: dict[str, tuple[str, Any]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            opened: Any = safe_open(path, framework="pt")
            self._where |= {name: (path.name, opened) for name in opened.keys()}  # noqa: SIM118

    def file_of(self, name: str, tensor: Tensor) -> str | None:
        """The file that has just this tensor under this name."""
        file, opened = self._where.get(name, ("", None))
        if opened is None:
            return None
        there: Tensor = opened.get_tensor(name)
        is_alike = (there.dtype, there.shape) == (tensor.dtype, tensor.shape)
        return file if is_alike and torch.equal(_bits(there), _bits(tensor)) else None


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def _left(named: Named, model: Beside, files: dict[str, list[str]]) -> Named:
    """The entries that the model's folder lacks; of the others `files` is told where they are."""
    for key, tensor in named:
        kind, name = parted(key)
        file = model.file_of(name, tensor) if kind == PARAMETER else None
        if file:
            files.setdefault(f"{MODEL}/{file}", []).append(key)
        else:
            yield key, tensor


def _table(folder: str) -> dict[str, list[str]]:
    try:
        table = json.loads((Path(folder) / TABLE).read_text())
        if table["format"] != FORMAT:
            raise _unreadable(folder, f"is of format {table['format']}, not {FORMAT}")
        return msgspec.convert(table["files"], dict[str, list[str]])
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as exc:
        raise _unreadable(folder, f"{TABLE} cannot be read ({exc})") from exc


def _fit(folder: str, there: Shapes, own: Shapes) -> None:
    """Raises ConfigError where a state is another model's, or another optimizer's."""
    kinds = {parted(key)[0] for key in there} - {PARAMETER, STEP, NUMBERS, *MOMENTS}
    if kinds:
        rule = f"it has {', '.join(sorted(kinds))}, and AdamW has {', '.join((STEP, *MOMENTS))}"
        raise ConfigError(folder, None, rule=rule, remedy="go on with the optimizer it was of")
    parameters = {parted(key)[1]: there[key] for key in there if parted(key)[0] == PARAMETER}
    wrong = [
        f"{name} is {_said(parameters.get(name))} there and {_said(own.get(name))} here"
        for name in sorted({*parameters, *own})
        if parameters.get(name) != (tuple(own[name]) if name in own else None)
    ]
    if wrong:
        rule = f"is of another model: {len(wrong)} parameters differ ({'; '.join(wrong[:3])})"
        raise ConfigError(folder, None, rule=rule, remedy="go on with the model that it was of")


def _said(shape: Sequence[int] | None) -> str:
    return "absent" if shape is None else " x ".join(map(str, shape)) or "a number"


def _unreadable(folder: str, rule: str) -> ConfigError:
    return ConfigError(folder, None, rule=rule, remedy="go on from another checkpoint")
