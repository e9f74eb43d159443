"""Steps that must come out alike on any number of ranks, done by jobs of `rank_forks`.

`main` leaves, of every case and ZeRO stage, the back end's state after the step in
FOLDER/stage/case and what was said of it in FOLDER/stage/case.json; OTHER is the folder of the job
of another size, whose states are gone on from. The cases are also a plain list for the tests.
"""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from every_objective import Sum, with_turns
from made import VOCABULARY, build, consider, group, member, rules, tiny_model
from msgspec.structs import replace
from torch import Tensor

from pipeline.messages import Group
from pipeline.model.fingerprint import fingerprint
from pipeline.protocols import Backend, Loss, Pack, Tokens
from pipeline.run import Model, Run
from pipeline.run import Training as Settings
from services.training.backends.state import write
from services.training.backends.torch import TorchBackend
from services.training.batch import build as plan_batch
from services.training.canary import canary_of
from services.training.cargo import Cargo
from services.training.considered import consider as judge
from services.training.losses import cispo, ppo
from services.training.objective import Objective
from services.training.optimize import Done, act_alone
from services.training.ranks import Leader, follow, lead
from services.training.records import plan
from services.training.world import join

BETA = 0.9
RATE = 1e-2
STAGES = (1, 2, 3)
MODES: dict[str, dict[str, Any]] = {
    "optimizer away": {"stage": 2, "offload": "optimizer"},
    "all away": {"stage": 3, "offload": "parameters", "whole_elements": 0},
    "bfloat16": {"stage": 2, "dtype": "bfloat16"},
    "bfloat16, all away": {"stage": 3, "dtype": "bfloat16", "offload": "parameters"},
}
PROMPT = [3, 4, 8]
CANARY = [20, 0, 5, 13, 13, 2, 9]
GATHERED_BYTES = 8192
LENGTH = 10  # of each sequence of `equal`, with its prompt


def ten_then_zero(tokens: Tokens) -> Tensor:
    """Loss 10 times the log-prob on sequence 0, and 0 elsewhere."""
    return -10.0 * (tokens.sequence == 0) * tokens.logp


def infinite_on_one(tokens: Tokens) -> Tensor:
    """Of the second sequence, which is rank 1's where there are two, the gradient is infinite."""
    return cispo(tokens) * torch.where(tokens.sequence == 1, float("inf"), 1.0)


def equal(count: int) -> list[Group]:
    """One group of members of one length, so that packs and ranks come out exactly."""
    rng = random.Random(4)
    members = [
        member(
            [rng.randrange(2, VOCABULARY) for _ in range(LENGTH - len(PROMPT))],
            float(number % 3 == 0),
            logprobs=[-rng.expovariate(0.5) for _ in range(LENGTH - len(PROMPT))],
        )
        for number in range(count)
    ]
    return [group("g", members, prompt=PROMPT, temperature=0.8)]


def one_and_nine() -> list[Group]:
    """Two members of 1 and 9 tokens."""
    members = [member([5], 1.0, logprobs=[-2.0]), member([5] * 9, 0.0, logprobs=[-2.0] * 9)]
    return [group("g", members, prompt=PROMPT)]


def lonely() -> list[Group]:
    """One member can be trained, the other is refused."""
    members = [member([5, 6, 7], 1.0), member([9, 2], 0.0, spans=[(1, 2)])]
    return [group("g", members, prompt=PROMPT)]


def long_tail() -> list[Group]:
    """Members of 1 to 20 tokens, of two groups."""
    rng = random.Random(7)
    made = []
    for number in range(2):
        members = [
            member(
                [rng.randrange(2, VOCABULARY) for _ in range(length)],
                float(length % 3 == 0),
                logprobs=[-rng.expovariate(0.5) for _ in range(length)],
            )
            for length in (1, 20, 3, 7, 12)
        ]
        made.append(group(f"g{number}", members, seq=number, prompt=PROMPT, temperature=0.8))
    return made


class Case(NamedTuple):
    """`change` is made of every pack, on the rank that has it, before anything looks at it."""

    groups: Callable[[], Sequence[Group]]
    pack_tokens: int
    loss: Loss = cispo
    change: Callable[[Pack], Pack] = lambda pack: pack

    def packs(self) -> list[Pack]:
        judged = [consider(g, rules()) for g in self.groups()]
        return [self.change(p) for p in build(judged, rules(), pack_tokens=self.pack_tokens).packs]

    def cargo(self) -> Cargo:
        groups = {group.prompt.group: group for group in self.groups()}
        return Cargo(lambda names: [groups[name] for name in names], vocabulary=VOCABULARY)


def without_signal(pack: Pack) -> Pack:
    """Advantage 0 on the sequences of even number, which rank 0 gets where there are two."""
    return pack._replace(advantage=torch.where(pack.sequence % 2 == 0, 0.0, pack.advantage))


def with_streams(pack: Pack) -> Pack:
    """Sequences by their number: trained and distilled, distilled by likeliest ids, imitated."""
    inside, stream = pack.weight > 0, pack.sequence % 3
    likeliest = torch.stack([(pack.ids + 1) % VOCABULARY, (pack.ids + 5) % VOCABULARY], dim=-1)
    known = torch.where((stream == 1).unsqueeze(-1), torch.tensor([-0.9, -1.2]), -torch.inf)
    return pack._replace(
        weight=torch.where(stream == 0, pack.weight, 0.0),
        ce_weight=torch.where(inside & (stream == 2), 0.01, 0.0),
        kl_weight=torch.where(inside & (stream < 2), 0.02, 0.0),
        teacher=torch.where(stream < 2, pack.behaviour * 0.8 - 0.2, 0.0),
        teacher_ids=likeliest,
        teacher_logprobs=known,
    )


eight = partial(equal, 8)
CASES = {
    "padded": Case(eight, 1),
    "8 packs": Case(eight, LENGTH),
    "2 packs": Case(eight, 4 * LENGTH),
    "1 pack": Case(eight, 8 * LENGTH),
    "ppo": Case(eight, 4 * LENGTH, ppo),
    "long tail": Case(long_tail, 40),
    "long tail padded": Case(long_tail, 1),
    "C096": Case(one_and_nine, 99, ten_then_zero),
    "C099 3 and 2": Case(partial(equal, 5), LENGTH),
    "C099 1 and 0": Case(lonely, 99),
    "C100": Case(eight, LENGTH, change=without_signal),
    "all streams": Case(long_tail, 40, change=with_streams),
    "all streams padded": Case(long_tail, 1, change=with_streams),
    "every objective": Case(long_tail, 40, Sum(), change=with_turns),
    "every objective padded": Case(long_tail, 1, Sum(), change=with_turns),
}


def settings(pack_tokens: int) -> Run:
    training = Settings(backend="deepspeed", pack_tokens=pack_tokens)
    return Run(name="ranks", steps=1, model=Model(path="-"), data="-", training=training)


def act(team: Leader, case: Case) -> Done:
    """A step as the service makes it, from the bus on."""
    briefs = team.read([group.prompt.group for group in case.groups()])
    batch = plan_batch([judge(one, rules()) for one in briefs], rules())
    record = plan(batch, number=1, epoch=1, version=0)
    record = replace(record, places=team.write(record))
    return team.act(batch, record, RATE)


def main(folder: Path, other: Path) -> None:
    """All cases on the ranks of this job, which share `folder`."""
    from services.training.backends.deepspeed import DeepSpeedBackend

    class Thrifty(DeepSpeedBackend):
        """Gathers as little at a time as it can."""

        gathered_bytes = GATHERED_BYTES

    me = join()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)  # where the steps are recorded
    for stage in STAGES:
        # Nothing is whole on every rank, the head is called token by token: all that can differ.
        backend = Thrifty(
            tiny_model(tied=stage != 2),
            stage=stage,  # type: ignore[arg-type]
            clip_norm=1e9,
            whole_elements=0,
            chunk_elements=VOCABULARY,
            checkpoint_activations=stage == 3 and me.size > 1,
        )
        job = partial(_as_rank, me.rank, backend)
        job(CASES["1 pack"], partial(_begin, folder / str(stage)))
        for name, case in CASES.items():
            job(case, partial(_step, case, folder / str(stage) / name))
        scored = CASES["2 packs"]
        job(scored, partial(_score, scored, folder / str(stage) / "scored"))
        bad = Case(eight, LENGTH, infinite_on_one)
        job(bad, partial(_skip, bad, folder / str(stage) / "C101"))
        good = CASES["2 packs"]
        job(good, partial(_after, good, folder / str(stage) / "after C101"))
        job(good, partial(_resume, good, folder / str(stage) / "resumed"))
        if stage == 3:
            job(good, partial(_gather, folder / "3" / "gathered", backend.model))
        job(good, partial(_cross, good, folder / str(stage) / "crossed", other / str(stage)))
        job(good, partial(_from_torch, good, folder / str(stage) / "from torch", stage != 2))
    for name, options in MODES.items():
        backend = DeepSpeedBackend(tiny_model(), clip_norm=1e9, **options)
        job = partial(_as_rank, me.rank, backend)
        job(good, partial(_resume, good, folder / name / "resumed", start=None))


def _as_rank(rank: int, backend: Any, case: Case, lead_it: Callable[[Leader], None]) -> None:
    objective = Objective(case.loss, refer=case.change)
    run, cargo = settings(case.pack_tokens), case.cargo()
    if rank:
        follow(backend, objective, run, cargo=cargo)
        return
    team = lead(backend, objective, run, cargo=cargo)
    lead_it(team)
    team.close()


def _begin(folder: Path, team: Leader) -> None:
    _save(team, folder / "start")


def _step(case: Case, folder: Path, team: Leader) -> None:
    team.load_state(str(folder.parent / "start"))
    done = act(team, case)
    _save(team, folder)
    _say(folder, [[*done.result]], **done.statistics.summary())


def _score(case: Case, folder: Path, team: Leader) -> None:
    """The canary before a step and after it, which must be the step that it is without."""
    team.load_state(str(folder.parent / "start"))
    before = canary_of(team, CANARY)
    act(team, case)
    _save(team, folder)
    told = [
        struct.unpack(f"<{len(CANARY) - 1}f", c.logprobs) for c in (before, canary_of(team, CANARY))
    ]
    _say(folder, [[*logprobs] for logprobs in told])


def _skip(case: Case, folder: Path, team: Leader) -> None:
    team.load_state(str(folder.parent / "start"))
    before = fingerprint(team.weights())
    results = [act(team, case).result for _ in range(3)]
    same = before == fingerprint(team.weights())
    _say(folder, [[r.finite, str(r.grad_norm)] for r in results], same=same)


def _after(case: Case, folder: Path, team: Leader) -> None:
    """On from where the skipped steps have left the back end."""
    done = act(team, case)
    _save(team, folder)
    _say(folder, [[*done.result]])


def _resume(case: Case, folder: Path, team: Leader, start: str | None = "start") -> None:
    """Three steps at once, and the same with a load after the first."""
    backend = team
    if start:
        backend.load_state(str(folder.parent / start))
    act(team, case)
    _save(backend, folder)
    ends = []
    for _ in range(2):
        for _ in range(2):
            act(team, case)
        ends.append(fingerprint(backend.masters()))
        if not (straight := folder.with_name("straight")).exists():
            _save(backend, straight)
        backend.load_state(str(folder))
    backend.save(str(folder.with_name("saved")))
    _say(folder, ends, saved=fingerprint(backend.weights()))


def _gather(folder: Path, model: Any, team: Leader) -> None:
    """How many bytes of parameters are whole on rank 0 while weights, masters and all go out."""
    ways = {"weights": team.weights, "masters": team.masters}
    peaks = {name: max(_whole_bytes(model) for _ in way()) for name, way in ways.items()}
    _say(folder, [], before=_whole_bytes(model), **peaks)


def _whole_bytes(model: Any) -> int:
    return sum(p.nbytes for p in model.parameters())  # a parameter that is away has no elements


def _cross(case: Case, folder: Path, other: Path, team: Leader) -> None:
    """On from the first of three steps of a job of another size, which is under way or done."""
    while not (other / "resumed" / "state.json").exists():
        time.sleep(0.02)
    team.load_state(str(other / "resumed"))
    for _ in range(2):
        act(team, case)
    _save(team, folder)


def _from_torch(case: Case, folder: Path, tied: bool, team: Leader) -> None:
    """Three steps, the first of which the plain back end has made."""
    plain = TorchBackend(tiny_model(tied=tied), clip_norm=1e9)
    act_alone(plain, Objective(case.loss), case.packs(), RATE)
    _save(plain, folder.with_name("torch"))
    team.load_state(str(folder.with_name("torch")))
    for _ in range(2):
        act(team, case)
    _save(team, folder)


def _save(backend: Backend, folder: Path) -> None:
    folder.mkdir(parents=True)
    taken: Any = backend.snapshot()
    write(str(folder), taken.state.items())


def _say(folder: Path, results: list[Any], **more: Any) -> None:
    folder.with_suffix(".json").write_text(json.dumps({"results": results, **more}))
