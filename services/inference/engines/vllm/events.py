"""What vLLM's thread tells the engine's thread, in the order in which it happened. Torch-free."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    """More tokens of a request, with their log-probs; `finish` as vLLM says it, or None.

    `kept` has for each token the ids that could be drawn, where that was asked for. `versions` come
    with the last tokens: the label and the number of tokens of each run.
    """

    request: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None = None
    kept: tuple[tuple[int, ...], ...] = ()
    versions: tuple[tuple[str, int], ...] | None = None


class Failed(NamedTuple):
    """A request ended by an error, which is nobody's but vLLM's."""

    request: str
    error: Exception


Event = Told | Failed
