"""Cargo on its way: read from the bus by one rank, written by it, stepped on by any."""

from __future__ import annotations

from pathlib import Path

import pytest
from made import VOCABULARY, build, consider, group, member, rules
from msgspec.structs import replace

from pipeline.errors import SluiceError
from pipeline.messages import Group, Kept, Teaching
from pipeline.recorded import file_of
from services.training import batch
from services.training.briefs import brief
from services.training.cargo import Cargo
from services.training.planned import Imitated
from services.training.records import Records, plan
from services.training.shares import made, share
from services.training.streams import Coefficients

STREAMS = Coefficients(imitation=0.5, distillation=0.5)
EXAMPLES = (Imitated(bytes(4), bytes(8)),)
PACK_TOKENS = 12


def taught() -> list[Group]:
    """Of several lengths, with all that a completion may carry."""
    one, two, three = (
        member([5] * 3, 1.0),
        member([6, 7], 0.0, mask=((0, 1),)),
        member([8] * 4, 0.5),
    )
    kept = Kept(counts=b"\1\0\0\0" * 3, ids=b"\5\0\0\0" * 3)
    one = replace(one, completion=replace(one.completion, kept=kept))
    assert three.score
    said = Teaching(logprobs=b"\0\0\0\xbf" * 4, top_ids=bytes(32), top_logprobs=b"\0\0\0\xbf" * 8)
    three = replace(three, score=replace(three.score, teaching=said))
    return [
        group(name, [one, two, three], seq=seq, prompt=[3] * (seq + 1), temperature=0.5)
        for seq, name in enumerate(("a", "b", "c"))
    ]


def cargo_of(groups: list[Group], names: list[str]) -> Cargo:
    """What a rank has that was told to read these."""
    whole = {one.prompt.group: one for one in groups}
    cargo = Cargo(lambda names: [whole[name] for name in names], vocabulary=VOCABULARY)
    assert cargo.read(names) == [brief(whole[name], VOCABULARY) for name in names]
    return cargo


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_packs_that_ranks_make_of_a_record_are_those_of_the_groups_themselves(
    tmp_path: Path, ranks: int
) -> None:
    """Whoever has read a group, and whoever steps on its members."""
    groups, records = taught(), Records(tmp_path)
    at = rules()._replace(streams=STREAMS)
    judged = [consider(one, at, vocabulary=VOCABULARY) for one in groups]
    expected = build(judged, at, pack_tokens=1, examples=EXAMPLES).packs
    planned = batch.build(judged, at, examples=EXAMPLES)
    record = plan(planned, number=1, epoch=1, version=0)
    stem, places = records.begin(record), {}
    for rank, names in enumerate((["b"], ["c", "a"])):
        places |= cargo_of(groups, names).write(stem, names, rank)
    record = replace(record, places=places)
    records.write(record, whole=True)
    shares = share(planned, records.read(1), stem, ranks=ranks, pack_tokens=PACK_TOKENS)
    assert len(shares) == ranks and len({len(one.packs) for one in shares}) == 1
    found = {}
    for one in shares:
        for plans, pack in zip(one.packs, made(one), strict=True):
            starts = [0]
            for number, sequence in enumerate(plans):
                starts.append(starts[-1] + sequence.tokens)
                found[sequence.number] = pack, slice(*starts[number : number + 2])
    assert sorted(found) == [*range(len(expected))]
    for number, whole in enumerate(expected):
        pack, own = found[number]
        kept = slice(
            int(pack.kept_counts[: own.start].sum()), int(pack.kept_counts[: own.stop].sum())
        )
        for name, column in whole._asdict().items():
            there = getattr(pack, name)[kept if name == "kept_ids" else own]
            assert there.dtype == column.dtype and there.equal(column), name


def test_a_share_tells_of_no_group_that_its_rank_has_nothing_of(tmp_path: Path) -> None:
    groups, records = taught(), Records(tmp_path)
    planned = batch.build([consider(one, rules()) for one in groups], rules())
    record = plan(planned, number=1, epoch=1, version=0)
    cargo = cargo_of(groups, ["a", "b", "c"])
    record = replace(record, places=cargo.write(records.begin(record), ["a", "b", "c"], 0))
    for one in share(planned, record, records.stem(record), ranks=4, pack_tokens=1):
        named = {sequence.group for pack in one.packs for sequence in pack}  # type: ignore[union-attr]
        assert one.places.keys() == named and len(named) < 3


def test_a_rank_without_the_folder_of_the_run_is_told_that_all_need_one(tmp_path: Path) -> None:
    groups, records = taught(), Records(tmp_path / "here")
    planned = batch.build([consider(one, rules()) for one in groups], rules())
    record = plan(planned, number=1, epoch=1, version=0)
    elsewhere = str(tmp_path / "there" / "steps" / record.name)
    with pytest.raises(SluiceError, match=r"\.r1 cannot be written .* all ranks need one folder"):
        cargo_of(groups, ["a"]).write(elsewhere, ["a"], 1)
    cargo = cargo_of(groups, ["a", "b", "c"])
    record = replace(record, places=cargo.write(records.begin(record), ["a", "b", "c"], 0))
    (one,) = share(planned, record, elsewhere, ranks=1, pack_tokens=1)
    with pytest.raises(SluiceError, match=r"\.r0 cannot be read .* all ranks need one folder"):
        made(one)


def test_what_was_refused_or_written_is_held_no_more(tmp_path: Path) -> None:
    groups, records = taught(), Records(tmp_path)
    cargo = cargo_of(groups, ["a", "b", "c"])
    record = plan(batch.build([], rules()), number=1, epoch=1, version=0)
    cargo.drop(["b"])
    cargo.write(stem := records.begin(record), ["a"], 0)
    assert cargo._groups.keys() == {"c"}
    assert file_of(stem, 0).exists()
    records.forget_cargo(record)
    assert not file_of(stem, 0).exists()


def test_cargo_whose_trainer_was_killed_before_its_plan_is_swept(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.sweep()  # there is no folder yet
    empty = plan(batch.build([], rules()), number=1, epoch=1, version=0)
    for epoch, number, is_planned in ((1, 1, True), (1, 2, True), (1, 3, False), (2, 2, True)):
        record = replace(empty, batch=number, epoch=epoch)
        for rank in (0, 1):
            cargo_of(taught(), ["a"]).write(records.begin(record), ["a"], rank)
        if is_planned:
            records.write(record, whole=True)
    records.sweep()
    left = sorted(path.name for path in records.folder.glob("*.r*"))
    assert left == [f"0000000{name}.r{rank}" for name in ("1.e1", "2.e2") for rank in (0, 1)]
