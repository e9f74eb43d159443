"""One part of the check in a process of its own.

python -m benchmarks.gpu_check.part NAME SETTING
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

import msgspec

from benchmarks.gpu_check.setting import Setting


def main() -> None:
    """Prints a line for each finding; whatever is raised ends in the part's log."""
    name, setting = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Setting)
    logging.basicConfig(level=logging.INFO)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    importlib.import_module(f"benchmarks.gpu_check.{name}").check(setting)


if __name__ == "__main__":
    main()
