"""Servers that no run can use, each refused in one line; and every way to reach one that it can.

TLS needs a server that was built with it, such as Debian's `redis-server`; without one its tests
are skipped.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from servers import Server, free_port, running

from pipeline.bus import connection
from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError

SIZES = {"window": 4, "per_step": 1, "lag_max": 0, "members": 1}


def _line(url: str) -> str:
    with pytest.raises(ConfigError) as excinfo:
        Bus.connect(url, "run")
    line = str(excinfo.value)
    assert "\n" not in line and "; " in line, "what, where, the rule; the remedy"
    return line


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(port=str(free_port())) as server:
        yield server


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        yield client


def test_a_replica_is_refused_and_its_primary_named(server: Server, admin: redis.Redis) -> None:
    admin.replicaof("127.0.0.1", "1")
    try:
        line = _line(server.url)
        assert "takes no writes" in line and "127.0.0.1:1" in line and str(server.socket) in line
    finally:
        admin.replicaof("NO", "ONE")
    Bus.connect(server.url, "run").close()


def test_a_server_says_which_process_it_is(server: Server, admin: redis.Redis) -> None:
    with contextlib.closing(Bus.connect(server.url, "run")) as bus:
        about = bus.server()
        assert Path(f"/proc/{about['process_id']}/cwd").resolve() == server.folder
        assert about["run_id"] == admin.info("server")["run_id"]


def test_a_server_that_still_loads_is_waited_for_and_then_named() -> None:
    with running(save="3600 1", appendonly="no", loading_process_events_interval_bytes="1024") as s:
        with redis.Redis(unix_socket_path=str(s.socket)) as client, client.pipeline() as pipe:
            for number in range(3000):
                pipe.set(f"k{number}", "x" * 100)
            pipe.execute()
            client.save()
        s.options["key-load-delay"] = "1000"  # microseconds
        s.restart(wait=False)
        assert s.answers(b"LOADING")
        with pytest.raises(ConfigError, match="still reads its data from disk") as excinfo:
            client = connection.client_of(s.url, retries=0)
            connection.check_fitness(client, s.url, patience_seconds=0)
        assert s.url in str(excinfo.value) and "\n" not in str(excinfo.value)
        Bus.connect(s.url, "run").close()


def test_a_new_run_is_refused_by_a_server_that_is_full_and_a_former_one_goes_on(
    server: Server, admin: redis.Redis
) -> None:
    bus, other = Bus.connect(server.url, "former"), Bus.connect(server.url, "new")
    bus.open({}, **SIZES)
    admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] * 1.2))
    try:
        bus.open({}, **SIZES)
        with pytest.raises(ConfigError, match="beyond 75 % a run admits nothing") as excinfo:
            other.open({}, **SIZES)
        line = str(excinfo.value)
        assert "raise maxmemory" in line and str(server.socket) in line and "\n" not in line
        assert admin.exists(other.groups._scripts.keys.run) == 0
    finally:
        admin.config_set("maxmemory", 0)
    for run in (bus, other):
        run.open({}, **SIZES)
        run.purge(), run.close()


class Access(NamedTuple):
    """A user of the server; `refused` are credentials that do not let him in."""

    good: str
    refused: tuple[str, ...]


ACCESS = {
    "password": Access(":sesame@", ("", ":wrong@", "somebody:sesame@")),
    "user": Access("sluice:open%21@", ("sluice:wrong@", "sluice@", "somebody:open%21@")),
}


@pytest.mark.parametrize("name", ACCESS)
def test_passwords_and_users_of_the_url_are_used_and_never_shown(
    server: Server, admin: redis.Redis, name: str
) -> None:
    admin.acl_setuser(
        "sluice", enabled=True, passwords=["+open!"], keys=["sluice:*"], categories=["+@all"]
    )
    admin.config_set("requirepass", "sesame")
    address = f"127.0.0.1:{server.options['port']}/0"
    try:
        for credentials in ACCESS[name].refused:
            line = _line(f"redis://{credentials}{address}")
            assert "refused the name or the password" in line
            assert "wrong" not in line and "sesame" not in line and "open" not in line
        bus = Bus.connect(f"redis://{ACCESS[name].good}{address}", "run")
        bus.open({}, **SIZES)
        assert bus.state().version == -1
        bus.purge(), bus.close()
    finally:
        with redis.Redis(unix_socket_path=str(server.socket), password="sesame") as again:
            again.config_set("requirepass", "")
        admin.acl_deluser("sluice")


def test_a_unix_socket_takes_credentials_too(server: Server, admin: redis.Redis) -> None:
    admin.acl_setuser(
        "sluice", enabled=True, passwords=["+open"], keys=["sluice:*"], categories=["+@all"]
    )
    try:
        bus = Bus.connect(f"unix://sluice:open@{server.socket}", "run")
        bus.open({}, **SIZES)
        bus.purge(), bus.close()
        assert "refused the name" in _line(f"unix://sluice:shut@{server.socket}")
    finally:
        admin.acl_deluser("sluice")


def test_a_user_who_may_not_see_the_run_s_keys_is_told_so(
    server: Server, admin: redis.Redis
) -> None:
    admin.acl_setuser("blind", enabled=True, nopass=True, keys=["other:*"], categories=["+@all"])
    try:
        bus = Bus.connect(f"unix://blind:x@{server.socket}", "run")
        with pytest.raises(ConfigError, match=r"lacks a right on sluice:\{run\}:") as excinfo:
            bus.open({}, **SIZES)
        assert "sluice doctor RUN.toml --acl" in str(excinfo.value)
        assert "\n" not in str(excinfo.value)
        # What docs/deployment.md gives to whoever runs `up` and `purge`.
        everything = "resetkeys ~sluice:{run}:* +@all -@dangerous +info"
        admin.execute_command("ACL", "SETUSER", "blind", *everything.split())
        bus.open({}, **SIZES)
        assert bus.prompts.admit([], cursor=0, next_cursor=0, eof=True) == "ok"
        bus.snapshot(), bus.audit(), bus.purge(), bus.close()
    finally:
        admin.acl_deluser("blind")


# TLS.


def _with_tls() -> str | None:
    for executable in (shutil.which("redis-server"), shutil.which("valkey-server")):
        if executable and shutil.which("openssl"):
            linked = subprocess.run(["ldd", executable], capture_output=True, check=False).stdout
            if b"libssl" in linked:
                return executable
    return None


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def safe_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    executable = _with_tls()
    if not executable:
        pytest.skip("no server here was built with TLS (Debian's redis-server is)")
    folder = tmp_path_factory.mktemp("tls")
    authority, key, request, certificate = (
        str(folder / name) for name in ("ca.pem", "key.pem", "request.pem", "certificate.pem")
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    subject = ("-subj", "/CN=an authority of our own", "-days", "2", "-x509")
    _openssl(*new, *subject, "-keyout", str(folder / "ca.key"), "-out", authority)
    _openssl(*new, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    signed = ("x509", "-req", "-in", request, "-CA", authority, "-CAkey", str(folder / "ca.key"))
    names = ("-CAcreateserial", "-days", "2", "-extfile", str(folder / "names"))
    _openssl(*signed, *names, "-out", certificate)
    options = {
        "tls-port": str(free_port()),
        "tls-cert-file": certificate,
        "tls-key-file": key,
        "tls-ca-cert-file": authority,
        "tls-auth-clients": "no",
    }
    with running(executable, **options) as server:
        yield server, Path(authority)


def test_rediss_with_an_authority_of_one_s_own(safe_server: tuple[Server, Path]) -> None:
    server, authority = safe_server
    url = f"rediss://127.0.0.1:{server.options['tls-port']}/0"
    bus = Bus.connect(f"{url}?ssl_ca_certs={authority}", "run")
    bus.open({}, **SIZES)
    assert bus.state().version == -1
    bus.purge(), bus.close()
    line = _line(url)
    assert "certificate is not one that this machine trusts" in line
    assert "?ssl_ca_certs=" in line and server.options["tls-port"] in line


def test_a_plain_url_of_a_port_that_wants_tls(safe_server: tuple[Server, Path]) -> None:
    server, _ = safe_server
    assert "no server answers there" in _line(f"redis://127.0.0.1:{server.options['tls-port']}/0")


def test_a_message_names_the_kind_of_connection(safe_server: tuple[Server, Path]) -> None:
    server, authority = safe_server
    port = server.options["tls-port"]
    url = f"rediss://me:secret@127.0.0.1:{port}/0?ssl_ca_certs={authority}"
    assert connection.masked(connection.client_of(url)) == f"rediss://127.0.0.1:{port}"
