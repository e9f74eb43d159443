"""Health of the service in this container: exit code 0 once it is ready.

Docker knows one state, so this says the other in words, which `docker inspect` keeps: "alive, not
ready: it starts" is no "dead" (the loop hangs, or nothing answers). Standard library only: it runs
every few seconds.
"""

from http.client import HTTPConnection, HTTPException
from sys import exit

PORT = 9464
SECONDS = 4.0


def trouble(port: int, path: str) -> str:
    """What the service says is wrong; empty where it says yes. Raises OSError, HTTPException."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("GET", path)
    reply = connection.getresponse()
    return "" if reply.status == 200 else reply.read().decode().strip()


def state(port: int = PORT) -> str:
    """It is ready, or alive, or dead; the latter two with the reason."""
    try:
        if why := trouble(port, "/healthz"):
            return f"dead: {why}"
        why = trouble(port, "/readyz")
        return f"alive, not ready: {why}" if why else "ready"
    except (OSError, HTTPException) as exc:
        return f"dead, or not begun: {exc}"


if __name__ == "__main__":
    found = state()
    print(found)
    exit(found != "ready")
