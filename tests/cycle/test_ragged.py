"""Rows in two arrays, beside lists of lists."""

from random import Random
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle import ragged as module
from melisma.cycle.ragged import RaggedArray

lists = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=9)


def listed(rows: RaggedArray) -> list[list[int]]:
    return [row.tolist() for row in rows]


@given(lists, st.integers(1, 10))
def test_blocks_are_all_rows_so_many_at_a_time(rows: list[list[int]], size: int) -> None:
    with patch.object(module, "BLOCK", size):
        blocks = [*RaggedArray.of(np.array(row) for row in rows).blocks()]
    found = [(at, listed(some)) for at, some in blocks]
    assert [some for _, some in found] == [rows[at] for at, _ in found]
    assert [row for _, some in found for row in some] == rows
    assert all(len(some) <= size for _, some in found)


@given(lists, st.randoms())
def test_some_rows_come_in_the_order_asked_for(rows: list[list[int]], rng: Random) -> None:
    order = list(range(len(rows)))
    rng.shuffle(order)
    some = RaggedArray.of(np.array(row) for row in rows).take(np.array(order[:3], np.int64))
    assert listed(some) == [rows[place] for place in order[:3]]


@given(lists)
def test_sums_are_those_of_each_row(rows: list[list[int]]) -> None:
    all_rows = RaggedArray.of(np.array(row) for row in rows)
    assert all_rows.row_sums(all_rows.values).tolist() == [sum(row) for row in rows]
