"""`sluice export`: a run's weights as a Hugging Face folder, for transformers alone. † torch

Works on files only, tensor by tensor: no model is made, and a run may go on beside it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.disk import new_folder
from pipeline.errors import ConfigError, SluiceError
from pipeline.model.fingerprint import cast, dtype_name
from pipeline.model.load import DTYPES
from pipeline.run import Run
from services.keep.sources import best_of, find

TRIES = 5
"""A run that goes on removes its older checkpoints, perhaps the one that is being read."""


def export(
    run: Run, *, folder: Path | None = None, version: int | None = None, best: bool = False
) -> Path:
    """Writes the newest checkpoint, or a version that was kept, in `model.dtype`; its folder.

    With `best` that is the one whose held-out samples did best. The folder is by default
    `runs/NAME/export`. Raises ConfigError where it exists, or where nothing is there to export, and
    SluiceError where it cannot be written, or a file of the checkpoint is not what was written.
    """
    target = folder or run.folder / "export"
    if best:
        version = best_of(run.folder, version)
    for attempt in range(TRIES):
        source = find(run.folder, version)
        try:
            _check_absent(target)
            source.check()
            with new_folder(target) as partial:
                convert(source.model, partial, DTYPES[run.model.dtype])
                _add_template(run.model.template, partial)
                _check_absent(target)  # an empty folder of that name would be replaced
        except ConfigError:
            raise
        except (OSError, SafetensorError, SluiceError, msgspec.MsgspecError) as exc:
            if attempt + 1 < TRIES and find(run.folder, version) != source:
                continue
            raise SluiceError(f"{target} cannot be written from {source.model}: {exc}") from exc
        print(f"{target}: version {source.version} (step {source.step}) in {run.model.dtype}")
        return target
    raise AssertionError("the last attempt returns or raises")


def convert(source: Path, target: Path, dtype: torch.dtype) -> None:
    """Copies a Hugging Face folder into an empty one, its floating-point tensors in `dtype`.

    Raises OSError.
    """
    size = 0
    for path in sorted(source.iterdir()):
        if path.suffix == ".safetensors":
            size += _cast_file(path, target / path.name, dtype)
        elif path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
    _rewrite(target / "config.json", lambda content: _with_dtype(content, dtype_name(dtype)))
    for index in target.glob("*.safetensors.index.json"):
        _rewrite(index, lambda content: _with_size(content, size))


def _cast_file(source: Path, target: Path, dtype: torch.dtype) -> int:
    """The bytes of its tensors, in their new dtype."""
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
        named = [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118
    tensors = {name: tensor.contiguous() for name, tensor in cast(named, dtype)}
    save_file(tensors, target, metadata=metadata)
    return sum(tensor.nbytes for tensor in tensors.values())


def _rewrite(path: Path, change: Any) -> None:
    content = change(msgspec.json.decode(path.read_bytes()))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def _with_dtype(content: Any, name: str) -> Any:
    """Of the model, and of the parts that it may be made of."""
    if not isinstance(content, dict):
        return content
    named = {key: _with_dtype(value, name) for key, value in content.items()}
    return named | {key: name for key in ("dtype", "torch_dtype") if key in content}


def _with_size(content: dict[str, Any], size: int) -> dict[str, Any]:
    return content | {"metadata": content.get("metadata", {}) | {"total_size": size}}


def _add_template(template: str, target: Path) -> None:
    """The chat template that the run's prompts were made with, where it is not the tokenizer's."""
    if template in ("", "own"):
        return
    try:
        shutil.copyfile(template, target / "chat_template.jinja")
    except OSError as exc:
        rule = f"cannot be read ({exc.strerror})"
        raise ConfigError("model.template", template, rule=rule, remedy="restore it") from exc


def _check_absent(target: Path) -> None:
    if os.path.lexists(target):
        remedy = "name another folder, or remove it"
        raise ConfigError(str(target), None, rule="is there already", remedy=remedy)
