"""A ragged array behaves like a list of lists."""

from random import Random
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle import ragged as module
from melisma.cycle.ragged import RaggedArray

lists = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=9)


def to_lists(rows: RaggedArray) -> list[list[int]]:
    return [row.tolist() for row in rows]


@given(lists, st.integers(1, 10))
def test_blocks_contain_all_rows_in_order_up_to_the_block_size(
    rows: list[list[int]], size: int
) -> None:
    with patch.object(module, "BLOCK", size):
        blocks = [*RaggedArray.from_rows(np.array(row) for row in rows).blocks()]
    lists_of_blocks = [(part, to_lists(block)) for part, block in blocks]
    assert [block for _, block in lists_of_blocks] == [rows[part] for part, _ in lists_of_blocks]
    assert [row for _, block in lists_of_blocks for row in block] == rows
    assert all(len(block) <= size for _, block in lists_of_blocks)


@given(lists, st.randoms())
def test_take_returns_rows_in_the_given_order(rows: list[list[int]], rng: Random) -> None:
    order = list(range(len(rows)))
    rng.shuffle(order)
    taken = RaggedArray.from_rows(np.array(row) for row in rows).take(np.array(order[:3], np.int64))
    assert to_lists(taken) == [rows[index] for index in order[:3]]


def test_taking_all_rows_in_order_copies_nothing() -> None:
    rows = RaggedArray(np.array([2, 0, 1]), np.array([7, 8, 9]))
    assert rows.take(np.arange(3)).values is rows.values
    assert to_lists(rows.take(np.array([0, 2, 1]))) == [[7, 8], [9], []]


@given(lists)
def test_row_sums_are_the_sums_of_the_rows(rows: list[list[int]]) -> None:
    all_rows = RaggedArray.from_rows(np.array(row) for row in rows)
    assert all_rows.row_sums(all_rows.values).tolist() == [sum(row) for row in rows]
