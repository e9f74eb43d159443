"""Whose silence is believed, and when."""

from __future__ import annotations

from msgspec.structs import replace
from up_made import BEATS, engine, snapshot

from pipeline.watch import Snapshot
from services.up.silence import SURE_SECONDS, Silence

WHO = ("inference-0", 7)


def aged(*ages: float) -> Snapshot:
    """One process, with a boot for each age of its last beat."""
    boots = [engine(f"inference-0:{n}", 1.0, 0.1, pid=7) for n in range(len(ages))]
    beats = [replace(b, age_seconds=age) for b, age in zip(boots, ages, strict=True)]
    return replace(snapshot(), beats=(*BEATS, *beats))


def test_silence_beyond_three_leases_is_told_once_it_is_sure() -> None:
    silence = Silence()
    assert silence.observe(aged(44.0), 0.0) == {}
    assert silence.observe(aged(46.0), 2.0) == {}
    assert silence.observe(aged(47.0), 2.0 + SURE_SECONDS) == {WHO: 47.0}


def test_short_leases_still_leave_twenty_seconds() -> None:
    silence, short = Silence(), replace(aged(19.0), lease_seconds=5.0)
    assert silence.observe(short, 0.0) == silence.observe(short, 60.0) == {}


def test_a_beat_after_a_suspended_machine_ends_the_doubt() -> None:
    silence = Silence()
    for at, age in ((0.0, 9000.0), (1.0, 0.5), (60.0, 9000.0)):
        assert silence.observe(aged(age), at) == {}


def test_a_process_with_a_new_boot_is_not_silent_for_its_old_one() -> None:
    silence = Silence()
    assert silence.observe(aged(90.0, 1.0), 0.0) == silence.observe(aged(95.0, 1.0), 9.0) == {}
