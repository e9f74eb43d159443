"""One endpoint as scorers ask it over HTTP: JSON there and back, and which of its faults pass.

What is asked, and what makes a reply a verdict, is the scorers' own. Nothing is remembered here.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import httpx

from pipeline.verdicts import Fault, Passing
from services.scoring.scorers.remote.address import certificates, connections, key_of, url_of
from services.scoring.scorers.strict_json import each_once, no_constant

MOST_BYTES = 1 << 20
MOST_ERROR_BYTES = 1 << 16
LONGEST_WAIT_SECONDS = 60.0
SHORTEST_SECRET = 8
"""Characters. A shorter key, such as EMPTY, hides nothing, and may be a word of a reply."""

OK = 200
PASSING = (408, 425, 429)
SERVER_FAULTS = 500


class Client:
    """Posts to one URL over connections that are opened when needed and close with their loop.

    The time limit is the caller's; only to connect has one of its own. Redirects are not followed:
    they would carry the answer, and the key, to where nobody sent them. Proxies and certificates
    are those of the environment (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE), but for this very machine.
    """

    def __init__(self, url: str, *, path: str = "", key_variable: str = "") -> None:
        """`path` is put behind the URL's own; `key_variable` names where the key is.

        Asks nothing. Raises ConfigError for what is no URL, without the key, and for what of the
        environment cannot be used.
        """
        self.url = url_of(url, path)
        self._key = key_of(key_variable) if key_variable else ""
        self._connections = partial(connections, self.url, self._key, certificates())
        self._http = self._connections()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard: AsyncGenerator[None, None] | None = None

    async def ask(self, question: Mapping[str, Any]) -> str:
        """The reply's text. Raises Passing for what may be gone at the next try, and else Fault."""
        http = await self._of_this_loop()
        try:
            # Lone surrogates, which no UTF-8 can have, stay as JSON escapes them.
            content = json.dumps(question, allow_nan=False)
            async with http.stream("POST", self.url, content=content) as response:
                if response.status_code != OK:
                    raise self._refusal(response, await _start(response, MOST_ERROR_BYTES))
                payload = await _start(response, MOST_BYTES + 1)
        except httpx.TransportError as exc:
            raise Passing(self._told(f"{type(exc).__name__} {exc}")) from exc
        if len(payload) > MOST_BYTES:
            raise Fault("bad_verdict", f"the reply has more than {MOST_BYTES} bytes")
        return self._told(payload.decode("utf-8", "replace"))

    async def _of_this_loop(self) -> httpx.AsyncClient:
        """Connections belong to a loop, and an evaluation has one for every version."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop:
                self._http = self._connections()
            self._loop = loop
            self._guard = _closing(self._http)
            await anext(self._guard)  # a loop closes the generators that began on it
        return self._http

    def _refusal(self, response: httpx.Response, payload: bytes) -> Fault:
        status = response.status_code
        detail = self._told(f"HTTP {status}: {_message(payload.decode('utf-8', 'replace'))}")
        if status in PASSING or status >= SERVER_FAULTS:
            return Passing(detail, after=retry_after(response.headers.get("retry-after", "")))
        return Fault("unavailable", detail)

    def _told(self, text: str) -> str:
        """Faults are logged and kept: the key is not in them, also where an endpoint repeats it."""
        return text.replace(self._key, "***") if len(self._key) >= SHORTEST_SECRET else text


def strict_object(text: str) -> dict[str, Any]:
    """The one JSON object that the text is. Raises ValueError: also for a key that stands twice."""
    try:
        value = json.loads(text, object_pairs_hook=each_once, parse_constant=no_constant)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"{text!r:.80} is no JSON ({exc})") from exc
    if not isinstance(value, dict):
        raise ValueError(f"{text!r:.80} is no JSON object")
    return value


def retry_after(header: str) -> float | None:
    """Seconds, from a number of them or a date (RFC 9110, 10.2.3); None for what is neither."""
    if re.fullmatch(r"\d{1,9}(\.\d+)?", header.strip(), re.ASCII):
        seconds = float(header)
    else:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT_SECONDS)


async def _closing(http: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await http.aclose()


async def _start(response: httpx.Response, most: int) -> bytes:
    """Its first bytes, and whatever came with the last of them; the rest is never read."""
    payload = bytearray()
    async for chunk in response.aiter_raw():
        payload += chunk
        if len(payload) >= most:
            break
    return bytes(payload)


def _message(text: str) -> str:
    """What an endpoint says is wrong, where it says so as OpenAI's do, and else the text."""
    try:
        found: Any = json.loads(text)
        while isinstance(found, dict):
            found = next(found[name] for name in ("error", "message", "detail") if name in found)
    except (ValueError, RecursionError, StopIteration):
        return text
    return found if isinstance(found, str) else text
