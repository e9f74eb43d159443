"""Chats as text: the template that writes a list of messages out, up to where the policy speaks;
and the way back, for a model that writes chats in another way.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from pipeline.errors import ConfigError, Unusable
from pipeline.protocols import ChatMessage, Text

OWN = "own"
"""As a template: the tokenizer's."""

_WHERE = "model.template"
_PROBE = (ChatMessage("user", "?"),)
_ROLES = (("user",), ("system", "user"))
"""Of the chats that are read back."""
_MARK = "\ue000%d\ue001"
"""For private use: no text has it."""


class Chat:
    """A tokenizer's chats, written by a jinja file, or by the template that it came with."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        """`template` is a file or "own", for texts as well; or empty: "own", for chats alone.

        Raises ConfigError for one that cannot be had, or that is no jinja.
        """
        self._tokenizer, self._for_texts = tokenizer, bool(template)
        if template in ("", OWN):
            self._template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        else:
            self._template = _read(template)
        if template:
            self._check(template)

    @property
    def is_there(self) -> bool:
        """Whether there is a template."""
        return bool(self._template)

    def check(self, prompt: Text) -> None:
        """Raises Unusable where the prompt is a chat and there is no template for any."""
        if not isinstance(prompt, str) and not self._template:
            raise Unusable(
                _WHERE,
                None,
                reason="not_encoded",
                rule="the data holds chats, and the model's tokenizer has no chat template",
                remedy="name a jinja file, or write the prompts as texts",
            )

    def written(self, prompt: Text, at: str) -> str:
        """The prompt `at` a place of the data as one text; raises Unusable for a chat that no
        template writes.
        """
        if isinstance(prompt, str) and not self._for_texts:
            return prompt
        self.check(prompt)
        chat = (ChatMessage("user", prompt),) if isinstance(prompt, str) else prompt
        try:
            return self._render(chat)
        except Exception as exc:  # a template is code: whatever it raises is about this chat
            raise Unusable(
                at,
                msgspec.to_builtins(chat),
                reason="not_encoded",
                rule=f"the chat template refuses it ({exc})",
                remedy="correct the chat, or choose another template",
            ) from exc

    def answered(self, chat: tuple[ChatMessage, ...], answer: str) -> str:
        """A whole exchange: the chat, and the answer as the assistant's turn. Without a template
        one text behind the other. Raises whatever a template does that refuses it.
        """
        if not self._template:
            return "".join(message.content for message in chat) + answer
        return self._render((*chat, ChatMessage("assistant", answer)), whole=True)

    def parted(self, text: str) -> tuple[ChatMessage, ...]:
        """The chat that the template made this text of: a user's message, or the system's and one.
        Empty where it did not, or of more messages.
        """
        special = self._tokenizer.all_special_tokens  # stand between messages, and in none
        for roles, pattern in self._patterns.items():
            found = pattern.fullmatch(self._without_front(text))
            if found and not any(
                token in content for token in special for content in found.groups()
            ):
                return tuple(map(ChatMessage, roles, found.groups()))
        return ()

    @cached_property
    def _patterns(self) -> dict[tuple[str, ...], re.Pattern[str]]:
        """By the roles of some messages, of all texts that the template makes of such ones."""
        out: dict[tuple[str, ...], re.Pattern[str]] = {}
        for roles in _ROLES if self._template else ():
            marks = [_MARK % number for number in range(len(roles))]
            try:
                text = self._render(tuple(map(ChatMessage, roles, marks)))
            except Exception:  # a template is code, and may not take a system's message
                continue
            parts = re.split("|".join(marks), self._without_front(text))
            if len(parts) == len(roles) + 1:
                out[roles] = re.compile("(.*)".join(map(re.escape, parts)), re.DOTALL)
        return out

    def _without_front(self, text: str) -> str:
        return text.removeprefix(self._tokenizer.bos_token or "")

    def _render(self, chat: tuple[ChatMessage, ...], *, whole: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                msgspec.to_builtins(chat),
                chat_template=self._template,
                add_generation_prompt=not whole,
                tokenize=False,
            )
        )

    def _check(self, template: str) -> None:
        if not self._template:
            rule, remedy = "there is no chat template in it", "name a jinja file"
            raise ConfigError(_WHERE, template, rule=rule, remedy=remedy)
        try:
            self._render(_PROBE)
        except jinja2.TemplateSyntaxError as exc:
            rule = f"is no jinja template (line {exc.lineno}: {exc.message})"
            raise ConfigError(_WHERE, template, rule=rule, remedy="correct the file") from exc
        except Exception:  # it may refuse this very chat, for want of a system message say
            return


def _read(path: str) -> str:
    try:
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            _WHERE,
            path,
            rule=f"cannot be read ({exc})",
            remedy=f"name a jinja file, or {OWN!r}; relative paths start where sluice was called",
        ) from exc
