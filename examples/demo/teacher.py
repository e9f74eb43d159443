"""Makes a teacher for examples/distill.toml: the demo's base model, taught on clean demonstrations.

    python examples/demo/teacher.py            # teacher/, a quarter of a minute on one core

It needs torch and transformers, and `prepare.py` to have been called before.
"""

import argparse
import random
from pathlib import Path

import torch
from base import Phase, imitate, measure, save
from task import draw_distinct
from transformers import LlamaForCausalLM

HERE = Path(__file__).resolve().parent
CLEAN = Phase("clean", 30, 48, 1e-3)
SEED = 11
GRADED = 128


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a teacher for examples/distill.toml.")
    parser.add_argument("--folder", type=Path, default=HERE / "teacher", help="where to write")
    folder = parser.parse_args().folder
    torch.manual_seed(SEED)
    model = LlamaForCausalLM.from_pretrained(HERE / "model", dtype=torch.float32)
    imitate(model, CLEAN, random.Random(SEED))
    gate = measure(save(model, folder), draw_distinct(GRADED, SEED), attempts=2)
    print(f"wrote {folder}: greedy={gate.greedy:.3f} sampled={gate.sampled:.3f}")


if __name__ == "__main__":
    main()
