"""The endpoint: which paths it knows, and a request from its arrival to the last of its answer.

Runs in the threads of the process's HTTP server. It reads no file and owns no engine: what is asked
goes through the inbox.
"""

from __future__ import annotations

import hmac
import logging
import os
import time
from http.server import BaseHTTPRequestHandler

import msgspec

from pipeline.life import Life
from pipeline.messages import Sampling
from pipeline.model.tokens import Tokenizer
from pipeline.run import Run
from services.inference.metrics import Numbers
from services.inference.openai.answers import Answers
from services.inference.openai.exchange import Exchange
from services.inference.openai.forms import ChatForm, Form, TextForm
from services.inference.openai.inbox import Guest, Inbox
from services.inference.openai.rejections import Rejection, unavailable
from services.inference.openai.requests import ChatAsked, TextAsked, parse
from services.inference.openai.responses import ModelCard, Models
from services.inference.openai.tasks import Tasks

log = logging.getLogger(__name__)

KEY_VARIABLE = "SLUICE_ENDPOINT_KEY"
"""The key that every request has to bring, where it is set."""
ROOT = "/v1/"
MODELS = "/v1/models"
FORMS: dict[str, tuple[type[TextAsked] | type[ChatAsked], type[Form]]] = {
    "/v1/completions": (TextAsked, TextForm),
    "/v1/chat/completions": (ChatAsked, ChatForm),
}
PATIENCE_SECONDS = 0.25
"""Between two looks whether a client is still there."""
OUTCOMES = {200: "answered", 429: "crowded", 503: "unavailable", 500: "failed"}
"""What is counted of a request, by its status; of all other statuses, `refused`."""


class Endpoint:
    """Answers what is asked below /v1/, each request in a thread of its own."""

    def __init__(
        self,
        inbox: Inbox,
        tasks: Tasks,
        tokenizer: Tokenizer,
        *,
        run: Run,
        life: Life,
        numbers: Numbers,
    ) -> None:
        self._inbox, self._tasks, self._tokenizer = inbox, tasks, tokenizer
        self._run, self._life, self._numbers = run, life, numbers
        self._names = (run.name, run.model.path)
        self._since, self._key = int(time.time()), os.environ.get(KEY_VARIABLE, "")

    def __call__(self, handler: BaseHTTPRequestHandler) -> bool:
        """Answer the request, if it is for this endpoint; whether it is."""
        if not handler.path.startswith(ROOT):
            return False
        outcome = self._outcome(Exchange(handler))
        self._numbers.endpoint_requests.labels(outcome=outcome).inc()
        return True

    def _outcome(self, exchange: Exchange) -> str:
        try:
            self._answer(exchange)
        except Rejection as exc:
            return self._reject(exchange, exc)
        except OSError:  # of the client's connection
            return "left"
        except Exception:  # one request: it costs that, and the service goes on
            log.exception("path=%s failed", exchange.path)
            failed = Rejection(500, "The request failed; the log says why.", kind="server_error")
            return self._reject(exchange, failed)
        return OUTCOMES[200]

    def _reject(self, exchange: Exchange, rejection: Rejection) -> str:
        try:
            if exchange.has_begun:
                exchange.event(rejection.json())
                exchange.end()
            else:
                exchange.reply(rejection.status, rejection.json(), rejection.headers())
        except OSError:
            return "left"
        return OUTCOMES.get(rejection.status, "refused")

    def _answer(self, exchange: Exchange) -> None:
        """Raises Rejection, and OSError once the client has gone."""
        body = exchange.body() if exchange.method == "POST" else b""
        if self._key and not hmac.compare_digest(self._key.encode(), exchange.key.encode()):
            raise Rejection(401, f"The key is not that of {KEY_VARIABLE}.", code="invalid_api_key")
        match exchange.method, exchange.path:
            case "GET", path if path == MODELS:
                exchange.reply(200, msgspec.json.encode(Models(data=[self._card()])))
            case "GET", path if path.startswith(f"{MODELS}/"):
                self._check_model(path.removeprefix(f"{MODELS}/"))
                exchange.reply(200, msgspec.json.encode(self._card()))
            case "POST", path if path in FORMS:
                self._generate(exchange, body)
            case method, path:
                known = f"GET {MODELS}, POST {' and '.join(FORMS)}"
                raise Rejection(404, f"Unknown: {method} {path}. There are {known}.")

    def _generate(self, exchange: Exchange, body: bytes) -> None:
        kind, form = FORMS[exchange.path]
        asked = parse(body, kind)
        self._check_model(asked.model)
        self._inbox.check(asked.size)  # before the prompts are encoded, which takes its time
        works = self._tasks.works(asked)
        answers = Answers(works, self._tokenizer.decode, asked.stops)
        written = form(asked, answers, self._tokenizer, run=self._run.name)
        guest = Guest(works, watched=asked.stream or bool(asked.stops))
        self._inbox.enter(guest)
        try:
            self._follow(exchange, guest, answers, written if asked.stream else None)
            if not asked.stream:
                exchange.reply(200, written.response())
                return
            if asked.stream_options.include_usage:
                exchange.event(written.last_event())
            exchange.event(b"[DONE]")
            exchange.end()
        finally:
            self._inbox.leave(guest)
            self._numbers.endpoint_tokens.inc(answers.num_tokens)

    def _follow(
        self, exchange: Exchange, guest: Guest, answers: Answers, stream: Form | None
    ) -> None:
        """Until every answer is whole; its pieces leave one by one where they are streamed."""
        while not answers.are_whole:
            for known in guest.news(PATIENCE_SECONDS):
                answer = answers.of(known)
                piece = answer.grow(known)
                if piece and stream:
                    exchange.event(stream.event(answer, piece))
            if exchange.is_over:
                raise ConnectionResetError("the client has gone")
            if not self._life.healthy:
                raise unavailable("the engine's loop makes no progress")

    def _check_model(self, name: str) -> None:
        if name not in self._names:
            known = " and ".join(f"`{one}`" for one in dict.fromkeys(self._names))
            message = f"The model `{name}` does not exist; {known} name the policy."
            raise Rejection(404, message, param="model", code="model_not_found")

    def _card(self) -> ModelCard:
        version = self._life.version
        return ModelCard(
            id=self._run.name,
            created=self._since,
            root=self._run.model.path,
            version=version if version >= 0 else None,
        )


def build(run: Run, inbox: Inbox, *, life: Life, numbers: Numbers) -> Endpoint:
    """Raises ConfigError where the model's tokenizer cannot be had."""
    texts = Tokenizer(run.model.path)
    template = run.model.template
    tasks = Tasks(
        texts,
        Tokenizer(run.model.path, template=template) if template else texts,
        sampling=msgspec.convert(run.sampling, Sampling, from_attributes=True),
        members=run.groups.members,
    )
    return Endpoint(inbox, tasks, texts, run=run, life=life, numbers=numbers)
