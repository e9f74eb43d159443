"""The embedded engine: a step loop over any transformers decoder, for machines without a GPU.

Here is who runs when. The forward passes are in `passes`, the rows' arrays in `rows`, keys and
values in `cache`, the weights in `flip`.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from transformers import PreTrainedModel

from pipeline.errors import ConfigError
from pipeline.messages import Completion, Finish, Manifest, Work
from pipeline.model.policy import load_policy
from pipeline.model.tokens import end_ids
from pipeline.protocols import Device, Flip, Load, StepTimes, Transport
from pipeline.run import MaxAge, Model, Swap
from services.inference.engines.hf.flip import LiveWeights, Pinned
from services.inference.engines.hf.passes import Context, Copy, Passes
from services.inference.engines.hf.rows import Ints, Rows
from services.inference.engines.members import Member, check_scored, members, share_of

_CAPACITY = 128
# A multiple of what vector instructions take at once: remainders, and rows that begin in between,
# are computed otherwise.
_EVEN = 32


class HfEngine:
    """Continuous batching: members come and go at any step, one decode pass for all of them.

    A row's last token is not in the cache yet: a decode pass reads it, stores its keys, and draws
    the next. So new members need no logits from their prefill, and all draws are one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        boot: str,
        end_ids: frozenset[int],
        swap: Swap = "keep",
        slots: int = 64,
        max_length: int | None = None,
        fixed_shapes: bool = False,
    ) -> None:
        """`model` is taken over: its parameters are replaced at a flip.

        `slots` is the number of members in flight; `max_length` bounds prompt and completion
        together, in tokens, below the model's own context. With `fixed_shapes` a member's tokens
        and log-probs depend on its prompt, the weights and its noise alone, to the last bit; each
        step then costs as much as one with all slots full and as long as `max_length`. Raises
        ConfigError for a model that this engine cannot run.
        """
        self.boot = boot
        on_gpu = model.device.type == "cuda"
        self.device = Device("gpu", 1) if on_gpu else Device("core", torch.get_num_threads())
        self.last_step = StepTimes(perf_counter(), 0.0, False, 0)
        config = model.train(False).config.get_text_config()
        self._slots, self._vocabulary = slots, int(config.vocab_size)
        self._reserve_size = slots // 8
        self._max_age, self._drains, self._draining = _max_age(swap), swap == "drain", False
        self._own_length = int(config.max_position_embeddings)
        self._max_length = _context(self._own_length, max_length)
        self._fixed = fixed_shapes
        lanes, capacity = slots, min(_CAPACITY, self._max_length)
        if fixed_shapes:
            lanes, capacity = _even(slots), _even(self._max_length)
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()  # where a staged version lies as well
        self._passes = Passes(model, slots=lanes, capacity=capacity, fixed=fixed_shapes)
        ends = np.isin(np.arange(self._vocabulary), [*end_ids])
        self._rows = Rows(lanes, capacity, ends=ends)
        self._weights = LiveWeights(model)
        self._pinned: Pinned | None = None
        self._queue: deque[Member] = deque()
        self._group_size = slots

    @property
    def version(self) -> int:
        return self._pinned.version if self._pinned else self._weights.version

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def busy(self) -> bool:
        return bool(self._rows.count or self._queue)

    @property
    def load(self) -> Load:
        """Keys and values are in use up to each row's length, of as many as all slots may get."""
        running = self._rows.count
        held = int(self._rows.length[:running].sum())
        return Load(running, len(self._queue), held / (self._slots * self._max_length))

    def room(self) -> int:
        """Groups of the size seen last that would start now, or wait at most for the next slots.

        An eighth of the slots may wait, so that none stands empty while more are asked for. 0
        before there is a version.
        """
        free = self._slots + self._reserve_size - self._rows.count - len(self._queue)
        return 0 if self.version < 0 or self._draining else max(0, -(-free // self._group_size))

    def add(self, work: Work) -> None:
        """Queue the members to do. Raises Refused where the prompt can never be answered."""
        assert self.version >= 0, "nothing may be added before the first version is adopted"
        new = members(work, max_length=self._max_length, vocabulary=self._vocabulary)
        self._group_size = max(1, work.prompt.members)
        self._queue.extend(new)

    def drop(self, group: str) -> None:
        """Forget every sequence of a group, running or queued."""
        self._queue = deque(m for m in self._queue if m.prompt.group != group)
        rows = [i for i, m in enumerate(self._rows.members) if m.prompt.group == group]
        self._remove(np.array(rows, np.int64))

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Contexts of who is new first, then one decode pass and one draw; who finished in it."""
        started = perf_counter()
        outdated = self._renew()
        fresh, copies, done = self._admit()
        with self._lent():
            self._passes.prefill(contexts := [c for c in (*outdated, *fresh) if len(c.ids)])
            self._passes.copy(copies)
            drawn = self._rows.num_drawing
            tokens = self._passes.decode(self._rows) if self._rows.count else None
        if tokens:
            finished = self._rows.append(*tokens)
            done += [self._rows.finish(row, self.version, self.boot) for row in finished.tolist()]
            self._remove(finished)
        ended = perf_counter()
        self.last_step = StepTimes(ended, ended - started, bool(contexts), drawn)
        return done

    def prefixes(self) -> list[Completion]:
        """Every running or queued member that has a token, as a prefix (finish None)."""
        running = [
            self._rows.completion(row, self.version, self.boot, None)
            for row in range(self._rows.count)
        ]
        queued = [self._handed_in(member, None) for member in self._queue if member.prefix]
        return [prefix for prefix in (*running, *queued) if prefix.tokens]

    def park(self) -> list[Completion]:
        """The prefixes; the engine is empty afterwards."""
        parked = self.prefixes()
        self._queue.clear()
        self._remove(np.arange(self._rows.count))
        return parked

    def stage(self, manifest: Manifest, transport: Transport) -> None:
        """Begin to receive and verify a version in the background."""
        self._weights.stage(manifest, transport)

    def staging_error(self) -> str | None:
        """Why the last staging failed, once; the old version serves on."""
        return self._weights.error()

    def flip(self) -> Flip | None:
        """Adopt the staged version, if it is whole; the pause is what it costs the loop.

        With `drain` only once no row is in use; until then none is filled.
        """
        started, before = perf_counter(), self.version
        self._draining = self._drains and self._rows.count > 0 and self._weights.is_staged
        swapped = None if self._draining else self._weights.swap()
        if swapped is None:
            return None
        self._rows.close_spans(before, self.boot)
        if not swapped.changed:
            self._rows.rename(before, self.version)
        return Flip(self.version, perf_counter() - started, swapped.staging)

    def revert(self) -> int:
        """Back to the weights before the last flip; every row is prefilled again."""
        wrong = self.version
        self._weights.revert()
        return self._rows.cut_back(wrong, self.boot)

    def fingerprint(self) -> str:
        """Of the live parameters; from any thread."""
        return self._weights.fingerprint()

    @torch.inference_mode()
    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """By a forward pass of its own, which uses no slot and no row's keys."""
        check_scored(ids, max_length=self._own_length, vocabulary=self._vocabulary)
        with self._lent():
            return self._passes.score(np.array(ids, np.int64))

    def pin(self) -> HfEngine:
        """Another over the same model, which is lent the weights of now for its passes.

        Its passes are beside this engine's, so that a step of both costs two, while both have work.
        """
        twin = copy.copy(self)
        twin._pinned = self._weights.pin()
        lanes, capacity = self._passes.cache.slots, self._passes.cache.capacity
        if not self._fixed:
            twin._slots = lanes = share_of(self._slots)
            capacity = min(_CAPACITY, self._max_length)
        twin._reserve_size = twin._slots // 8
        twin._drains = twin._draining = False
        twin._passes = self._passes.beside(slots=lanes, capacity=capacity)
        twin._rows = self._rows.alike(lanes, capacity)
        twin._queue = deque()
        return twin

    def close(self) -> None:
        """Forget all work."""
        self.park()

    def _lent(self) -> AbstractContextManager[None]:
        """What the model runs meanwhile: the weights that serve, or those that are pinned."""
        return self._weights.lent(self._pinned.tensors) if self._pinned else nullcontext()

    def _admit(self) -> tuple[list[Context], list[Copy], list[Completion]]:
        """Give waiting members a slot: contexts to prefill, prompts that a sibling's row has, and
        members with no token to come.
        """
        contexts: list[Context] = []
        copies: list[Copy] = []
        spent: list[Completion] = []
        slots = 0 if self._draining else self._slots
        holders = self._holders() if self._queue and self._rows.count < slots else {}
        while self._queue and self._rows.count < slots:
            member = self._queue.popleft()
            if member.length >= (longest := member.limit(self._max_length)):
                spent.append(self._handed_in(member, "length"))
                continue
            self._reserve(longest)
            row = self._rows.add(member, self._max_length)
            holder = holders.setdefault(member.prompt.group, row)
            if self._fixed:
                self._rows.rewind(row)
            if holder == row or (member.prefix and not self._fixed):
                contexts.append(self._context(row))
            else:
                copies.append(self._copy(holder, row))
        return contexts, copies, spent

    def _holders(self) -> dict[str, int]:
        """By group, a row whose keys of the prompt are of the weights that run now.

        Never older ones, whatever becomes of sequences in flight at a flip: a member starts as on
        an engine that knew no other version.
        """
        current = self._rows.prompt_version[: self._rows.count] == self.version
        members = self._rows.members
        return {members[row].prompt.group: row for row in np.flatnonzero(current).tolist()}

    def _renew(self) -> list[Context]:
        """The rows whose keys are of weights too long gone, or of none at all."""
        return [self._context(row) for row in self._rows.older_than(self.version - self._max_age)]

    def _context(self, row: int) -> Context:
        self._rows.prompt_version[row] = self.version
        if self._fixed:
            self._rows.rewind(row)
        return Context(self._rows.ids[row, : self._rows.length[row] - 1], row)

    def _copy(self, holder: int, row: int) -> Copy:
        self._rows.prompt_version[row] = self.version
        return Copy(holder, row, int(self._rows.length[row]) - 1)

    def _handed_in(self, member: Member, finish: Finish | None) -> Completion:
        """The prefix that a member came with, unchanged but for who holds it now."""
        assert member.prefix, "only a member with a prefix can be handed out untouched"
        prefix = member.prefix
        return member.completion(prefix.ids, prefix.logprobs, engine=self.boot, finish=finish)

    def _reserve(self, length: int) -> None:
        """Room for a row of this length; doubling, so that growing is rare."""
        if length > (capacity := self._passes.cache.capacity):
            capacity = min(self._max_length, max(length, 2 * capacity))
            self._passes.cache.grow(capacity)
            self._rows.grow(capacity)

    def _remove(self, gone: Ints) -> None:
        source, target = self._rows.remove(gone)
        if len(source):
            self._passes.move(source, target, int(self._rows.length[target].max()))


def _even(number: int) -> int:
    return -(-number // _EVEN) * _EVEN


def _max_age(swap: Swap) -> float:
    """How many versions old the oldest key of a row may grow."""
    if isinstance(swap, MaxAge):
        return swap.max_age
    return 0 if swap == "recompute" else math.inf


def _context(own: int, asked: int | None) -> int:
    if asked is not None and not 1 < asked <= own:
        raise ConfigError(
            "inference.engine.max_length",
            asked,
            rule=f"must be 2 to {own}, the model's context in tokens",
            remedy="lower it, or leave it out",
        )
    return asked or own


def build(
    model: Model,
    *,
    boot: str,
    swap: Swap = "keep",
    slots: Annotated[int, Meta(ge=1)] = 64,
    max_length: Annotated[int, Meta(ge=2)] | None = None,
    fixed_shapes: bool = False,
    device: str = "cpu",
) -> HfEngine:
    """The engine over a run's model; raises ConfigError where that cannot be loaded."""
    loaded = load_policy(model, dtype=model.dtype)
    return HfEngine(
        loaded.to(device),
        boot=boot,
        end_ids=end_ids(model.path),
        swap=swap,
        slots=slots,
        max_length=max_length,
        fixed_shapes=fixed_shapes,
    )
