"""Writes grafana/dashboards/*.json; with --check, says whether they are up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana import inference, ledger, overview, prompting, runbook, scoring, training
from grafana.render import to_json

FOLDER = Path(__file__).resolve().parent / "dashboards"
BOARDS = (
    overview.BOARD,
    prompting.BOARD,
    inference.BOARD,
    scoring.BOARD,
    training.BOARD,
    ledger.BOARD,
)


def main() -> int:
    """Write the files, or compare them; the exit code."""
    files = dashboards()
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for name, text in files.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    old = sorted(name for name in files | there if files.get(name) != there.get(name))
    for name in old:
        print(f"grafana/dashboards/{name} is out of date: run `make docs`", file=sys.stderr)
    return 1 if old else 0


def dashboards() -> dict[str, str]:
    """The text of each file."""
    anchors = runbook.anchors()
    return {
        f"{board.name}.json": json.dumps(to_json(board, anchors), indent=2) + "\n"
        for board in (*BOARDS, runbook.board())
    }


if __name__ == "__main__":
    sys.exit(main())
