"""The parts that a run can choose, and what each must do. Where each one lives is in `families`.

A `Protocol` holds only what the loops call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from pipeline.messages import Completion, Kept, Manifest, Teaching, Work

if TYPE_CHECKING:
    import torch


class StagingCost(NamedTuple):
    """What it took to have a version whole and verified; nothing where nothing had to travel.

    `verify_seconds` are part of `seconds`.
    """

    seconds: float = 0.0
    verify_seconds: float = 0.0
    num_bytes: int = 0


class Flip(NamedTuple):
    """A flip that took place between two forward passes, and the staging before it."""

    version: int
    pause_seconds: float
    staging: StagingCost = StagingCost()


class Load(NamedTuple):
    """Sequences that a step draws for, those that wait for a slot, and the share of KV in use."""

    running: int
    waiting: int
    kv_share: float


DEVICES = ("core", "gpu")


class Device(NamedTuple):
    """What an engine computes on, one of DEVICES, and how many of them."""

    kind: Literal["core", "gpu"]
    number: int


class StepTimes(NamedTuple):
    """How a step went; the gap between two tokens is the difference of two `ended`.

    `ended` is on the clock of `time.perf_counter`; `prefill` tells whether contexts were computed
    before the tokens were; `rows` is the number of tokens drawn.
    """

    ended: float
    seconds: float
    prefill: bool
    rows: int


class Engine(Protocol):
    """Generates tokens, one forward pass a step. Owned by one thread; every call is synchronous.

    `boot` is stamped into each span. `version` is what the next forward pass runs, -1 before the
    first version is adopted; nothing may be added before that.
    """

    boot: str

    @property
    def device(self) -> Device: ...

    @property
    def version(self) -> int: ...

    @property
    def last_step(self) -> StepTimes:
        """Of the last step that was made."""

    @property
    def slots(self) -> int:
        """How many sequences it draws for at once, at most."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything. May be asked from any thread."""

    @property
    def load(self) -> Load:
        """How full it is. May be asked from any thread."""

    def room(self) -> int:
        """How many groups it would take now."""

    def add(self, work: Work) -> None:
        """Queue the members to do; saved prefixes go on where they ended."""

    def drop(self, group: str) -> None:
        """Forget every sequence of a group that was closed elsewhere."""

    def step(self) -> list[Completion]:
        """One forward pass; the members that finished in it."""

    def prefixes(self) -> list[Completion]:
        """Every running or queued member that has a token, as a prefix (finish None)."""

    def park(self) -> list[Completion]:
        """The prefixes; the engine is empty afterwards."""

    def stage(self, manifest: Manifest, transport: Transport) -> None:
        """Begin to receive and verify a version in the background."""

    def staging_error(self) -> str | None:
        """Why the last staging failed, once; the old version serves on."""

    def flip(self) -> Flip | None:
        """Adopt the staged version if it is whole: all tensors or none. None: not yet."""

    def revert(self) -> int:
        """The last flip was wrong: back to the weights before it, and to what was sampled by then.

        What the wrong version sampled is dropped; how many tokens that were. Its keys are made
        anew. Raises WeightsError once the former weights are gone: from the next `stage` on.
        """

    def fingerprint(self) -> str:
        """Of the live parameters, in the transport's dtype. Safe from a second thread."""

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Of ids[1:], each given those before it, at temperature 1 over the whole vocabulary.

        Under what serves now, in one short forward pass between two steps. Sequences in flight do
        not notice. Raises Refused for ids that the model does not have, or has no room for.
        """

    def pin(self) -> Engine | None:
        """An engine beside this one over the weights that serve now, whatever is adopted later.

        It has slots of its own, a quarter as many, and adopts nothing. None: this kind cannot.
        """

    def close(self) -> None: ...


class Held(NamedTuple):
    """A version that a receiver has whole, bit for bit as announced; nobody writes into it."""

    version: int
    fingerprint: str
    tensors: Mapping[str, torch.Tensor]


class Transport(Protocol):
    """Moves named tensors and nothing else."""

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, torch.Tensor]],
        *,
        epoch: int,
        fingerprint: str = "",
    ) -> str:
        """Make the tensors fetchable, whole or not at all; the location for the manifest.

        `epoch` is the trainer's, of which one that was replaced has a lower one; `fingerprint` is
        the manifest's. The tensors may be kept, and so must not be changed afterwards.
        """

    def receive(
        self, manifest: Manifest, held: Held | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, in any order; raises WeightsError where they cannot be had.

        Of a version that is `held` already, what did not change may be yielded as it is there.
        """

    def drop(self, version: int) -> None:
        """The version will not be fetched any more."""


class ChatMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a chat: who speaks (system, user, assistant), and what is said."""

    role: str
    content: str


Text = str | tuple[ChatMessage, ...]
"""A prompt before it is token ids: a text, or a chat that the policy is to go on with."""


class Example(Struct, frozen=True, kw_only=True):
    """One row of a data set: the prompt, and the reference that its scorer reads."""

    prompt: Text
    reference: Any = None
    task: str = ""


class Dataset(Protocol):
    """Map style, so that order and resume are arithmetic on the cursor."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example:
        """Raises Unusable for a row at fault, which costs that row; any other error, the run."""

    def digest(self) -> str:
        """Of all that it holds: two data sets with one digest give the same examples."""


class Drawn(Struct, frozen=True, kw_only=True):
    """How an answer's tokens were drawn, for scorers that hold a model against them.

    `prompt` has the prompt's ids, int32, `logprobs` (float32 [T]) the answer's as recorded, under
    this temperature and over the `kept` ids where not all could be drawn.
    """

    prompt: bytes
    logprobs: bytes
    temperature: float
    kept: Kept | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """What a scorer sees of one member; `drawn` if it has `reads_drawn = True`.

    `max_tokens` is how long it could be; 0 where that is not known. One that is `fresh` is judged
    anew, whatever is remembered of it: a golden set asks for what a scorer says now.
    """

    text: str
    prompt: str
    reference: Any
    finish: str
    task: str = ""
    ids: tuple[int, ...] = ()
    drawn: Drawn | None = None
    max_tokens: int = 0
    fresh: bool = False


class Verdict(Struct, frozen=True, kw_only=True):
    """A reward; `outcome` is the verdict before any shaping and defaults to the reward.

    `reason` is one of few words that say why ("wrong", "no_final_answer"): verdicts are counted by
    it. A teacher adds what is to be distilled of its `teaching`.
    """

    reward: float
    outcome: float | None = None
    reason: str = ""
    teaching: Teaching | None = None


class Scorer(Protocol):
    """Grades one answer. A plain function runs in a killable process, an async one on a loop there.

    `version`, of the class or of what it made, tells results apart. One with `reads_drawn = True`
    is shown how the tokens were drawn. A keyword-only parameter `policy` is given `model.path`.
    """

    def __call__(self, answer: Answer) -> float | Verdict: ...


class Pack(NamedTuple):
    """Whole sequences in one row of T tokens, ready for one forward pass.

    `ids`, `positions` (restart at each sequence) and `sequence` (number within the step) are int64
    [T]; `temperature`, `behaviour` (the engine's log-prob), `advantage` and `weight` (loss mask x
    aggregation x 1/denominator, 0 outside the loss) are float32 [T] and, like `lag` (int64 [T]),
    stand at the token that they speak of: entry t is about predicting ids[t] from what precedes it.
    `kept_counts` (int64 [T]) says how many of `kept_ids` (int64 [K], concatenated) each token was
    drawn from; 0: from the whole vocabulary. `score` (float32 [T]) is the member's outcome before
    any shaping, and `segment` (int64 [T]) the number of the turn within it: of the stretch between
    tokens that others wrote.

    Two more streams have counts of their own: tokens to imitate with `ce_weight`, and tokens to
    distil with `kl_weight`; each, like `weight`, is 0 outside its stream, and a token is inside
    where any of the three is not. Of what is known about a token under another model, `teacher` and
    `reference` are its log-prob (float32 [T], 0 where there is none), and `teacher_logprobs`
    (float32 [T, k]) those of `teacher_ids` (int64 [T, k]), the teacher's likeliest; k may be 0.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    sequence: torch.Tensor
    temperature: torch.Tensor
    behaviour: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    lag: torch.Tensor
    kept_counts: torch.Tensor
    kept_ids: torch.Tensor
    score: torch.Tensor
    segment: torch.Tensor
    ce_weight: torch.Tensor
    kl_weight: torch.Tensor
    teacher: torch.Tensor
    teacher_ids: torch.Tensor
    teacher_logprobs: torch.Tensor
    reference: torch.Tensor


class Packed(NamedTuple):
    """Of each token given those before it in its sequence, float32 [T]; 0 at a sequence's first.

    `entropy` (nats) belongs to the distribution that the token was drawn from; no gradient.
    `among` [T, k] has the log-probs of the pack's `teacher_ids`, and is None where it has none.
    """

    logp: torch.Tensor
    entropy: torch.Tensor
    among: torch.Tensor | None = None


class Tokens(NamedTuple):
    """What a loss sees of one pack: flat and aligned, float32 [T]; sequence, lag, segment int64.

    `anchor` is the log-prob that the ratio is taken against: the behaviour policy's, the trainer's
    own before the step, or one between them. Outside the stream (weight 0) all log-probs are 0.
    """

    logp: torch.Tensor
    anchor: torch.Tensor
    behaviour: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    sequence: torch.Tensor
    lag: torch.Tensor
    score: torch.Tensor
    segment: torch.Tensor
    reference: torch.Tensor
    teacher: torch.Tensor


class Advantage(Protocol):
    """Rewards [n] of one group, those that have one, to advantages [n]."""

    def __call__(self, rewards: torch.Tensor) -> torch.Tensor:
        """Raises Unusable for rewards that it is not for, which costs that group."""


class Graded(NamedTuple):
    """A group of a batch: its task, and what its advantage made of each reward, float64 [n]."""

    task: str
    values: torch.Tensor


@runtime_checkable
class Batchwise(Protocol):
    """What an advantage has besides where it depends on all groups of a batch, in their order."""

    def over_batch(self, groups: Sequence[Graded]) -> list[torch.Tensor]:
        """The advantages [n] of each group; changes nothing, and may be asked again."""


@runtime_checkable
class Observes(Protocol):
    """What an advantage has besides where it remembers former batches.

    Each is told once, in order, and again in a replay; `memory` and `recall` carry the rest.
    """

    def observe(self, groups: Sequence[Graded]) -> None: ...


class Loss(Protocol):
    """Tokens to a loss per token [T], to be minimised; knows no denominator."""

    def __call__(self, tokens: Tokens) -> torch.Tensor: ...


class Correction(Protocol):
    """Tokens to a weight per token [T], which the loss is multiplied by; 0 takes a token out.

    The weight carries no gradient, and what it takes out stays in the denominator.
    """

    def __call__(self, tokens: Tokens) -> torch.Tensor: ...


@runtime_checkable
class Wide(Protocol):
    """What a loss or a correction has besides where it depends on all tokens of a step.

    It sees them once before the step, pack by pack and without a gradient; this costs a forward
    pass more, and is done for those that ask for it by having these two.
    """

    def look(self, tokens: Tokens) -> torch.Tensor:
        """What a pack tells: any number of rows [n, c], which are put below each other."""

    def told(self, rows: torch.Tensor) -> Loss:
        """The loss or correction of this step, given the rows of all packs and ranks."""


class StepResult(NamedTuple):
    """One optimizer step: whether it was taken, and the gradient's norm before clipping."""

    finite: bool
    grad_norm: float


class PackLoss(Protocol):
    """Log-probs [T] of a pack's tokens to the scalar to differentiate.

    Where the pack has a teacher's likeliest ids, with their log-probs [T, k] as well.
    """

    def __call__(self, logp: torch.Tensor, *among: torch.Tensor) -> torch.Tensor: ...


class Snapshot(Protocol):
    """What a checkpoint holds of a back end, as it was. May be used from any thread."""

    def fingerprint(self) -> str:
        """Of the masters."""

    def write(self, folder: str) -> None:
        """`model/` and `state/` into a folder that has neither; the caller syncs and renames."""


class Backend(Protocol):
    """The model and its optimizer, as one whatever the number of ranks."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters, tied ones once; each may be gone when the next is asked for."""

    def save(self, folder: str) -> None:
        """Write the model as a Hugging Face folder, whole or not at all; it must not exist yet."""

    def masters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The float32 parameters that the optimizer moves; as `weights` otherwise."""

    def snapshot(self) -> Snapshot:
        """A copy in host memory of what a checkpoint holds."""

    def load_state(self, folder: str) -> None:
        """Take up the `state/` of a snapshot: training on is as if it had not stopped, bit for bit
        on as many ranks.

        Raises ConfigError where the state is another model's, or cannot be read.
        """

    def close(self) -> None:
        """Training is over: the other ranks end, too. Raises SluiceError where one is gone."""


class Rank(Backend, Protocol):
    """A back end as one process has it; accumulates gradients until `step`.

    With more ranks than one, each call but `last` is made by all of them, in the same order.
    """

    @property
    def last(self) -> Packed:
        """Of the latest pack, as it was in its backward, without a graph; for statistics."""

    def logprobs(self, pack: Pack) -> torch.Tensor:
        """Of the pack's tokens [T], on the CPU, without a gradient."""

    def backward(self, pack: Pack, loss: PackLoss) -> None: ...

    def step(self, learning_rate: float) -> StepResult: ...


class Sink(Protocol):
    """Takes the numbers of a run somewhere else. Called by a thread of its own, and by no other.

    Whatever it raises costs it a line, and the run nothing.
    """

    def write(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl, as it stands there; the oldest first.

        Each process begins with all that former ones wrote: `batch` tells which are known already.
        """

    def close(self) -> None:
        """There will be no other line."""
