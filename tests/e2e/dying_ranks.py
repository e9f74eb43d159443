"""Starts a trainer of another number of ranks each time: `dying_ranks.py WORLDS COMMAND…`

WORLDS is a file of numbers, one a line: each start takes the first away, and the last one stays. As
`services.up.launch` it becomes rank 0 under the same process id.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from services.up import launch


def main(worlds: Path, command: Sequence[str]) -> None:
    """Does not return."""
    first, *later = worlds.read_text().split()
    worlds.write_text("\n".join(later or [first]))
    launch.main(int(first), command)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
