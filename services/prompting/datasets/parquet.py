"""Parquet: unpacked once, into a file without a name that is mapped, so that any row costs alike.

The order of a run jumps from row to row, and out of a Parquet file a row comes only with all of its
row group, which may be the whole file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError
from pipeline.protocols import Example
from services.prompting.datasets.columns import Columns, Places

BATCH_ROWS = 1024


class Parquet:
    """A file, or a folder of `*.parquet` files in the order of their names.

    Opening it reads every file once, for the digest and to unpack the columns in use: that takes
    disk space below $TMPDIR, and no memory that grows with the rows. Raises ConfigError that names
    the file or the column at fault; a row without a prompt is told when it is asked for.
    """

    def __init__(self, *, path: str, columns: Columns | None = None) -> None:
        self._path = path
        files = _files(path)
        schema = _read_schema(files[0])
        self._places = Places(schema, columns, path)
        names = self._places.names
        self._digest = _digest(files, columns or Columns())
        self._table = _unpacked(files, pa.schema([schema.field(name) for name in names]))
        if not len(self._table):
            remedy = "write at least one row"
            raise ConfigError(path, None, rule="there is no example in it", remedy=remedy)

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Example:
        """The example; raises Unusable, which names the row, counted over all files from 0."""
        row = {name: self._table.column(name)[index].as_py() for name in self._places.names}
        return self._places.example(row, f"{self._path}, row {index}")

    def digest(self) -> str:
        """BLAKE2b of the files' bytes and of what the columns are taken for."""
        return self._digest


def _files(path: str) -> list[Path]:
    where = Path(os.path.expanduser(path))
    files = sorted(where.glob("*.parquet")) if where.is_dir() else [where]
    if files and files[0].is_file():
        return files
    raise ConfigError(
        path,
        None,
        rule="there is no such file, nor *.parquet in a folder of that name",
        remedy="name a Parquet file or a folder; relative paths start where sluice was called",
    )


def _read_schema(file: Path) -> pa.Schema:
    try:
        return pq.read_schema(file)
    except (pa.ArrowException, OSError) as exc:
        raise _broken(file, exc) from exc


def _digest(files: Sequence[Path], columns: Columns) -> str:
    digest = hashlib.blake2b(repr(columns).encode(), digest_size=16)
    for file in files:
        try:
            with open(file, "rb") as opened:
                digest.update(hashlib.file_digest(opened, "blake2b").digest())
        except OSError as exc:
            raise _broken(file, exc) from exc
    return digest.hexdigest()


def _unpacked(files: Sequence[Path], schema: pa.Schema) -> pa.Table:
    """All rows of the columns, mapped; the file has lost its name when this returns."""
    try:
        with tempfile.NamedTemporaryFile(prefix="sluice-", suffix=".arrow") as spill:
            with pa.ipc.new_file(spill, schema) as writer:
                for batch in _batches(files, schema):
                    writer.write_batch(batch)
            spill.flush()
            return pa.ipc.open_file(pa.memory_map(spill.name)).read_all()
    except OSError as exc:
        remedy = "free disk space, or point TMPDIR at another disk"
        rule = f"cannot hold the rows, unpacked ({exc.strerror or exc})"
        raise ConfigError(tempfile.gettempdir(), None, rule=rule, remedy=remedy) from exc


def _batches(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(BATCH_ROWS, columns=schema.names):
                    same = batch.select(schema.names)
                    yield same if same.schema.equals(schema) else same.cast(schema)
        except (pa.ArrowException, OSError, KeyError) as exc:
            raise _broken(file, exc) from exc


def _broken(file: Path, exc: Exception) -> ConfigError:
    reason = (str(exc) or type(exc).__name__).splitlines()[0]
    return ConfigError(
        str(file),
        None,
        rule=f"cannot be read as Parquet with the columns of the first file ({reason})",
        remedy="write it anew; all files of a folder have the same columns",
    )
