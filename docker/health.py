"""Health of the service in this container: exit code 0 once it is ready.

Docker knows one state, so this says the other in words, which `docker inspect` keeps: "alive, not
ready yet" (a model loads) is no "dead" (the loop hangs, or nothing answers). Standard library only:
it runs every few seconds.
"""

from http.client import HTTPConnection
from sys import exit

PORT = 9464
SECONDS = 4.0


def asks(path: str) -> bool:
    """Whether the answer is yes. Raises OSError where there is none."""
    connection = HTTPConnection("127.0.0.1", PORT, timeout=SECONDS)
    connection.request("GET", path)
    return connection.getresponse().status == 200


def state() -> str:
    """One of: ready; alive, not ready yet; dead, with what is known of it."""
    try:
        if not asks("/healthz"):
            return "dead: its loop makes no progress"
        return "ready" if asks("/readyz") else "alive, not ready yet"
    except OSError as exc:
        return f"dead, or not begun: {exc}"


if __name__ == "__main__":
    found = state()
    print(found)
    exit(found != "ready")
