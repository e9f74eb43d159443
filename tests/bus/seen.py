"""The server's keys and the model's world, brought to one form, so that they can be compared.

Times are left out: `clock` moves and checks them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import redis
from spec.world import Boot, Group, Member, Ticket, World

from pipeline.bus.keys import Keys
from pipeline.codec import decode
from pipeline.messages import Manifest

Look = dict[str, Any]
NEVER_STARTED = 9e15
STANDING = ("version", "size", "cursor", "last", "forgone")
CARGO = (b"c:", b"r:", b"p:")


def of_world(w: World) -> Look:
    return {
        "state": {
            "cursor": w.cursor, "batch": w.batch, "step": w.step, "version": w.version,
            "epoch": w.epoch, "trainer": w.trainer, "stop": w.stop, "reason": w.reason,
            "window": w.window, "narrowed_at": w.narrowed_at,
        },
        "alive": {g.name: g.start for g in w.alive},
        "due": {g.name for g in w.groups.values() if g.due is not None},
        "evaluation": {
            "state": [getattr(w.evaluation, name) for name in STANDING],
            "alive": {g.name for g in w.held_out},
            "outcomes": w.evaluation.outcomes,
            "boots": w.evaluation.boots,
            "ledger": {key: value for key, value in w.evaluation.ledger.items() if value},
        },
        "eval:prompts": [_ticket(t) for t in w.held_out_prompts],
        "prompts": [_ticket(t) for t in w.prompts],
        "completions": [_ticket(t) for t in w.completions],
        "ready": sorted((w.groups[name].start or 0, w.groups[name].seq, name) for name in w.ready),
        "groups": {g.name: _group(g) for g in w.groups.values()},
        "ledger": {key: value for key, value in w.ledger.items() if value},
        "versions": w.versions,
        "manifest": w.manifest,
        "proofs": w.proofs,
        "boots": {name: _boot(b) for name, b in w.boots.items()},
        "letters": w.letters,
    }  # fmt: skip


def _ticket(t: Ticket) -> tuple[Any, ...]:
    return t.group, t.member, t.owner, t.strikes


def _boot(b: Boot) -> tuple[Any, ...]:
    return b.service, b.instance, b.beat == 0, b.quarantined, bool(b.rejected), b.has_taken


def _group(g: Group) -> Look:
    return {
        "state": g.state,
        "marks": g.marks,
        "savers": g.savers,
        "booked": {key: value for key, value in g.booked.items() if value},
        "progress": g.progress,
        "lone": g.lone_strikes,
        "for good": g.ends is None,
        "owed": g.owed,
        "spent": {fate: sums for fate, sums in g.spent.items() if any(sums)},
        "members": [] if g.state == "closed" else [_member(m) for m in g.members],
    }


def _member(m: Member) -> tuple[Any, ...]:
    return m.status, m.tokens, m.is_held, len(m.chunks), m.num_chunks, m.saved, m.fate


# The server.


def of_server(
    client: redis.Redis, keys: Keys, names: list[str], *, versions: int
) -> tuple[Look, Mapping[str, Any]]:
    """The look, and the raw streams, whose ids are the tickets' numbers there.

    `names` are all groups that there may be, `versions` is a bound of their numbers.
    """
    found = _read(client, keys, names, versions)
    groups = {n: f for n, f in zip(names, found["groups"], strict=True) if f}
    state = {k.decode(): v.decode() for k, v in found["state"].items()}
    look = {
        "state": {
            **{k: int(state[k]) for k in ("cursor", "batch", "step", "version", "epoch")},
            "trainer": state["trainer"],
            "stop": "" if state["stop"] == "running" else state["stop"],
            "reason": state["reason"],
            "window": int(state["window"]) if "window" in state else None,
            "narrowed_at": int(state.get("narrowed_at", 0)),
        },
        "alive": {
            g.decode(): None if start == NEVER_STARTED else int(start) for g, start in found["live"]
        },
        "due": {g.decode() for g, _ in found["due"]},
        "evaluation": _evaluation(found),
        "eval:prompts": _tickets(found["eval:prompts"], found["eval:prompts held"]),
        "prompts": _tickets(found["prompts"], found["prompts held"]),
        "completions": _tickets(found["completions"], found["completions held"]),
        "ready": [(*divmod(int(order), 1 << 32), name.decode()) for name, order in found["ready"]],
        "groups": {
            name: _server_group(fields, for_good=ttl == -1)
            for (name, fields), ttl in zip(groups.items(), _ttls(client, keys, groups), strict=True)
        },
        "ledger": {
            tuple(k.decode().rsplit("|", 1)): int(v) for k, v in found["led"].items() if int(v)
        },
        "versions": _versions(found["ver"]),
        "manifest": _manifest(found["ver"]),
        "proofs": {(b.decode(), v) for v, boots in enumerate(found["proofs"]) for b in boots},
        "boots": _boots(found["beat"], found["who"]),
        "letters": [
            tuple(f[k].decode() for k in (b"stream", b"group", b"member", b"boot"))
            for _, f in found["dead"]
        ],
    }
    return look, found


def pieces(
    client: redis.Redis, keys: Keys, groups: list[Mapping[bytes, bytes]]
) -> tuple[set[str], set[str]]:
    """The pieces of large cargo that stay for good, and those that the groups refer to.

    A field that only refers to its cargo has its claim beside it.
    """
    claims: dict[str, list[str]] = {}
    for fields in groups:
        refer = {f for f, value in fields.items() if f[:2] in CARGO and b"blob/1" in value}
        assert refer == {f[2:] for f in fields if f.startswith(b"b:")}
        blobs = [fields[b"b:" + field].decode().split() for field in refer]
        claims |= {name: [keys.piece(name, i) for i in range(int(n))] for name, n in blobs}
    found = client.keys(keys.prefix + "b:*")
    p = client.pipeline(transaction=False)
    for key in found:
        p.ttl(key)
    stay = {key.decode() for key, ttl in zip(found, p.execute(), strict=True) if ttl == -1}
    return stay, {key for claimed in claims.values() for key in claimed}


def _read(client: redis.Redis, keys: Keys, names: list[str], versions: int) -> dict[str, Any]:
    p = client.pipeline(transaction=False)
    p.hgetall(keys.state), p.zrange(keys.live, 0, -1, withscores=True)
    p.zrange(keys.due, 0, -1, withscores=True)
    for stream in (keys.prompts, keys.completions):
        p.xrange(stream)
        p.xpending_range(stream, "team", "-", "+", 1000)
    eval_ = keys.prefix + "eval:"
    p.hgetall(eval_ + "state"), p.zrange(eval_ + "live", 0, -1), p.hgetall(eval_ + "led")
    p.hgetall(keys.outcomes), p.xrange(eval_ + "prompts")
    p.xpending_range(eval_ + "prompts", "team", "-", "+", 1000)
    p.zrange(keys.groups, 0, -1, withscores=True), p.hgetall(keys.ledger), p.hgetall(keys.versions)
    p.zrange(keys.beat, 0, -1, withscores=True)
    p.hgetall(keys.who), p.xrange(keys.dead)
    for version in range(versions):
        p.hkeys(keys.proof(version))
    for name in names:
        p.hgetall(keys.group(name))
    (state, live, due, prompts, held, completions, drawn, standing, held_out, own, outcomes, asked,
     taken, ready, led, ver, beat, who, dead,
     *rest) = p.execute(raise_on_error=False)  # fmt: skip
    if isinstance(taken, redis.ResponseError):  # there is no team before the first take
        taken = []
    return {
        "state": state, "live": live, "due": due, "prompts": prompts, "prompts held": held,
        "completions": completions, "completions held": drawn, "ready": ready, "led": led,
        "ver": ver, "proofs": rest[:versions], "beat": beat, "who": who, "dead": dead,
        "groups": rest[versions:], "eval": standing, "eval:live": held_out, "eval:led": own,
        "eval:out": outcomes, "eval:prompts": asked, "eval:prompts held": taken,
    }  # fmt: skip


def _evaluation(found: Mapping[str, Any]) -> Look:
    state = {key.decode(): int(value) for key, value in found["eval"].items()}
    unset = {"version": -1, "last": -1}
    out = {key.decode(): value for key, value in found["eval:out"].items()}
    return {
        "state": [state.get(name, unset.get(name, 0)) for name in STANDING],
        "alive": {name.decode() for name in found["eval:live"]},
        "outcomes": {int(key): json.loads(value) for key, value in out.items() if key.isdigit()},
        "boots": {key.removeprefix("boot:") for key in out if not key.isdigit()},
        "ledger": {
            tuple(k.decode().rsplit("|", 1)): int(v) for k, v in found["eval:led"].items() if int(v)
        },
    }


def _ttls(client: redis.Redis, keys: Keys, groups: Mapping[str, Any]) -> list[int]:
    p = client.pipeline(transaction=False)
    for name in groups:
        p.ttl(keys.group(name))
    return list(p.execute())


def _tickets(entries: list[Any], held: list[Any]) -> list[tuple[Any, ...]]:
    owners = {row["message_id"]: row for row in held}
    out = []
    for entry, fields in entries:
        row = owners.pop(entry, None)
        member = int(fields[b"m"]) if b"m" in fields else None
        owner = row["consumer"].decode() if row else None
        strikes = row["times_delivered"] - 1 if row else 0
        out.append((fields[b"g"].decode(), member, owner, strikes))
    assert not owners, f"pending tickets that are on no stream: {owners}"
    return out


def _versions(fields: Mapping[bytes, bytes]) -> dict[int, tuple[int, str]]:
    out: dict[int, tuple[int, str]] = {}
    for field, value in fields.items():
        version, _, what = field.decode().partition("|")
        if what == "step":
            out[int(version)] = (int(value), fields[f"{version}|print".encode()].decode())
    return out


def _manifest(fields: Mapping[bytes, bytes]) -> tuple[int, int] | None:
    if b"manifest" not in fields:
        return None
    manifest = decode(Manifest, fields[b"manifest"])
    return manifest.version, manifest.epoch


def _boots(beats: list[Any], who: Mapping[bytes, bytes]) -> Look:
    def about(boot: bytes, what: bytes) -> str:
        return who.get(boot + b"|" + what, b"").decode()

    return {
        boot.decode(): (
            about(boot, b"service"), about(boot, b"instance"), last == 0,
            about(boot, b"quarantined"), bool(about(boot, b"rejected")),
            bool(about(boot, b"taken")),
        )
        for boot, last in beats
    }  # fmt: skip


def _server_group(fields: Mapping[bytes, bytes], *, for_good: bool) -> Look:
    text = {k.decode(): v for k, v in fields.items()}
    state = text["state"].decode()

    def marked(letter: str) -> dict[tuple[int, str], bytes]:
        parts = [(k.split(":", 2), v) for k, v in text.items() if k.startswith(letter + ":")]
        return {(int(m), rest): v for (_, m, rest), v in parts}

    return {
        "state": state,
        "marks": {key: v.decode() for key, v in marked("d").items()},
        "savers": {(m, int(k)): v.decode() for (m, k), v in marked("s").items()},
        "booked": {key: int(v) for key, v in marked("v").items()},
        "progress": text["progress"].decode() if "progress" in text else None,
        "lone": int(text.get("lone", 0)),
        "for good": for_good,
        "spent": _spent(text),
        "owed": (int(text.get("owed", 0)), int(text.get("owed_tokens", 0))),
        "members": []
        if state == "closed"
        else [_server_member(text, m) for m in range(int(text["n"]))],
    }


def _spent(text: Mapping[str, bytes]) -> dict[str, tuple[int, int]]:
    fates = {name.split(":")[1] for name in text if name.startswith("z:")}
    return {
        fate: (int(text.get(f"z:{fate}:members", 0)), int(text.get(f"z:{fate}:tokens", 0)))
        for fate in fates
    }


def _server_member(text: Mapping[str, bytes], m: int) -> tuple[Any, ...]:
    chunks = sum(k.startswith(f"p:{m}:") for k in text)
    return (
        text.get(f"m:{m}", b"").decode(), int(text.get(f"u:{m}", 0)), f"c:{m}" in text, chunks,
        int(text.get(f"i:{m}", 0)), int(text.get(f"q:{m}", 0)), text.get(f"x:{m}", b"").decode(),
    )  # fmt: skip
