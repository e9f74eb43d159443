"""Writes the demo's prompts, and with ``--model`` makes its base model anew.

    python examples/demo/prepare.py            # prompts.jsonl and heldout.jsonl, about a second
    python examples/demo/prepare.py --model    # also model/, a few minutes on two cores

The base model is shipped with the repository; making it anew needs torch and transformers.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from task import Task, draw_distinct

HERE = Path(__file__).resolve().parent
NUM_TRAIN = 8000
NUM_HELDOUT = 256
SEED = 20


def write_prompts(path: Path, tasks: Sequence[Task]) -> None:
    """One JSON object a line: the prompt, and the answer as the scorer's reference."""
    lines = (json.dumps({"prompt": task.prompt, "reference": task.answer}) for task in tasks)
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    print(f"wrote {path} ({len(tasks)} prompts)")


def prepare_prompts(folder: Path) -> list[Task]:
    """Write both files, disjoint, the same on every machine; returns the held-out tasks."""
    heldout = draw_distinct(NUM_HELDOUT, SEED)
    train = draw_distinct(NUM_TRAIN, SEED + 1, avoid={task.prompt for task in heldout})
    write_prompts(folder / "heldout.jsonl", heldout)
    write_prompts(folder / "prompts.jsonl", train)
    return heldout


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demo's prompts (and its base model).")
    parser.add_argument("--model", action="store_true", help="make the base model anew")
    parser.add_argument("--folder", type=Path, default=HERE, help="where to write")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    heldout = prepare_prompts(options.folder)
    if options.model:
        from base import make_base

        make_base(options.folder / "model", heldout)


if __name__ == "__main__":
    main()
