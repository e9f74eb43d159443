"""The wire: what travels between services, one tag and schema version each.

Arrays travel as raw little-endian bytes (`ids` int32, `logprobs` float32), everything else as
msgpack. New fields get defaults and go last; a change of meaning gets a new tag.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Lane = Literal["train", "eval"]
Finish = Literal["stop", "length"]


class Span(Struct, frozen=True, array_like=True):
    """A run of tokens sampled by one version of the weights on one boot of an engine."""

    version: int
    tokens: int
    boot: str


class Sampling(Struct, frozen=True, kw_only=True):
    """How a member is sampled. Temperature 0 is greedy; top_p 1, top_k 0, min_p 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256

    @property
    def truncates(self) -> bool:
        """Whether some ids cannot be drawn, so that the kept ones are recorded. Greedy needs none.

        Temperature 0 is a choice and no distribution: its log-prob is 0 whatever was kept.
        """
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


class Prompt(Struct, frozen=True, kw_only=True, tag="prompt/1"):
    """One task, to be attempted by `members` members of one group.

    `seq` is the order of admission; `seed` the run's seed, from which each member's noise derives
    together with the group and the member; `reference` is JSON that only the scorer reads. With
    `error` set nobody can attempt it: it takes its place in the order, and becomes a dead letter.

    A held-out prompt (lane `eval`) is answered by version `pin` alone; `noise` stands for its group
    where noise is made, so that every version draws by the same.
    """

    group: str
    seq: int
    ids: bytes
    members: int
    sampling: Sampling
    seed: int = 0
    task: str = ""
    reference: bytes = b"null"
    lane: Lane = "train"
    pin: int | None = None
    error: str = ""
    noise: str = ""


class Kept(Struct, frozen=True, kw_only=True):
    """Which token ids each position could have drawn, under top-p, top-k or min-p.

    `counts` (int32, one a token) says how many of `ids` (int32, concatenated, ascending within a
    position) belong to each; 0 stands for the whole vocabulary.
    """

    counts: bytes
    ids: bytes


class Turn(Struct, frozen=True, array_like=True):
    """A run of tokens by one author: the policy, a tool, or the environment."""

    author: Literal["policy", "tool", "environment"]
    tokens: int


class Completion(Struct, frozen=True, kw_only=True, tag="completion/1"):
    """The tokens of one member: ids and log-probs [T], spans that add up to T.

    `finish` None marks a saved prefix that another engine may resume. `mask` lists runs
    `(start, stop)` that no loss may count; `routes` names a blob with the experts of an MoE.
    """

    group: str
    member: int
    ids: bytes
    logprobs: bytes
    spans: tuple[Span, ...]
    engine: str = ""
    finish: Finish | None = None
    kept: Kept | None = None
    mask: tuple[tuple[int, int], ...] = ()
    turns: tuple[Turn, ...] = ()
    routes: str | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens, T."""
        return len(self.ids) // 4


class Teaching(Struct, frozen=True, kw_only=True):
    """What a teacher thinks of a completion's tokens: their log-probs [T] under it, float32.

    `top_logprobs` (float32 [T, k]) are those of its k likeliest ids at each place, `top_ids` (int32
    [T, k]), and may be left out; where it has fewer than k, -inf fills them up.
    """

    logprobs: bytes
    top_ids: bytes = b""
    top_logprobs: bytes = b""


class Score(Struct, frozen=True, kw_only=True, tag="score/1"):
    """What a scorer made of one member. With `error` set there is no reward at all.

    `outcome` is the verdict before shaping; `parts` the reward by scorer, and `shadow` that of
    those which only watch; `values` optional per-token values [T], float32; `teaching` what a
    teacher among the scorers said.
    """

    reward: float | None
    outcome: float | None = None
    scorer: str = ""
    parts: dict[str, float] = {}
    shadow: dict[str, float] = {}
    error: str | None = None
    values: bytes = b""
    teaching: Teaching | None = None


class Tensor(Struct, frozen=True, array_like=True):
    """One tensor of a version: its name, dtype, shape, and the checksum of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str


class Blob(Struct, frozen=True, kw_only=True, tag="blob/1"):
    """Stands for a message that is too large for one value: so many pieces hold its bytes.

    `name` is what their keys are named by, `digest` the checksum of all bytes: blake2b, 16 bytes.
    """

    name: str
    pieces: int
    digest: str


class Canary(Struct, frozen=True, kw_only=True):
    """A short prompt (`ids` int32 [T]) and what the trainer finds of it under a version.

    `logprobs` (float32 [T - 1]) are those of all ids but the first, each given the ids before it,
    at temperature 1 over the whole vocabulary.
    """

    ids: bytes
    logprobs: bytes


class Manifest(Struct, frozen=True, kw_only=True, tag="manifest/1"):
    """A version of the policy's weights as announced: what to fetch, where, and its proof."""

    version: int
    step: int
    epoch: int
    fingerprint: str
    location: str
    tensors: tuple[Tensor, ...] = ()
    base: int | None = None
    canary: Canary | None = None


class Starved(Struct, frozen=True, array_like=True):
    """Members whose share of what is trained is far below their share of what was sampled.

    They are of one `task`, or of one `length`: up to `name` tokens.
    """

    by: Literal["task", "length"]
    name: str
    trained_share: float
    sampled_share: float


class Beat(Struct, frozen=True, kw_only=True, tag="beat/1"):
    """What a process says of itself once a second. `totals` only ever grow within a boot.

    `http` is the address of its metrics; `waiting_for` names what blocks it, or is None, and
    `waited_seconds` says since when, as a duration, since clocks differ. `turn_seconds` is how long
    its loop has been in one turn, and 0 in an act that was declared to be long. `curves` are
    numbers over the steps of the run, thinned, as (step, value); `starved` is told by the trainer.
    An engine keeps version `pinned` for its evaluation, or none (-1).
    """

    service: str
    instance: str
    boot: str
    pid: int = 0
    process: str = ""
    """The same for all boots of a process and for no other's: a container that is started again
    has the pid that it had."""
    http: str = ""
    waiting_for: str | None = None
    version: int = -1
    totals: dict[str, float] = {}
    gauges: dict[str, float] = {}
    waited_seconds: float = 0.0
    turn_seconds: float = 0.0
    curves: dict[str, tuple[tuple[float, float], ...]] = {}
    starved: tuple[Starved, ...] = ()
    pinned: int = -1


Message = Prompt | Completion | Score | Blob | Manifest | Beat


class Work(Struct, frozen=True, kw_only=True):
    """A group as an engine takes it: the members still to do, and the prefixes saved of them."""

    prompt: Prompt
    todo: tuple[int, ...]
    prefixes: dict[int, Completion] = {}


class Member(Struct, frozen=True, kw_only=True):
    """A member as the trainer reads it; `score` is None where it was not scored in time."""

    completion: Completion
    score: Score | None = None


class Group(Struct, frozen=True, kw_only=True):
    """A released group: its delivered members by number, and why others failed."""

    prompt: Prompt
    start_step: int
    members: dict[int, Member]
    failed: dict[int, str] = {}
