"""The desk of weights: versions are announced by the trainer and confirmed by each engine."""

from __future__ import annotations

from typing import Literal, cast

from pipeline.bus.errors import Unannounced
from pipeline.bus.leading import Leading
from pipeline.bus.leases import unless_gone
from pipeline.bus.scripts import Scripts
from pipeline.codec import decode, encode
from pipeline.errors import SluiceError
from pipeline.messages import Manifest

Confirmation = Literal["ok", "wrong", "forgotten"]
_REFUSALS = {
    "taken": "another set of weights was announced under this number",
    "old": "a version only grows, beyond every one that was announced",
}


class Versions:
    """What weights there are, and which engine has proven which."""

    def __init__(self, scripts: Scripts, leading: Leading) -> None:
        self._scripts, self._leading = scripts, leading

    def announce(self, manifest: Manifest, *, min_version: int) -> None:
        """Make a version the newest. `min_version`: the highest known to be announced, plus one.

        A repeat is harmless, and so is a former announcement, by whatever epoch, with a
        `min_version` that is not above it; of the newest it renews the location. Raises Fenced for
        an epoch that is over, SluiceError for a number that was used or is too low.
        """
        m = manifest
        reply = self._leading.act(
            "announce", m.epoch, m.version, min_version, m.step, m.fingerprint, encode(m)
        ).decode()
        if reply != "ok":
            raise SluiceError(f"version {m.version} (epoch {m.epoch}): {_REFUSALS[reply]}")

    def steps(self) -> dict[int, int]:
        """The step of every version that was announced and may still be met, by version."""
        scripts = self._scripts
        (found,) = scripts.read(("HGETALL", scripts.keys.versions))
        steps = {name.decode().partition("|"): value for name, value in found.items()}
        return {int(v): int(step) for (v, _, what), step in steps.items() if what == "step"}

    def newest(self, *, after: int = -1) -> Manifest | None:
        """The newest version's manifest, if it is above `after`. Raises DecodeError.

        Asked many times a second: only a number travels until there is something new.
        """
        scripts = self._scripts
        (version,) = scripts.read(("HGET", scripts.keys.state, "version"))
        if version is None or int(version) <= after:
            return None
        (payload,) = scripts.read(("HGET", scripts.keys.versions, "manifest"))
        return decode(Manifest, payload) if payload else None

    def confirm(self, boot: str, version: int, fingerprint: str) -> Confirmation:
        """Compare the fingerprint with the announced one.

        "ok": they are equal, and the version's tokens may flow; "wrong": they are not; "forgotten":
        the version is not announced any more, after a rollback for one, and will not be again.
        Raises Gone, and Unannounced for a version above the newest.
        """
        reply = unless_gone(self._scripts.call("confirm", boot, version, fingerprint), boot)
        if reply == "unknown":
            raise Unannounced(f"version {version} was not announced, so it cannot be confirmed")
        return cast(Confirmation, reply)

    def reject(self, boot: str, version: int, reason: str) -> None:
        """Say why this boot could not stage a version. Raises Gone."""
        note = f"version {version}: {reason}"
        unless_gone(self._scripts.call("remark", boot, "rejected", note), boot)

    def quarantine(self, boot: str, reason: str) -> None:
        """This boot gets no prompts any more. Raises Gone."""
        unless_gone(self._scripts.call("remark", boot, "quarantined", reason), boot)
