"""Hugging Face data sets, through their library: by name, from a folder, or out of a local file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import datasets

from pipeline.config import nearest
from pipeline.errors import ConfigError
from pipeline.protocols import Example
from services.prompting.datasets.columns import Columns, Places

BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}
DIGEST_ROWS = 1024
SAVED = ("dataset_info.json", "dataset_dict.json")


class HuggingFace:
    """One split of a data set; the library keeps its rows in files that are mapped.

    `name` is OWNER/NAME (and `subset` its configuration), a folder made by `save_to_disk`, a folder
    that the library can read, or a file of JSON, Parquet or CSV. Raises ConfigError for what cannot
    be had; a row without a prompt is told when it is asked for.
    """

    def __init__(
        self,
        *,
        name: str,
        subset: str | None = None,
        split: str = "train",
        columns: Columns | None = None,
    ) -> None:
        self._name = name
        datasets.disable_progress_bars()
        rows = _one(_loaded(os.path.expanduser(name), subset, split), name, split)
        self._places = Places(rows.features.arrow_schema, columns, name)
        self._rows = rows.select_columns(self._places.names)
        self._asked = columns or Columns()
        if not len(self._rows):
            remedy = "choose another split"
            raise ConfigError(name, split, rule="there is no example in it", remedy=remedy)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:
        """The example; raises Unusable, which names the row, counted from 0."""
        return self._places.example(self._rows[index], f"{self._name}, row {index}")

    def digest(self) -> str:
        """BLAKE2b of the rows of the columns in use: where they were loaded from is no matter.

        The library's own fingerprint would tell a file's path and date as well.
        """
        digest = hashlib.blake2b(repr(self._asked).encode(), digest_size=16)
        for table in self._rows.with_format("arrow").iter(DIGEST_ROWS):
            for batch in table.to_batches():
                digest.update(batch.serialize())
        return digest.hexdigest()


def _loaded(name: str, subset: str | None, split: str) -> Any:
    path = Path(name)
    try:
        if any((path / saved).is_file() for saved in SAVED):
            return datasets.load_from_disk(name)
        if path.is_file():
            builder = BUILDERS.get(path.suffix, path.suffix)
            return datasets.load_dataset(builder, subset, data_files=name)
        return datasets.load_dataset(name, subset, split=split)
    except Exception as exc:  # the library, and whatever it reads with, have no common error
        reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        raise ConfigError(
            "data.name",
            name,
            rule=f"no data set could be loaded ({reason})",
            remedy="check name, subset and split; offline, name a folder or a file that is here",
        ) from exc


def _one(loaded: Any, name: str, split: str) -> Any:
    """A data set of splits has to have the one; a lone one is what it is."""
    if not isinstance(loaded, dict):
        return loaded
    if split not in loaded:
        where, remedy = f"{name}, split", nearest(split, [*loaded])
        raise ConfigError(where, split, rule="there is no such split", remedy=remedy)
    return loaded[split]
