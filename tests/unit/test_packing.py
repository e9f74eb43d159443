from hypothesis import given
from hypothesis import strategies as st

from services.training.packing import pack


@given(lengths=st.lists(st.integers(1, 50), max_size=40), limit=st.integers(1, 60))
def test_each_sequence_is_in_one_pack_and_a_pack_over_the_limit_holds_one(
    lengths: list[int], limit: int
) -> None:
    packs = pack(lengths, limit)
    assert sorted(number for members in packs for number in members) == [*range(len(lengths))]
    for members in packs:
        assert members == sorted(members)
        assert sum(lengths[number] for number in members) <= limit or len(members) == 1
    assert packs == sorted(packs) == pack(lengths, limit)


@given(lengths=st.lists(st.integers(1, 50), max_size=40), limit=st.integers(50, 60))
def test_no_two_packs_would_fit_into_one(lengths: list[int], limit: int) -> None:
    totals = sorted(sum(lengths[n] for n in members) for members in pack(lengths, limit))
    assert len(totals) < 2 or totals[0] + totals[1] > limit


def test_the_longest_are_placed_first() -> None:
    assert pack([3, 6, 4, 7], 10) == [[0, 3], [1, 2]]
