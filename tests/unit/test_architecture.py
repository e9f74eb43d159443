"""The rules of docs/architecture.md that a reader of the source can check: who may import whom."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tree import PACKAGES, ROOT, at_top, closure, functions, imports, modules

from pipeline import families
from pipeline.config import documented, load
from pipeline.run import Run

HEAVY = ("torch", "transformers", "safetensors", "deepspeed", "vllm")

WITH_TORCH = {
    "pipeline.model.attention",
    "pipeline.model.chosen",
    "pipeline.model.fingerprint",
    "pipeline.model.load",
    "pipeline.model.lora",
    "pipeline.model.merged",
    "pipeline.model.packed",
    "pipeline.model.policy",
    "pipeline.model.sampling",
    "pipeline.model.teaching",
    "pipeline.model.truncation",
    "pipeline.weights.delta",
    "pipeline.weights.files",
    "pipeline.weights.ipc",
    "pipeline.weights.nccl",
    "pipeline.weights.patch",
    "pipeline.weights.publisher",
    "pipeline.weights.redis",
    "pipeline.weights.remote",
    "pipeline.weights.shm",
    "pipeline.weights.staging",
    "pipeline.weights.store",
    "services.inference.engines.hf.attention",
    "services.inference.engines.hf.cache",
    "services.inference.engines.hf.engine",
    "services.inference.engines.hf.flip",
    "services.inference.engines.hf.passes",
    "services.inference.engines.hf.rows",
    "services.inference.engines.vllm.api",
    "services.inference.engines.vllm.arguments",
    "services.inference.engines.vllm.build",
    "services.inference.engines.vllm.direct",
    "services.inference.engines.vllm.engine",
    "services.inference.engines.vllm.expected",
    "services.inference.engines.vllm.flight",
    "services.inference.engines.vllm.host",
    "services.inference.engines.vllm.live",
    "services.inference.engines.vllm.lora",
    "services.inference.engines.vllm.pressure",
    "services.inference.engines.vllm.readback",
    "services.inference.engines.vllm.receiver",
    "services.inference.engines.vllm.sampling",
    "services.inference.engines.vllm.staged",
    "services.inference.engines.vllm.worker",
    "services.inference.evaluation",
    "services.inference.grading",
    "services.keep.export",
    "services.scoring.scorers.models.reward_model",
    "services.scoring.scorers.models.teacher",
    "services.training.advantages",
    "services.training.backends.configuration",
    "services.training.backends.deepspeed",
    "services.training.backends.folder",
    "services.training.backends.rng",
    "services.training.backends.shards",
    "services.training.backends.snapshot",
    "services.training.backends.state",
    "services.training.backends.torch",
    "services.training.baselines",
    "services.training.batch",
    "services.training.build",
    "services.training.canary",
    "services.training.checkpoints",
    "services.training.considered",
    "services.training.corrections",
    "services.training.divergence",
    "services.training.imitation",
    "services.training.journal",
    "services.training.losses",
    "services.training.objective",
    "services.training.optimize",
    "services.training.parts",
    "services.training.pool",
    "services.training.pulse",
    "services.training.ranks",
    "services.training.ratios",
    "services.training.records",
    "services.training.recovery",
    "services.training.reference",
    "services.training.remembered",
    "services.training.replay",
    "services.training.resumption",
    "services.training.service",
    "services.training.sequences",
    "services.training.shares",
    "services.training.statistics",
    "services.training.streams",
    "services.training.wire",
    "services.training.world",
}
"""Those that need it, and import it at their top."""

WITH_TOKENIZER = {
    "pipeline.model.tokens",
    "services.inference.openai.endpoint",
    "services.inference.openai.forms",
    "services.inference.openai.tasks",
    "services.prompting.build",
    "services.scoring.build",
    "services.scoring.rescore",
    "services.scoring.scorers.models.encoding",
}
"""Those that import transformers, which loads torch once it is asked for a model."""

WITH_OTHERS = {"services.training.sinks.tensorboard", "services.training.sinks.wandb"}
"""Those that import what the extra `dev` does not bring."""

BY_NAME = {
    "pipeline.model.likeness",
    "pipeline.plugins",
    "services.cli",
    "services.process",
    "services.scoring.scorers.code.inside.check",  # in a sandbox, what the task's tests name
}
"""They import what a user chose, by its name."""

OWNERS = {"run", "_run", "settings"}
"""What a whole run is called where its own keys are read."""

NO_SOURCE = {"runs", "build", "dist", "__pycache__"}

VIEWERS = {"services.up", "services.keep"}
"""They may import `services.view`, which is no service but what a run looks like."""


def service_of(module: str) -> str:
    """`inference` for services.inference.outbox; nothing for what stands beside the services."""
    parts = module.split(".")
    is_beside = module in ("services", "services.cli", "services.process")
    return parts[1] if parts[0] == "services" and not is_beside else ""


def test_no_service_imports_another() -> None:
    wrong = [
        (module, found.module)
        for module in modules()
        for found in imports(module)
        if service_of(module)
        and service_of(found.module) not in ("", service_of(module))
        and not (is_in(module, VIEWERS) and is_in(found.module, {"services.view"}))
    ]
    assert not wrong


def is_in(module: str, packages: set[str]) -> bool:
    return ".".join(module.split(".")[:2]) in packages


def test_the_shared_package_imports_no_service() -> None:
    wrong = [
        (module, found.module)
        for module in modules()
        for found in imports(module)
        if module.startswith("pipeline") and found.module.startswith("services")
    ]
    assert not wrong


def test_nothing_imports_the_command_line() -> None:
    assert not [m for m in modules() if "services.cli" in {found.module for found in imports(m)}]


def test_no_import_leads_back_to_where_it_came_from() -> None:
    graph = {module: {name for name in at_top(module) if name in modules()} for module in modules()}
    try:
        [*graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as exc:
        pytest.fail(" -> ".join(exc.args[1]))


def test_own_modules_are_imported_at_the_top() -> None:
    lazy = [
        (module, found.module)
        for module in modules()
        for found in imports(module)
        if found.function and found.module.split(".")[0] in PACKAGES
    ]
    assert not lazy


def test_only_what_a_user_chose_is_imported_by_name() -> None:
    words = ("import_module", "__import__")
    found = {
        module
        for module, tree in modules().items()
        for node, _ in functions(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in words
    }
    assert found == BY_NAME


def test_torch_is_imported_by_the_modules_that_are_listed_and_no_other() -> None:
    found = {
        module
        for module in modules()
        if any(name.split(".")[0] in HEAVY for name in closure(module))
    }
    assert found == WITH_TORCH | WITH_TOKENIZER


def test_whatever_is_not_listed_loads_neither_torch_nor_transformers() -> None:
    light = sorted(modules().keys() - WITH_TORCH - WITH_TOKENIZER - WITH_OTHERS)
    assert {"services.cli", "services.up.service", "services.scoring.worker"} <= set(light)
    loads_nothing_of(HEAVY, light)


def test_a_tokenizer_loads_no_torch() -> None:
    folder = str(ROOT / "examples" / "demo" / "model")
    act = f"from pipeline.model.tokens import Tokenizer; assert Tokenizer({folder!r}).encode('a')"
    loads_nothing_of(("torch",), sorted(WITH_TOKENIZER), act)


def loads_nothing_of(packages: tuple[str, ...], names: list[str], act: str = "") -> None:
    """In a fresh interpreter, after each import, and after the act."""
    check = f"assert not set({packages}) & set(sys.modules)"
    lines = ["import sys"]
    for name in names:
        lines += [f"import {name}", f"{check}, {name!r}"]
    code = "\n".join([*lines, act, check])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


TABLES = {name: table for name, table in vars(families).items() if isinstance(table, dict)}
TABLES.pop("__builtins__", None)


@pytest.mark.parametrize("name", sorted({place for t in TABLES.values() for place in t.values()}))
def test_every_plug_in_of_the_tables_is_defined_where_they_say(name: str) -> None:
    module, _, attribute = name.partition(":")
    defined = [
        n.name for n in modules()[module].body if isinstance(n, ast.ClassDef | ast.FunctionDef)
    ]
    assert attribute in defined


def test_the_tables_are_all_seen() -> None:
    assert {"ENGINES", "DATASETS", "SCORERS", "LOSSES"} <= set(TABLES)


def test_a_run_has_at_most_seventy_keys_and_each_has_a_reader() -> None:
    keys = [key for key, _, _ in documented(Run)]
    assert len(keys) <= 70
    read = set(_reads())
    assert not [key for key in keys if ".".join(key.split(".")[-2:]) not in read]


def _reads() -> Iterator[str]:
    """`section.key` for `….section.key`, `key` for `run.key`; but for where they are made.

    A script reads a key of the run's identity by its name there.
    """
    for script in (ROOT / "pipeline" / "bus" / "lua").glob("*.lua"):
        yield from re.findall(r"'id:([a-z_.]+)'", script.read_text())
    sources = {
        m: tree for m, tree in modules().items() if m not in ("pipeline.run", "pipeline.config")
    }
    for tree in sources.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value).rpartition(".")[2].lstrip("_")
                yield node.attr if owner in OWNERS else f"{owner}.{node.attr}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.toml")), ids=lambda path: path.name)
def test_every_example_is_a_valid_run(path: Path) -> None:
    assert load(path).name


def test_there_are_examples() -> None:
    assert (ROOT / "examples" / "demo.toml").is_file()


def test_no_file_names_the_place_where_it_was_written() -> None:
    place = ("/" + "work" + "/").encode()
    wrong = [str(path) for path in _files(ROOT) if place in path.read_bytes()]
    assert not wrong


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        hidden = path.name.startswith(".") and path.name not in (".ci", ".gitignore", ".github")
        if hidden or path.name in NO_SOURCE or path.suffix == ".egg-info":
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path
