"""The command line: one function a command, no logic. `sluice --help` is its documentation."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from pipeline import config
from pipeline.logs import LogFormat
from pipeline.machine import default_threads
from pipeline.run import Run
from pipeline.serve import EXIT_DONE, EXIT_FAILED, REDIS_VARIABLE, exit_code, needs

# \b keeps a paragraph's lines as they are.
SUMMARY = """Sluice: reinforcement learning for language models that never waits.

\b
sluice up RUN.toml        one machine: start everything, watch it, report
sluice SERVICE RUN.toml   one process of one service, on any machine
sluice top RUN            watch it from anywhere
sluice report RUN         one HTML file, at any time
"""
CODES = "0 done, 1 failed, 2 the input is at fault, 3 another trainer leads the run"
ENDING = f"""\b
Exit codes: {CODES}.
The last line on standard error says why.
Every key of RUN.toml: docs/configuration.md. Examples: examples/*.toml.
"""

app = typer.Typer(
    name="sluice",
    help=SUMMARY,
    epilog=ENDING,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunPath = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run; see examples/.")]
Wanted = Annotated[
    str, typer.Argument(metavar="RUN", help="A RUN.toml, or the folder or the name of a run.")
]
Redis = Annotated[
    str | None,
    typer.Option("--redis", envvar=REDIS_VARIABLE, metavar="URL", help="Where Redis is."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key. Repeatable."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and stop.")]
Instance = Annotated[
    str | None, typer.Option(metavar="NAME", help="This process's name. Default: host and pid.")
]
Address = Annotated[
    str, typer.Option("--http", metavar="HOST:PORT", help="Where /metrics is served.")
]

Logs = Annotated[
    LogFormat, typer.Option("--log-format", help="Of each line on standard error, or in logs/.")
]


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"sluice {version('sluice-rl')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print it and stop."),
    ] = False,
) -> None:
    """The options of `sluice` itself."""


@app.command()
def up(
    path: RunPath,
    redis: Redis = None,
    set_: Set = None,
    dry_run: DryRun = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Start every service here, watch them, report."""

    def body(run: Run) -> int:
        up = _part("services.up.service", "up")
        return up(run, redis=redis, log_format=log_format)  # type: ignore[no-any-return]

    _run(path, set_, dry_run, body, check=_part("services.up.preflight", "preflight"))


SERVICES = {
    "prompting": "Admit prompts while the window has places.",
    "inference": "Generate; flip to new weights between two forward passes.",
    "scoring": "Score completions; release whole groups.",
    "training": "Take groups, step, commit, announce.",
}


def _service(service: str) -> Callable[..., None]:
    def command(
        path: RunPath,
        redis: Redis = None,
        set_: Set = None,
        dry_run: DryRun = False,
        instance: Instance = None,
        http: Address = "127.0.0.1:0",
        log_format: Logs = LogFormat.TEXT,
    ) -> None:
        def body(run: Run) -> None:
            default_threads()
            name = instance or f"{service}@{os.uname().nodename}-{os.getpid()}"
            serve = _part("services.process", "serve")
            url = redis or run.bus.url
            serve(service, run, redis=url, instance=name, http=http, log_format=log_format)

        _run(path, set_, dry_run, body, check=_part("pipeline.options", "check_options"))

    return command


for _name, _help in SERVICES.items():
    app.command(_name, help=_help)(_service(_name))


Base = Annotated[bool, typer.Option("--base", help="Grade the model as it is before training.")]


@app.command()
def evaluate(path: Wanted, base: Base = False, set_: Set = None, dry_run: DryRun = False) -> None:
    """Grade the held-out prompts on every version that a run kept."""

    def body(run: Run) -> None:
        default_threads()
        with needs("model", what="sluice evaluate"):
            _part("services.inference.evaluation", "evaluate")(run, base=base)

    _run_wanted(path, set_, dry_run, body)


@app.command()
def replay(path: Wanted, set_: Set = None, dry_run: DryRun = False) -> None:
    """Repeat a run's steps from its records, and compare.

    The weights have to be the same bit for bit.
    """

    def body(run: Run) -> int:
        default_threads()
        with needs("model", what="sluice replay"):
            same = _part("services.training.replay", "replay")(run)
        return EXIT_DONE if same else EXIT_FAILED

    _run_wanted(path, set_, dry_run, body)


Acl = Annotated[
    bool, typer.Option("--acl", help="Print the least Redis rules, a user a service, and stop.")
]


@app.command()
def doctor(path: Wanted, redis: Redis = None, acl: Acl = False, set_: Set = None) -> None:
    """Say what a run waits for, and whether it is sound.

    Reads from Redis alone and writes nothing. Exits 1 where it finds a fault: a run that failed,
    books that do not balance, a process that is missing, silent or quarantined, a Redis or a
    disk that is full.
    """

    def body(run: Run) -> int:
        if acl:
            print("\n".join(_part("pipeline.bus.acl", "rules")(run.name)))
            return EXIT_DONE
        return _part("services.keep.doctor", "doctor")(run, redis=redis)  # type: ignore[no-any-return]

    _run_wanted(path, set_, False, body)


Once = Annotated[bool, typer.Option("--once", help="Print one picture and stop.")]


@app.command()
def top(run: Wanted, redis: Redis = None, once: Once = False, set_: Set = None) -> None:
    """Show a run while it goes on; q leaves.

    Reads from Redis alone and writes nothing, so that it runs on any machine; a run's name and
    --redis are enough. Where there is no terminal it prints one picture.
    """
    _look(run, set_, lambda wanted: _part("services.keep.top", "top")(wanted, redis, once=once))


@app.command()
def report(run: Wanted, redis: Redis = None, set_: Set = None) -> None:
    """Write a run's report.html, at any time.

    One file, also of a run in flight: from its folder, and from Redis where that can be reached.
    Where its folder is not, from Redis alone, to NAME.html.
    """
    _look(run, set_, lambda wanted: _part("services.keep.reporting", "report")(wanted, redis))


Folder = Annotated[Path | None, typer.Argument(metavar="FOLDER", help="Default: runs/NAME/export.")]
Version = Annotated[
    int | None, typer.Option(metavar="N", help="One that was kept; default: the newest checkpoint.")
]


Best = Annotated[bool, typer.Option("--best", help="The version that was graded best.")]


@app.command()
def export(
    path: Wanted,
    folder: Folder = None,
    version: Version = None,
    best: Best = False,
    set_: Set = None,
) -> None:
    """Write a run's weights in Hugging Face format.

    The newest checkpoint, also while the run goes on. Refuses a folder that exists.
    """

    def body(run: Run) -> None:
        default_threads()
        with needs("model", what="sluice export"):
            _part("services.keep.export", "export")(run, folder=folder, version=version, best=best)

    _run_wanted(path, set_, False, body)


score = typer.Typer(
    help="Test a scorer, or score a run again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(score, name="score")

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="What else stands in its table in RUN.toml: an option of its own, or timeout_seconds."
        " Repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
NAMES = "A scorer of docs/scorers.md, or package.module:thing."


@score.command("test")
def score_test(
    scorer: Annotated[str, typer.Argument(metavar="SCORER", help=NAMES)],
    golden: Annotated[Path, typer.Option(metavar="FILE", help="One JSON object a line.")],
    option: Options = None,
    json: Json = False,
) -> None:
    """Hold a scorer against answers whose verdicts are known.

    A line of FILE, the golden set, has id, answer (the reference), completion and expected (true,
    false or a reward), and if need be prompt, task and finish. Exits 1 where a verdict is another
    one, with a table of these. With --json every verdict is printed, one object a line.
    """

    def act() -> None:
        default_threads()
        with needs("score", what="sluice score test"):
            trial = _part("services.scoring.trial", "trial")
            trial(scorer, golden, options=option or (), as_json=json)

    _end(act)


@score.command("rescore")
def score_rescore(
    path: Wanted,
    scorer: Annotated[str, typer.Option("--with", metavar="SCORER", help=NAMES)],
    option: Options = None,
    json: Json = False,
    set_: Set = None,
) -> None:
    """Score a run's completions again, and say what would change.

    Those of its step records, which hold what its steps consumed. Nothing of the run is changed,
    and it may go on meanwhile. With --json the comparison is one object.
    """

    def body(run: Run) -> None:
        default_threads()
        with needs("text", what="sluice score rescore"):
            rescore = _part("services.scoring.rescore", "rescore")
            rescore(run, scorer, options=option or (), as_json=json)

    _run_wanted(path, set_, False, body)


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command()
def purge(path: Wanted, redis: Redis = None, yes: Yes = False, set_: Set = None) -> None:
    """Delete one run from Redis. Asks first.

    Refuses where a process of it is alive. The folder runs/NAME stays.
    """

    def body(run: Run) -> int:
        return _part("services.keep.purge", "purge")(run, redis=redis, yes=yes)  # type: ignore[no-any-return]

    _run_wanted(path, set_, False, body)


def main() -> None:
    """The console script."""
    app()


def _run(
    path: Path | str,
    overrides: list[str] | None,
    dry_run: bool,
    body: Callable[[Run], int | None],
    *,
    check: Callable[[Run], None] = lambda run: None,
    load: Callable[..., Run] = config.load,
) -> None:
    """Load, check, then print or do."""

    def act() -> int | None:
        run = load(path, overrides or ())
        check(run)
        if not dry_run:
            return body(run)
        print(config.dump(_shown(run)), end="")
        return EXIT_DONE

    _end(act)


def _run_wanted(
    told: str, overrides: list[str] | None, dry_run: bool, body: Callable[[Run], int | None]
) -> None:
    """The same for a run that may be named by its folder or its name as well."""
    _run(told, overrides, dry_run, body, load=_part("services.keep.meeting", "run_of"))


def _look(told: str, overrides: list[str] | None, body: Callable[[Any], int]) -> None:
    """Find out which run is meant, then do."""
    _end(lambda: body(_part("services.keep.meeting", "wanted")(told, overrides or ())))


def _end(act: Callable[[], int | None]) -> None:
    """Do it; the exit code says whose fault it was."""
    code = EXIT_DONE

    def attempt() -> None:
        nonlocal code
        code = act() or EXIT_DONE

    raise typer.Exit(exit_code(attempt) or code)


def _shown(run: Run) -> Run:
    """Without the password of the server."""
    url = _part("pipeline.bus.connection", "mask")(run.bus.url)
    return replace(run, bus=replace(run.bus, url=url))


def _part(module: str, name: str) -> Callable[..., Any]:
    """Only the chosen command's module is imported: `sluice --help` loads no torch."""
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
