"""Where a run's server is: as told, or the one that `sluice up` keeps for it on this machine."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.run import Run


def socket_of(folder: Path) -> Path:
    """A link to the socket of the server that `sluice up` keeps for the run of this folder.

    The socket itself lies elsewhere, since its path may have about a hundred characters at most.
    """
    return folder / "valkey" / "socket"


def address_of(run: Run, redis: str | None) -> str:
    """The URL: `redis` where given, else RUN.toml's, else that of `up`; raises ConfigError."""
    if told := redis or run.bus.url:
        return told
    link = socket_of(run.folder)
    if link.exists():
        return f"unix://{link.resolve()}"
    raise ConfigError(
        "--redis",
        None,
        rule=f"is needed: `sluice up` keeps no server for run {run.name} here now",
        remedy="give --redis URL or set SLUICE_REDIS",
    )
