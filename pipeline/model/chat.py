"""Chats as text: the template that writes a list of messages out, up to where the policy speaks."""

from __future__ import annotations

import os
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

    def _render(self, chat: tuple[ChatMessage, ...]) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                msgspec.to_builtins(chat),
                chat_template=self._template,
                add_generation_prompt=True,
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
