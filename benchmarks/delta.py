"""What a version weighs where only what changed travels: a real run of SmolLM2-135M in bfloat16.

    python examples/smollm2/convert.py     # makes the model, once
    python -m benchmarks.delta             # 30 steps: some ten minutes
    python -m benchmarks.delta --spread    # masters off bfloat16's grid, as later in a run

Each step samples answers to sums from the policy, rewards those that have the right number, and
makes one optimizer step over them as the service does: float32 masters, AdamW, learning rate 1e-6,
clipped. Each version is published in bfloat16 through the transport `files` with `whole_every`, and
fetched by receivers that stage it as an engine does: one follows every version, one misses three at
a time, one joins at the end. A version is exact where all bits of a receiver are the trainer's.

A step's figure is the bytes of the patch's file over those of the whole version. The bar is on the
largest. For each bar a line says whether it held; the last line is one JSON object. Exit 1 where
one did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor
from transformers import AutoTokenizer

from pipeline.messages import Completion, Group, Manifest, Member, Prompt, Sampling, Score, Span
from pipeline.model.load import load_model
from pipeline.protocols import Held, Pack, Tokens, Transport
from pipeline.versions import Freshness
from pipeline.weights.origin import Origin
from pipeline.weights.publisher import Publisher
from pipeline.weights.staging import Staging
from services.training.advantages import grpo
from services.training.backends.torch import TorchBackend
from services.training.batch import build
from services.training.briefs import brief
from services.training.considered import Rules, consider
from services.training.objective import Objective
from services.training.optimize import act_alone
from services.training.packing import pack as packed
from services.training.planned import Planned
from services.training.sequences import joined, sampled

MODEL = Path(__file__).resolve().parent.parent / "examples" / "smollm2" / "model"
GROUPS, MEMBERS, NEW_TOKENS, PACK_TOKENS = 2, 6, 12, 1024
RATE, WHOLE_EVERY, MISSED = 1e-6, 20, 3
BAR = 0.05
VERSIONS = 30


def main() -> int:
    """The run; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=VERSIONS)
    parser.add_argument("--spread", action="store_true", help="masters off bfloat16's grid")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="sluice-delta-") as folder:
        found = run(Path(folder), options.steps, spread=options.spread)
    largest = found["patch_over_full_largest"]
    bars = {
        f"patch_over_full_largest {largest:.4f} <= {BAR}": largest <= BAR,
        f"exact after {options.steps} versions": found["exact_after_all"],
        f"exact after {MISSED} missed ones": found["exact_after_missed"],
        "exact for one that joins": found["exact_for_joiner"],
    }
    for claim, held in bars.items():
        print(f"{'held' if held else 'NOT HELD'}: {claim}")
    print(json.dumps(found | {"held": all(bars.values()), "load": os.getloadavg()[0]}))
    return 0 if all(bars.values()) else 1


class Receiver:
    """Stages as an engine does, and keeps what it staged last."""

    def __init__(self, transport: Transport, like: dict[str, Tensor]) -> None:
        kinds = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in like.items()}
        self._transport = transport
        self._has: Held | None = None
        self._staging = Staging(kinds, held=lambda: self._has)

    def follow(self, manifest: Manifest, right: dict[str, Tensor]) -> tuple[bool, float]:
        """Whether all bits are the trainer's, and the seconds that it took."""
        self._staging.begin(manifest, self._transport)
        assert self._staging.wait(600)
        if (staged := self._staging.take()) is None:
            raise SystemExit(self._staging.error())
        self._has = Held(manifest.version, manifest.fingerprint, staged.tensors)
        exact = all(same_bits(staged.tensors[name], right[name]) for name in right)
        return exact, staged.cost.seconds - staged.cost.verify_seconds


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


class Sent(NamedTuple):
    """A version: its manifest, its bits, the bytes of its patch, and the seconds of sending it."""

    manifest: Manifest
    tensors: dict[str, Tensor]
    num_bytes: int
    seconds: float


def run(folder: Path, steps: int, *, spread: bool) -> dict[str, Any]:
    """Steps, versions and receivers; what they showed."""
    model = load_model(str(MODEL))
    if spread:
        spread_out(model)
    rank, sampler = TorchBackend(model), Sampler(model)
    transport = Origin(
        {"use": "files", "folder": str(folder), "whole_every": WHOLE_EVERY}, "delta"
    ).transport()
    announced: list[Manifest] = []
    publisher = Publisher(announced.append, transport, epoch=1, dtype=torch.bfloat16)
    sent = [send(publisher, announced, rank, 0, folder)]
    full = sum(tensor.nbytes for tensor in sent[0].tensors.values())
    follows, misses = (Receiver(transport, sent[0].tensors) for _ in range(2))
    exact, caught_up, applied = [follows.follow(*sent[0][:2])[0]], [], []
    misses.follow(*sent[0][:2])
    for version in range(1, steps + 1):
        started = time.perf_counter()
        reward = step(rank, sampler)
        stepped = time.perf_counter() - started
        sent.append(send(publisher, announced, rank, version, folder))
        one, seconds = follows.follow(*sent[-1][:2])
        exact.append(one)
        applied.append(seconds)
        if version % (MISSED + 1) == 0:
            caught_up.append(misses.follow(*sent[-1][:2])[0])
        newest = sent[-1]
        print(
            f"version {version}: patch {newest.num_bytes:,} bytes, {newest.num_bytes / full:.4f} of"
            f" {full:,}; reward {reward:.2f}, step {stepped:.1f} s, sent in {newest.seconds:.1f} s,"
            f" patched in {seconds:.1f} s{'' if one else ', NOT EXACT'}",
            flush=True,
        )
        sent[-1] = newest._replace(tensors={})
    joiner = Receiver(transport, newest.tensors)
    ratios = [one.num_bytes / full for one in sent[1:]]
    return {
        "steps": steps,
        "spread": spread,
        "full_bytes": full,
        "patch_over_full": round(statistics.median(ratios), 5),
        "patch_over_full_largest": round(max(ratios), 5),
        "exact_after_all": all(exact),
        "exact_after_missed": all(caught_up) and bool(caught_up),
        "exact_for_joiner": joiner.follow(newest.manifest, newest.tensors)[0],
        "send_seconds": round(statistics.median(one.seconds for one in sent[1:]), 3),
        "patch_seconds": round(statistics.median(applied), 3),
    }


def send(
    publisher: Publisher, announced: list[Manifest], rank: TorchBackend, version: int, folder: Path
) -> Sent:
    """Publish, and wait until it is announced."""
    started = time.perf_counter()
    publisher.publish(version, version, rank.weights())
    publisher.flush()
    seconds = time.perf_counter() - started
    tensors = {name: tensor.bfloat16() for name, tensor in rank.weights()}
    patch = folder / "delta" / "patches" / f"v{version}.e1.safetensors"
    size = patch.stat().st_size if patch.exists() else 0
    return Sent(announced[-1], tensors, size, seconds)


@torch.no_grad()
def spread_out(model: Any) -> None:
    """Each master to a random place among those that round to it in bfloat16."""
    torch.manual_seed(1)
    infinity = torch.tensor(float("inf"), dtype=torch.bfloat16)
    for parameter in model.parameters():
        size = parameter.abs().bfloat16()
        gap = torch.nextafter(size, infinity).float() - size.float()
        parameter.add_((torch.rand(parameter.shape) - 0.5) * 0.98 * gap)


# A step.


class Sampler:
    """Sums, and answers to them by the policy as it is."""

    def __init__(self, model: Any) -> None:
        self._model, self._rng = model, random.Random(7)
        self._tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self._number = 0

    def group(self) -> Group:
        """One sum, answered MEMBERS times."""
        one, other = self._rng.randrange(10, 60), self._rng.randrange(10, 60)
        ids = self._tokenizer(
            f"{one - 1} + {other} = {one + other - 1}\n{one} + {other} ="
        ).input_ids
        drawn = self._model.generate(
            torch.tensor([ids] * MEMBERS), do_sample=True, top_k=0, max_new_tokens=NEW_TOKENS
        )[:, len(ids) :]
        self._number += 1
        members = {m: self._member(row.tolist(), one + other) for m, row in enumerate(drawn)}
        prompt = Prompt(
            group=f"g{self._number}",
            seq=self._number,
            ids=array("i", ids).tobytes(),
            members=MEMBERS,
            sampling=Sampling(max_tokens=NEW_TOKENS),
        )
        return Group(prompt=prompt, start_step=0, members=members)

    def _member(self, ids: list[int], right: int) -> Member:
        completion = Completion(
            group="",
            member=0,
            ids=array("i", ids).tobytes(),
            logprobs=array("f", [-1.0] * len(ids)).tobytes(),
            spans=(Span(0, len(ids), "boot"),),
            finish="stop",
        )
        words = self._tokenizer.decode(ids).split()
        return Member(completion=completion, score=Score(reward=float(words[:1] == [str(right)])))


def step(rank: TorchBackend, sampler: Sampler) -> float:
    """Sample groups until some have a signal, then step; the mean reward of those."""
    groups: list[Group] = []
    while len(groups) < GROUPS:
        group = sampler.group()
        if 0 < sum(rewards(group)) < MEMBERS:
            groups.append(group)
    done = act_alone(rank, Objective(policy_gradient), [*packs(rank, groups)], RATE)
    assert done.result.finite, "a step that was not taken makes no version"
    return statistics.mean(reward for group in groups for reward in rewards(group))


def rewards(group: Group) -> list[float]:
    return [member.score.reward or 0.0 for member in group.members.values()]


def packs(rank: TorchBackend, groups: list[Group]) -> Iterator[Pack]:
    """As the service packs them."""
    rules = Rules(Freshness(0, {0: 0}, 0, "token"), grpo)
    vocabulary = int(rank.model.config.vocab_size)
    batch = build([consider(brief(group, vocabulary), rules) for group in groups], rules)
    by_name = {group.prompt.group: group for group in groups}
    made = [
        sampled(one, by_name[one.group].prompt, by_name[one.group].members[one.member], likeliest=0)
        for one in batch.sequences
        if isinstance(one, Planned)
    ]
    for numbers in packed([pack.ids.numel() for pack in made], PACK_TOKENS):
        yield joined([made[number] for number in numbers])


def policy_gradient(tokens: Tokens) -> Tensor:
    return -tokens.advantage * tokens.logp


if __name__ == "__main__":
    sys.exit(main())
