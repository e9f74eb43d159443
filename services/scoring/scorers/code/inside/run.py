"""A program by itself: what it prints is judged elsewhere."""

import builtins
import sys
import types
from typing import Any

from services.scoring.scorers.code.inside.launch import begin

FILE = "program.py"


def main() -> None:
    """As a script."""
    text, _ = begin()
    run(text, "__main__")


def run(text: bytes, name: str) -> dict[str, Any]:
    """Its names, once it has run as the module of that name. Raises whatever it does."""
    sys.argv[:] = [FILE]
    vars(builtins).update(
        exit=sys.exit, quit=sys.exit
    )  # which Python's `site` gives scripts otherwise
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = FILE
    exec(compile(text, FILE, "exec"), module.__dict__)
    return module.__dict__
