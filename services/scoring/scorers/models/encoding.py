"""How a prompt and its answer become the ids that a model of another family reads."""

from __future__ import annotations

from pipeline.model.source import check_folder
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import Answer, ChatMessage


class Encoding:
    """The policy's own ids where they mean the same to both; else the texts, written out anew.

    As a chat where that model has a template: the user's message, and the system's, if the prompt
    is what the policy's own template makes of them; of any other prompt the whole text, as a
    user's. Without a template the answer stands right behind the prompt.
    """

    def __init__(self, path: str, policy: str, *, at: str) -> None:
        """Raises ConfigError for a tokenizer that cannot be had; `at` is the key of `path`."""
        check_folder(path, at=at)
        self._own, self._policy = Tokenizer(path), Tokenizer(policy)
        self.is_shared = self._own.describe() == self._policy.describe()

    def __call__(self, answer: Answer) -> list[int]:
        """The ids, prompt first; by the texts alone where the prompt's own are not told. Raises
        Unusable, and whatever a template does that refuses the chat.
        """
        ids = answer.drawn.prompt if answer.drawn else b""
        if ids and self.is_shared:
            return [*memoryview(ids).cast("i"), *answer.ids]
        chat = self._policy.parted(ids) if ids else ()
        said = chat or (ChatMessage("user", answer.prompt),)
        return self._own.encode_exchange(said, answer.text)
