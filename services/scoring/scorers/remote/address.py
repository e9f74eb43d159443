"""Where an endpoint is, the key to it, and the way there: checked before anything is asked of it.

The key stands in the environment and never in a run's file, which is shown, stored and shared.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl

import httpx

from pipeline.errors import ConfigError
from pipeline.verdicts import AT

CONNECT_SECONDS = 5.0
IDLE_CONNECTIONS = 64
IDLE_SECONDS = 4.0
"""Less than the five after which many servers close a connection, maybe just as it is used."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY = re.compile(r"[!-~]+")  # what a header can carry without a question


def url_of(url: str, path: str) -> httpx.URL:
    """The URL, `path` behind its own; raises ConfigError for what is none, or holds a password."""
    try:
        found = httpx.URL(url)
        found.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError) as exc:
        rule, remedy = f"is no URL ({exc})", "write http://HOST:PORT/PATH"
        raise ConfigError(f"{AT}.url", url, rule=rule, remedy=remedy) from exc
    if found.userinfo:
        rule, remedy = "holds a name or a password", "leave it out, and see key_variable"
        raise ConfigError(f"{AT}.url", None, rule=rule, remedy=remedy)
    if found.scheme not in ("http", "https") or not found.host or found.fragment:
        rule, remedy = "is no http:// or https:// URL", "write http://HOST:PORT/PATH"
        raise ConfigError(f"{AT}.url", url, rule=rule, remedy=remedy)
    if path and found.path.rstrip("/").endswith(path):
        remedy = f"write it without {path}, which is added"
        raise ConfigError(f"{AT}.url", url, rule=f"ends with {path}", remedy=remedy)
    return found.copy_with(path=found.path.rstrip("/") + path) if path else found


def key_of(variable: str) -> str:
    """The key that the variable holds; raises ConfigError.

    Of what is no variable's name nothing is shown: it may be the key itself.
    """
    at, remedy = f"{AT}.key_variable", "name an environment variable that holds the key"
    if not _VARIABLE.fullmatch(variable):
        rule = "is no name of a variable (capitals, digits and _)"
        raise ConfigError(at, None, rule=rule, remedy=remedy)
    key = os.environ.get(variable, "").strip()
    if not key:
        remedy = f"export {variable}, or leave key_variable out where no key is needed"
        raise ConfigError(at, variable, rule="is not set in the environment", remedy=remedy)
    if not _KEY.fullmatch(key):
        rule = "holds what no header can carry (a space, a line break, a letter beyond ASCII)"
        raise ConfigError(at, variable, rule=rule, remedy="export the key alone")
    return key


def certificates() -> ssl.SSLContext:
    """Those that are trusted, read once; raises ConfigError."""
    try:
        return httpx.create_ssl_context()
    except OSError as exc:
        rule = f"the certificates of the environment cannot be read ({exc})"
        remedy = "mend SSL_CERT_FILE or SSL_CERT_DIR"
        raise ConfigError(f"{AT}.url", None, rule=rule, remedy=remedy) from exc


def connections(url: httpx.URL, key: str, trusted: ssl.SSLContext) -> httpx.AsyncClient:
    """None of them open yet; raises ConfigError for a proxy that cannot be one.

    Compressed replies are not asked for: they could be of any size once they are unpacked.
    """
    headers = {"accept-encoding": "identity", "content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        return httpx.AsyncClient(
            headers=headers,
            verify=trusted,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(
                max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=IDLE_SECONDS
            ),
            trust_env=not _is_here(url.host),
        )
    except (httpx.InvalidURL, ValueError, ImportError) as exc:
        rule = f"the proxy of the environment cannot be used ({exc})"
        remedy = "mend HTTPS_PROXY, HTTP_PROXY and ALL_PROXY"
        raise ConfigError(f"{AT}.url", str(url), rule=rule, remedy=remedy) from exc


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
