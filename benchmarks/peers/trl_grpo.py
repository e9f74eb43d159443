"""TRL's GRPOTrainer on the demo's model and prompts; started by `benchmarks/async.py`.

    python benchmarks/peers/trl_grpo.py SETTINGS.json

Runs in an environment of its own (torch, transformers, trl, accelerate, datasets) and knows nothing
of this project. Writes `result.json` into the settings' folder, and beside it the weights of some
steps, which somebody else grades. Its clock stands still while they are written.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

PACKAGES = ("torch", "transformers", "trl")


class Reward:
    """1 where the completion's text is the reference; counts the tokens that it is shown."""

    __name__ = "exact"

    def __init__(self, members: int) -> None:
        self.members = members
        self.rewards: list[float] = []
        self.lengths: list[int] = []

    def __call__(
        self,
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        reference: Sequence[str],
        **_: Any,
    ) -> list[float]:
        pairs = zip(completions, reference, strict=True)
        self.rewards = [float(text.strip() == right.strip()) for text, right in pairs]
        self.lengths = [len(ids) for ids in completion_ids]
        return self.rewards

    def signal_tokens(self) -> int:
        """Of the groups whose rewards are not all alike: the others have no advantage."""
        starts = range(0, len(self.rewards), self.members)
        groups = [slice(start, start + self.members) for start in starts]
        return sum(sum(self.lengths[g]) for g in groups if len(set(self.rewards[g])) > 1)


class Watch(TrainerCallback):
    """A line for each step, and weights every so often, outside the clock."""

    def __init__(self, settings: dict[str, Any], reward: Reward) -> None:
        self.folder, self.every = Path(settings["folder"]), settings["every"]
        self.steps, self.reward = settings["steps"], reward
        self.lines: list[dict[str, float]] = []
        self.kept: list[dict[str, Any]] = []
        self.saving, self.started = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Since training began, without the time in which weights were written."""
        return time.perf_counter() - self.started - self.saving

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()
        self.keep(0, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rewards = self.reward.rewards
        self.lines.append(
            {
                "step": state.global_step,
                "seconds": self.seconds,
                "tokens": sum(self.reward.lengths),
                "signal_tokens": self.reward.signal_tokens(),
                "reward": sum(rewards) / len(rewards),
            }
        )
        if self.every and (state.global_step % self.every == 0 or state.global_step == self.steps):
            self.keep(state.global_step, kwargs)

    def keep(self, step: int, parts: dict[str, Any]) -> None:
        """The model and its tokenizer as a Hugging Face folder."""
        if not self.every:
            return
        seconds, path = self.seconds, self.folder / f"step-{step}"
        for part in ("model", "processing_class"):
            parts[part].save_pretrained(path)
        self.kept.append({"version": step, "step": step, "seconds": seconds, "path": str(path)})
        self.saving += self.seconds - seconds


def main() -> None:
    """One training."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    reward = Reward(settings["members"])
    watch = Watch(settings, reward)
    trainer = make(settings, reward, watch)
    trainer.train()
    result = {
        "lines": watch.lines,
        "kept": watch.kept,
        "threads": torch.get_num_threads(),
        "versions": {package: version(package) for package in PACKAGES},
    }
    (Path(settings["folder"]) / "result.json").write_text(json.dumps(result))


def make(settings: dict[str, Any], reward: Reward, watch: Watch) -> GRPOTrainer:
    """The trainer with the demo's optimizer; TRL's own warm-up would begin with a step of 0."""
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(settings["model"], padding_side="left")
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings["learning_rate"],
        betas=tuple(settings["betas"]),
        weight_decay=settings["weight_decay"],
        fused=True,
    )
    rises = settings["warmup_steps"] + 1
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / rises))
    lines = Path(settings["prompts"]).read_text().splitlines()
    return GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments(settings),
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=tokenizer,
        callbacks=[watch],
        optimizers=(optimizer, schedule),
    )


def arguments(settings: dict[str, Any]) -> GRPOConfig:
    """All prompts of a step generated in one batch, then trained in `micro_batch` rows at a time.

    TRL's cispo is the demo's loss: -sg(min(r, high)) A logp, over the tokens of the whole batch.
    """
    rows = settings["members"] * settings["per_step"]
    return GRPOConfig(
        output_dir=settings["folder"],
        seed=settings["seed"],
        max_steps=settings["steps"],
        per_device_train_batch_size=settings["micro_batch"],
        gradient_accumulation_steps=rows // settings["micro_batch"],
        num_generations=settings["members"],
        max_completion_length=settings["max_tokens"],
        temperature=settings["temperature"],
        top_p=1.0,
        top_k=0,
        beta=0.0,
        num_iterations=1,
        loss_type="cispo",
        epsilon_high=settings["high"],
        scale_rewards="group",
        max_grad_norm=settings["clip_norm"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
