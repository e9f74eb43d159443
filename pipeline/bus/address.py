"""Where a run's server is: as told, or the one that `sluice up` keeps for it on this machine."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.run import ENDED, Run


def socket_of(folder: Path) -> Path:
    """A link to the socket of the server that `sluice up` keeps for the run of this folder.

    The socket itself lies elsewhere, since its path may have about a hundred characters at most.
    """
    return folder / "valkey" / "socket"


def address_of(run: Run, redis: str | None, folder: Path | None = None) -> str:
    """The URL: `redis` where given, else RUN.toml's, else that of `up`; raises ConfigError.

    `folder` is where the run is, if that is not below here.
    """
    if told := redis or run.bus.url:
        return told
    folder = folder or run.folder
    link = socket_of(folder)
    if link.exists():
        return f"unix://{link.resolve()}"
    raise ConfigError(
        "--redis",
        None,
        rule=f"is needed: `sluice up` keeps no server for run {run.name} here now",
        remedy=_remedy(folder),
    )


def _remedy(folder: Path) -> str:
    told = "give --redis URL or set SLUICE_REDIS"
    if not folder.is_dir():
        return told
    page = folder / "report.html"
    look = f"read {page}" if page.is_file() else f"make its report by `sluice report {folder.name}`"
    if (folder / ENDED).exists():
        return f"the run has ended: {look}, or {told}"
    return f"{look}, or start `sluice up` again, which goes on with the run, or {told}"
