"""The sandbox of the scorer `code`: what it denies and ends, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sandboxes import answer, code_or_skip, numbers

from pipeline.messages import Score
from pipeline.run import Scoring as ScoringKeys
from services.scoring.ensemble import make_ensemble
from services.scoring.scorers.code import cgroup
from services.scoring.scorers.code.box import watch
from services.scoring.scorers.code.cgroup import Groups
from services.scoring.scorers.code.inside import launch
from services.scoring.scorers.code.limits import OUTPUT_BYTES, Limits
from services.scoring.scorers.code.probe import check_sandbox
from services.scoring.scorers.code.sandbox import Sandbox
from services.scoring.scorers.code.scorer import Code
from services.scoring.scorers.code.walls import Python, is_open_to_all

TEST_SECONDS = 1.0
HASTY_SECONDS = 2.0
SLACK_SECONDS = 2.0
PATIENCE_SECONDS = 30.0
SUM = {"tests": [{"stdin": "1 2\n", "stdout": "3"}]}
SUMS = "print(sum(map(int, input().split())))"


@pytest.fixture(scope="module")
def code() -> Code:
    """Patient: this machine may have much else to do."""
    return code_or_skip(test_seconds=PATIENCE_SECONDS, all_seconds=PATIENCE_SECONDS, processes=16)


@pytest.fixture(scope="module")
def hasty() -> Code:
    return code_or_skip(test_seconds=HASTY_SECONDS, all_seconds=HASTY_SECONDS, processes=16)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    code_or_skip()
    return Sandbox(Limits(PATIENCE_SECONDS, PATIENCE_SECONDS, 2**29, 16))


@pytest.fixture
def token() -> str:
    """A name of this test's processes, which they give to their children."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def nothing_is_left(token: str) -> Iterator[None]:
    yield
    assert not with_token(token)
    assert not left_groups()


def with_token(token: str) -> list[int]:
    """Processes of any sandbox that carry it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if token in (folder / "comm").read_text() + (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def left_groups() -> list[Path]:
    """Control groups that nobody holds."""
    found = [
        Path(above, name)
        for above, names, _ in os.walk("/sys/fs/cgroup")  # others' come and go meanwhile
        for name in names
        if name.startswith(cgroup.PREFIX)
    ]
    free = [folder for folder in found if _is_free(folder)]
    if free:
        time.sleep(0.2)  # one that another test has made just now is not held yet
    return [folder for folder in free if _is_free(folder)]


def _is_free(folder: Path) -> bool:
    try:
        lock = cgroup.locked(folder)
    except OSError:
        return False
    if lock is not None:
        os.close(lock)
    return lock is not None


NAMED = "import ctypes\nctypes.CDLL(None).prctl(15, b'{token}')\n"
"""PR_SET_NAME."""


# C058


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """On this machine's loopback, and nobody is to reach it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


BY_SOCKET = "socket.create_connection(('127.0.0.1', {port}), 1)"
BY_CTYPES = """
libc = ctypes.CDLL(None, use_errno=True)
file = libc.socket({family}, 1, 0)
address = struct.pack("=H", 2) + struct.pack(">H", {port}) + bytes([127, 0, 0, 1]) + bytes(8)
if file < 0 or libc.connect(file, address, len(address)):
    raise OSError(ctypes.get_errno(), "denied")
"""
BY_SHELL = """
subprocess.run(["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/{port}"], check=True, stderr=-3)
"""
BY_CHILD = """
child = "import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
subprocess.run([sys.executable, "-c", child], check=True, stderr=-3)
"""
SYSCALL = """
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(*{numbers}) < 0:
    raise OSError(ctypes.get_errno(), "denied")
"""
TRYING = """
import ctypes, mmap, os, signal, socket, struct, subprocess, sys
for attempt in {attempts}:
    try:
        exec(attempt)
    except (OSError, subprocess.SubprocessError, MemoryError):
        print("denied")
    else:
        print("got", attempt)
"""


def tried(sandbox: Sandbox, attempts: Sequence[str]) -> list[str]:
    """What a program that makes the attempts prints of each."""
    box = sandbox.start("run", TRYING.format(attempts=attempts).encode())
    watch([box], sandbox.limits, until=time.monotonic() + PATIENCE_SECONDS)
    ended = box.end()
    assert not ended.err, ended.err
    return ended.out.decode().splitlines()


def test_C058_there_is_no_network(sandbox: Sandbox, server: socket.socket) -> None:
    port = str(server.getsockname()[1])
    attempts = [
        BY_SOCKET,
        BY_CTYPES.replace("{family}", "2"),
        BY_CTYPES.replace("{family}", "40"),  # AF_VSOCK
        BY_SHELL,
        BY_CHILD,
        "socket.socket().connect(('localhost', 80))",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    ]
    attempts = [attempt.replace("{port}", port) for attempt in attempts]
    assert tried(sandbox, attempts) == ["denied"] * len(attempts)
    with pytest.raises(BlockingIOError):
        server.accept()


def test_C058_there_are_no_secrets(
    code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "the-secret")
    secret = tmp_path / "file"
    secret.write_text("the-secret")
    program = f"""
import glob, os, subprocess
seen = repr(os.environ)
for name in [*glob.glob("/proc/*/environ"), *glob.glob("/proc/*/cmdline"), "/proc/1/mem",
             "/etc/passwd", "/etc/shadow", "/root/.bashrc", {__file__!r}, {str(secret)!r}]:
    try:
        seen += open(name).read()
    except OSError:
        pass
seen += subprocess.run(["sh", "-c", "env; set; ls -a /root /home /work /run /var /tmp /mnt /srv"],
                       capture_output=True, text=True).stdout
seen += repr(glob.glob({sys.base_prefix + "/lib/python*/site-packages/*"!r}))
print([word for word in ("the-secret", "SECRET", "REDIS", "root:x", ".bashrc", "sluice.sock",
       "There are no secrets", "packages/pip") if word in seen], sorted(os.environ))
"""
    names = "HOME LANG MALLOC_ARENA_MAX PATH PWD PYTHONDONTWRITEBYTECODE PYTHONHASHSEED TMPDIR"
    verdict = code(answer(program, {"tests": [{"stdout": f"[] {names.split()}"}]}))
    assert verdict.reason == "right"


WRITTEN = ("", "/usr/lib", "/etc", "/dev", "/root", "/home", "/var", "/run", "/proc", "/sys")
CHANGES = [
    *(f"open('{place}/written', 'w')" for place in WRITTEN),
    f"open({sys.base_prefix + '/lib/written'!r}, 'w')",
    f"open({__file__!r}, 'a')",
    f"open('/sluice/{launch.__name__.replace('.', '/')}.py', 'a')",
    "open('/proc/sys/kernel/core_pattern', 'w')",
    "open('/proc/self/oom_score_adj', 'w').write('-1000')",
    "os.mknod('/scratch/disk', 0o60600, os.makedev(8, 0))",
    "os.chroot('/scratch')",
    "os.setuid(0)",
    "os.nice(-5)",
    "os.kill(os.getppid(), signal.SIGKILL), os.kill(1, 0), os.kill(3000000, 9)",
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN), open('/scratch/x', 'wb').truncate(2**27)",
    "mmap.mmap(-1, 2**30)",  # shared, and so no data of a process
    "open('/scratch/full', 'wb').write(bytes(65 * 2**20))",
    "for n in range(9): open(f'/dev/shm/{n}', 'wb').write(bytes(2**21 + 1))",
    "for n in range(9): open(f'/scratch/{n}', 'wb').write(bytes(2**23 + 1))",
]


def test_C058_nothing_outside_can_be_changed(sandbox: Sandbox) -> None:
    assert tried(sandbox, CHANGES) == ["denied"] * len(CHANGES)


CALLS = {
    "keyctl": (250, 0, -3, 1),
    "add_key": (248, b"user", b"name", b"text", 4, -2),
    "unshare": (272, 0x10000000),
    "clone into a user namespace": (56, 0x10000011, 0, 0, 0, 0),
    "io_uring_setup": (425, 1, bytes(120)),
    "memfd_create": (319, b"name", 0),
    "shmget": (29, 0, 4096, 0o1600),
    "perf_event_open": (298, bytes(128), 0, -1, -1, 0),
    "bpf": (321, 0, bytes(128), 128),
    "userfaultfd": (323, 1),
    "ptrace": (101, 0, 0, 0, 0),
    "mount": (165, b"none", b"/scratch", b"tmpfs", 0, 0),
    "personality": (135, 0xFFFFFFFF),
    "a call of the x32 kind": (0x40000000 | 39,),
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these are its numbers")
def test_C058_calls_that_no_namespace_confines_are_refused(sandbox: Sandbox) -> None:
    attempts = [SYSCALL.replace("{numbers}", repr(numbers)) for numbers in CALLS.values()]
    assert tried(sandbox, attempts) == ["denied"] * len(attempts)


# C059

FORKS = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
THREADS = """
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(100,)).start()
    except RuntimeError: pass
"""
SHELL = """
import os
open("/scratch/{token}", "w").write("sh /scratch/{token} & sh /scratch/{token} & wait")
os.execvp("sh", ["sh", "/scratch/{token}"])
"""
DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        os.closerange(0, 64)
        time.sleep(1000)
    os._exit(0)
print(3)
"""
SLEEPERS = DAEMON + "time.sleep(1000)\n"
EATERS = """
import os, time
for _ in range(8): os.fork()
kept = []
while True: kept.append(bytearray(2**24))
"""
BLOCKED = """
import os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
"""

BOMBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "forks": (FORKS, ("timeout", "crashed")),
    "threads": (THREADS, ("timeout",)),
    "a shell that starts itself": (SHELL, ("timeout", "wrong", "crashed", "output")),
    "endless output": ("while True: print('x' * 10**6)", ("output",)),
    "endless output of children": (FORKS.replace("pass", "print('x' * 10**6)"), ("output",)),
    "memory": ("kept = []\nwhile True: kept.append(bytearray(2**24))", ("memory", "timeout")),
    "memory of many": (EATERS, ("memory", "timeout", "crashed")),
    "a daemon": (DAEMON, ("right", "timeout")),
    "a daemon, and no end": (SLEEPERS, ("timeout",)),
    "no signal ends it": (BLOCKED, ("timeout",)),
}


NEIGHBOURS = 20


@pytest.fixture(scope="module")
def thirty(code: Code, hasty: Code) -> Told:
    """What came of thirty at once, ten of them bombs, and how long each took."""
    token = f"t{secrets.token_hex(6)}"
    texts = [(NAMED + text).replace("{token}", token) for text, _ in BOMBS.values()]
    programs = [(hasty, text) for text in texts] + [(code, SUMS)] * NEIGHBOURS
    with ThreadPoolExecutor(len(programs)) as threads:
        told = list(threads.map(lambda one: timed(*one), programs))
    return Told(dict(zip(BOMBS, told, strict=False)), told[len(BOMBS) :], with_token(token))


class Told(NamedTuple):
    """Reasons and seconds, and the processes that were left."""

    bombs: dict[str, tuple[str, float]]
    neighbours: list[tuple[str, float]]
    left: list[int]


def timed(code: Code, program: str) -> tuple[str, float]:
    started = time.monotonic()
    return code(answer(program, SUM)).reason, time.monotonic() - started


@pytest.mark.parametrize("name", BOMBS)
def test_C059_a_bomb_ends_within_its_time(thirty: Told, name: str) -> None:
    why, seconds = thirty.bombs[name]
    assert why in BOMBS[name][1]
    assert seconds < HASTY_SECONDS + SLACK_SECONDS


def test_C059_of_thirty_at_once_no_bomb_disturbs_a_neighbour_or_stays(thirty: Told) -> None:
    assert [why for why, _ in thirty.neighbours] == ["right"] * NEIGHBOURS
    assert not thirty.left


def test_C059_a_program_has_so_many_processes_and_no_more(code: Code) -> None:
    program = """
import os, time
number = 1
try:
    while number < 100:
        if os.fork() == 0:
            time.sleep(100)
        number += 1
except OSError:
    print(number)
"""
    assert code(answer(program, {"tests": [{"stdout": "16"}]})).reason == "right"


SHARED = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        kept = bytearray(b"x" * (48 * 2**20))
        time.sleep(1000)
time.sleep(1000)
"""


def test_C059_all_processes_together_have_so_much_memory(sandbox: Sandbox) -> None:
    groups = Groups.here()
    if "memory" not in groups.limits:
        pytest.skip("no control group that limits memory can be made here")
    limits = Limits(PATIENCE_SECONDS, PATIENCE_SECONDS, 2**27, 16)
    box = Sandbox(limits, groups=groups).start("run", SHARED.encode())
    watch([box], limits, until=time.monotonic() + TEST_SECONDS)
    assert box.end().out_of_memory


def test_C059_of_endless_output_a_megabyte_is_kept(code: Code) -> None:
    limits = Limits(TEST_SECONDS, TEST_SECONDS, 2**28, 4)
    box = Sandbox(limits).start("run", b"while True: print('x' * 10**6)")
    watch([box], limits, until=time.monotonic() + TEST_SECONDS)
    ended = box.end()
    assert ended.stop == "output" and len(ended.out) == OUTPUT_BYTES <= 10**6


def test_workers_grade_by_it_and_what_they_run_ends_with_them(token: str) -> None:
    code_or_skip()
    hostile, endless = ((NAMED + text).replace("{token}", token) for text in (FORKS, SLEEPERS))
    spec = {"use": "code", "test_seconds": 2.0, "all_seconds": 2.0, "timeout_seconds": 4.0}
    scores = asyncio.run(grades(spec, [SUMS, hostile, SUMS, "print(4)"], endless, token=token))
    assert [(score.reward, score.error) for score in scores] == [
        (1.0, None),
        (0.0, None),
        (1.0, None),
        (0.0, None),
    ]
    within(SLACK_SECONDS, lambda: not with_token(token))
    Groups.here()  # what the next worker does first: it sweeps up


async def grades(spec: Any, programs: list[str], endless: str, *, token: str) -> list[Score]:
    """Of all but the last, in whose midst the workers are closed."""
    ensemble = make_ensemble(ScoringKeys(scorers=[spec], workers=2), numbers=numbers())
    await ensemble.start()
    try:
        scores = await asyncio.gather(*(ensemble(answer(text, SUM)) for text in programs))
        last = asyncio.create_task(ensemble(answer(endless, SUM)))
        while not with_token(token):
            await asyncio.sleep(0.02)
        last.cancel()
    finally:
        await ensemble.close()
    return scores


KILLED = """
from sandboxes import answer
from services.scoring.scorers.code.scorer import Code
code = Code(test_seconds=60, all_seconds=60)
print("ready", flush=True)
code(answer({program!r}, {reference!r}))
"""


@pytest.mark.parametrize("by", ["asserts", "tests"])
def test_what_runs_ends_with_a_worker_that_is_killed(code: Code, token: str, by: str) -> None:
    program = (NAMED + SLEEPERS).replace("{token}", token)
    reference = {"asserts": ["assert f()"]} if by == "asserts" else SUM
    script = KILLED.format(program=program, reference=reference)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=-1) as worker:
        within(20.0, lambda: len(with_token(token)) > 2)  # the worker's own command has it as well
        assert with_token(token) != [worker.pid]
        worker.send_signal(signal.SIGKILL)
    within(SLACK_SECONDS, lambda: not with_token(token))
    Groups.here()


def anybodys_python() -> Python:
    """This one, or the system's where only its owner can reach this one."""
    this = Python.this()
    if os.geteuid() or all(map(is_open_to_all, (this.program, *this.folders))):
        return this
    return Python(os.path.realpath("/usr/bin/python3"), (), ())


def within(seconds: float, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_ordinary_user_without_control_groups_has_the_same_sandbox(token: str) -> None:
    """Root's becomes nobody's, with an interpreter that anybody can read."""
    code_or_skip()
    limits = Limits(TEST_SECONDS, TEST_SECONDS, 2**28, 8)
    sandbox = Sandbox(limits, python=anybodys_python(), groups=Groups([]))
    if sandbox.user is None and os.geteuid() == 0:
        pytest.skip("the interpreter, bubblewrap or this package is hidden from other users")
    check_sandbox(sandbox)
    program = (NAMED + FORKS).replace("{token}", token).encode()
    box = sandbox.start("run", program)
    started = time.monotonic()
    watch([box], limits, until=started + TEST_SECONDS)
    assert len(with_token(token)) <= limits.processes
    assert box.end().stop == "timeout"
    assert time.monotonic() - started < TEST_SECONDS + SLACK_SECONDS
