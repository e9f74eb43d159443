"""Why a request of the endpoint is not answered, in the words and the JSON of OpenAI's API."""

from __future__ import annotations

import msgspec

from pipeline.errors import SluiceError

RETRY_SECONDS = 1
"""When to come again: a place is free as soon as somebody's last token is there."""


class Rejection(SluiceError):
    """An HTTP status, and what OpenAI's clients find in `error`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code, self.retry_seconds = param, code, retry_seconds

    def json(self) -> bytes:
        """The body of the response, or an event of a stream that had begun."""
        about = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": about})

    def headers(self) -> dict[str, str]:
        """Those that go with it."""
        return {} if self.retry_seconds is None else {"Retry-After": str(self.retry_seconds)}


def invalid(message: str, param: str | None = None, code: str | None = None) -> Rejection:
    """The request is at fault."""
    return Rejection(400, message, param=param, code=code)


def crowded(wanted: int, places: int) -> Rejection:
    """All places are taken: the run's own work comes first."""
    message = f"{wanted} of the {places} places are not free now (inference.endpoint)"
    return Rejection(
        429,
        message,
        kind="requests",
        code="rate_limit_exceeded",
        retry_seconds=RETRY_SECONDS,
    )


def unavailable(reason: str) -> Rejection:
    """Nothing can be sampled now, whatever is asked."""
    kind, code = "server_error", "service_unavailable"
    return Rejection(503, reason, kind=kind, code=code, retry_seconds=RETRY_SECONDS)
