"""Reads the state and the snapshot of a run: nothing is written."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pipeline.bus.evaluations import HELD_OUT
from pipeline.bus.scripts import Scripts
from pipeline.codec import decode
from pipeline.errors import DecodeError, SluiceError
from pipeline.ledger import GENERATED, Fates, Sum
from pipeline.messages import Beat
from pipeline.watch import Evaluation, Letter, Places, Seen, Server, Snapshot, State

Fields = dict[bytes, bytes]
_HELD_OUT = f"id:{HELD_OUT}".encode()


def read_state(scripts: Scripts) -> State:
    """Where the run stands; raises SluiceError where it is not open."""
    return _state(scripts, scripts.read(("HGETALL", scripts.keys.state))[0])


def read_snapshot(scripts: Scripts) -> Snapshot:
    """One consistent look; raises SluiceError where the run is not open."""
    reply = scripts.call("snapshot")
    state, run, led, who, alive, started, prompts, groups, dead, beats, now, done, info = reply[:13]
    settings, about = pairs(run), pairs(who)
    where = _state(scripts, pairs(state))
    lease_ms = int(settings[b"lease_ms"])
    return Snapshot(
        state=where,
        places=Places(
            prompts=prompts, open=alive - prompts - groups, groups=groups, started=started
        ),
        ledger=ledger_of(pairs(led)),
        window=int(pairs(state).get(b"window", settings[b"window"])),
        window_most=int(settings[b"window"]),
        per_step=int(settings[b"per_step"]),
        lag_max=int(settings[b"lag_max"]),
        lease_seconds=lease_ms / 1000,
        beats=tuple(
            seen
            for boot, last in pairs(beats).items()
            if (seen := _seen(boot, float(last), about, now, lease_ms))
        ),
        dead_letters=dead,
        at_seconds=now / 1000,
        members=int(settings[b"members"]),
        completions=done,
        server=server_of(info.decode()),
        evaluation=_evaluation(*reply[13:], now=now, data=settings.get(_HELD_OUT, b"").decode()),
    )


def _evaluation(
    state: list[bytes], alive: int, ledger: list[bytes], prompts: int, *, now: int, data: str
) -> Evaluation:
    fields = {key.decode(): int(value) for key, value in pairs(state).items()}
    moved = fields.pop("moved", now)
    return Evaluation(
        **fields,
        alive=alive,
        prompts=prompts,
        data=data,
        idle_seconds=max(0, now - moved) / 1000,
        ledger=ledger_of(pairs(ledger)),
    )


def read_start_steps(scripts: Scripts) -> tuple[Counter[int], Counter[int]]:
    """Groups that an engine has begun, by the step of its weights: those not whole yet, the whole.

    Counted step by step, from the oldest that has one to the newest: it costs the same however many
    groups there are. Not at one moment: a group that becomes whole meanwhile may be missing among
    the former.
    """
    ready, begun = scripts.keys.groups, read_started(scripts)
    counts = scripts.read(
        *(("ZCOUNT", ready, step << 32, f"({(step + 1) << 32}") for step in begun)
    )
    whole = Counter(dict(zip(begun, counts, strict=True)))
    return begun - whole, +whole


def read_started(scripts: Scripts) -> Counter[int]:
    """Groups alive that an engine has begun, by the step of its weights; as cheap."""
    live = scripts.keys.live
    ends = scripts.read(
        ("ZRANGE", live, 0, 0, "WITHSCORES"),
        ("ZRANGE", live, "8e15", "-inf", "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES"),
    )
    if not all(ends):
        return Counter()
    oldest, newest = (int(float(score)) for _, score in ends)
    steps = range(oldest, newest + 1)
    counts = scripts.read(*(("ZCOUNT", live, step, step) for step in steps))
    return Counter(dict(zip(steps, counts, strict=True)))


def read_generated(scripts: Scripts) -> int:
    """Tokens that came out of engines."""
    field = f"{GENERATED}|tokens"
    return int(scripts.read(("HGET", scripts.keys.ledger, field))[0] or 0)


def read_letters(scripts: Scripts, count: int) -> tuple[Letter, ...]:
    """The last `count` dead letters, the newest first."""
    rows, (seconds, _) = scripts.read(
        ("XREVRANGE", scripts.keys.dead, "+", "-", "COUNT", count), ("TIME",)
    )
    return tuple(_letter(entry, fields, int(seconds)) for entry, fields in rows)


def pairs(flat: list[bytes]) -> Fields:
    """A flat reply of keys and values, as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _state(scripts: Scripts, fields: Fields) -> State:
    if not fields:
        raise SluiceError(f"run {scripts.keys.prefix!r} is not open on this server")
    text = {k.decode(): v.decode() for k, v in fields.items()}
    return State(
        cursor=int(text["cursor"]),
        eof=text["eof"] == "1",
        batch=int(text["batch"]),
        step=int(text["step"]),
        version=int(text["version"]),
        epoch=int(text["epoch"]),
        trainer=text["trainer"],
        stop="" if text["stop"] == "running" else text["stop"],
        reason=text["reason"],
    )


def server_of(info: str) -> Server:
    """What concerns a run, of the server's INFO."""
    about = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fault = ""
    if about.get("aof_enabled") == "1" and about.get("aof_last_write_status") == "err":
        fault = "its append-only file cannot be written"
    elif about.get("rdb_last_bgsave_status") == "err":
        fault = "its last snapshot to disk failed"
    return Server(
        used_bytes=int(about["used_memory"]), limit_bytes=int(about["maxmemory"]), fault=fault
    )


def ledger_of(fields: Fields) -> Fates:
    """The hash of the ledger as sums, fate by fate."""
    out: dict[str, dict[str, int]] = {}
    for key, value in fields.items():
        fate, _, what = key.decode().rpartition("|")
        out.setdefault(fate, {"members": 0, "tokens": 0})[what] = int(value)
    return {fate: Sum(**parts) for fate, parts in sorted(out.items())}


def _letter(entry: bytes, fields: Fields, now_seconds: int) -> Letter:
    text = {key.decode(): value.decode(errors="replace") for key, value in fields.items()}
    written = int(entry.partition(b"-")[0]) / 1000
    return Letter(**text, age_seconds=max(0.0, now_seconds - written))


def _seen(boot: bytes, last: float, who: Fields, now: int, lease_ms: int) -> Seen | None:
    def about(what: bytes) -> Any:
        return who.get(boot + b"|" + what, b"")

    try:
        beat = decode(Beat, who[boot])
    except (DecodeError, KeyError):
        # A process of another release, or one that left no beat: it cannot be shown.
        return None
    return Seen(
        beat=beat,
        age_seconds=max(0.0, (now - int(about(b"seen") or now)) / 1000),
        held=int(about(b"held") or 0) if last else 0,  # declared dead, it holds nothing any more
        quarantined=about(b"quarantined").decode(),
        rejected=about(b"rejected").decode(),
        alive=last > 0 and now - last <= lease_ms,
    )
