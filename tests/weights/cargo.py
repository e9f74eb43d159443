"""What lies where a version is, whichever transport put it there: to look at, and to spoil."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.bus.connection import client_of
from pipeline.messages import Manifest


def place_of(manifest: Manifest) -> str:
    """Where that which only this version has lies: its patch, or all of it."""
    try:
        route = json.loads(manifest.location)
    except ValueError:
        return manifest.location
    return str(route["stations"][-1][2] or route["whole"])


class Cargo:
    """A file, or a hash in Redis; of the latter one piece is enough, versions are small here."""

    def __init__(self, manifest: Manifest, url: str) -> None:
        self.place, self._url = place_of(manifest), url

    def read(self) -> bytes:
        if not self._is_key:
            return self._path.read_bytes()
        with client_of(self._url) as client:
            pieces: dict[bytes, bytes] = client.hgetall(self.place)
        return b"".join(pieces[str(number).encode()] for number in range(len(pieces)))

    def write(self, data: bytes) -> None:
        if self._is_key:
            self._do("HSET", self.place, "0", data)
        else:
            self._path.write_bytes(data)

    def remove(self) -> None:
        if self._is_key:
            self._do("UNLINK", self.place)
        else:
            self._path.unlink()

    def cut(self) -> None:
        """Leave its beginning."""
        if self._is_key:
            self._do("HDEL", self.place, *range(1, 10))
        else:
            with self._path.open("r+b") as file:
                file.truncate(4096)

    @property
    def _is_key(self) -> bool:
        return self.place.startswith("sluice:")

    @property
    def _path(self) -> Path:
        return Path(self.place.removeprefix("file://"))

    def _do(self, *command: Any) -> None:
        with client_of(self._url) as client:
            client.execute_command(*command)


def names(folder: Path, run: str, url: str) -> set[str]:
    """Of all that lies there, versions and patches, whole or not, as `v12.e3`."""
    if url:
        with client_of(url) as client:
            keys = [key.decode() for key in client.scan_iter(match=f"sluice:{{{run}}}:weights:*")]
            found = {key.rpartition(":")[2] for key in keys} - {"index"}
            for key in keys:
                if key.endswith("index"):
                    found |= {name.decode() for name in client.hgetall(key)}
            return found
    try:
        paths = [*folder.rglob("*v*.e*.*")]
    except FileNotFoundError:  # a folder went while it was looked through
        return names(folder, run, url)
    return {".".join(path.name.removeprefix(".").split(".")[:2]) for path in paths}
