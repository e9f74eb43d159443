"""Field cases of ids, ends and kept sets: what the trainer makes of them."""

from __future__ import annotations

import struct

from made import build, consider, group, member, rules
from msgspec.structs import replace

from pipeline.messages import Group, Kept, Member, Sampling


def test_C011_a_completion_that_ends_on_a_secondary_end_is_not_truncated() -> None:
    made = group("g", [member([4, 5, 32007], 1), member([4, 32000], 0)], prompt=[3])
    batch = build([consider(made, rules())], rules(), pack_tokens=100)
    assert batch.statistics["truncated_share"] == 0
    (pack,) = batch.packs
    assert (pack.weight > 0).tolist() == [False, True, True, True, False, True, True]


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def keeping(one: Member, kept: Kept | None) -> Member:
    return replace(one, completion=replace(one.completion, kept=kept))


def truncated(*members: Member) -> Group:
    made = group("g", members)
    return replace(made, prompt=replace(made.prompt, sampling=Sampling(top_p=0.8)))


def test_C002_the_kept_sets_stand_at_the_tokens_that_were_drawn_from_them() -> None:
    one = Kept(counts=ints(2, 0, 1), ids=ints(5, 9, 7))
    other = Kept(counts=ints(0, 3), ids=ints(1, 2, 5))
    made = truncated(keeping(member([5, 6, 7], 1), one), keeping(member([6, 5], 0), other))
    (pack,) = build([consider(made, rules())], rules(), pack_tokens=100).packs
    assert pack.ids.tolist() == [3, 4, 5, 6, 7, 3, 4, 6, 5]
    assert pack.kept_counts.tolist() == [0, 0, 2, 0, 1, 0, 0, 0, 3]
    assert pack.kept_ids.tolist() == [5, 9, 7, 1, 2, 5]


def test_C002_a_member_whose_kept_sets_cannot_be_is_refused_and_the_others_are_trained() -> None:
    whole = Kept(counts=ints(1, 1), ids=ints(5, 6))
    strange = Kept(counts=ints(1, 1), ids=ints(5, 7))
    short = Kept(counts=ints(1), ids=ints(5))
    bare = member([5, 6], 1)
    made = truncated(*(keeping(bare, kept) for kept in (whole, strange, short, None)))
    judged = consider(
        replace(made, members={**made.members, 4: replace(bare, score=None)}), rules()
    )
    assert {fate: sums.members for fate, sums in judged.fates.items()} == {
        "zero_signal": 1,
        "kept_without_token": 1,
        "kept_length": 1,
        "kept_missing": 1,
        "scorer_error": 1,
    }
