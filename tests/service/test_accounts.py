"""The account of a task: each granted shard is paid once or released, and the budget holds."""

from math import fsum, nan
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.commands import CoveredWork
from melisma.errors import SettingError
from melisma.fleet.array_types import NO_FLOATS, NO_INTS
from melisma.service.accounts import DAMAGED, LEFT_OUT, UNTRAINED, Account, Settlement, check_budget
from tests.service.scripted_service import task


def covered(rows: dict[tuple[int, int], int], awaited: list[tuple[int, int]]) -> CoveredWork:
    """Return covered work from shards by cycle and learner."""
    cycles, learners = np.array(list(rows), np.int64).reshape(-1, 2).T
    late_cycles, late = np.array(awaited, np.int64).reshape(-1, 2).T
    shards = np.array(list(rows.values()), np.int64)
    return CoveredWork(learners, cycles, shards, late, late_cycles)


def reserve(account: Account, cycle: int, rows: dict[int, tuple[int, float]]) -> None:
    shards, price = zip(*rows.values(), strict=True)
    account.reserve(cycle, np.array(list(rows)), np.array(shards), np.array(price, np.float64))


def settle(account: Account, scales: dict[tuple[int, int], float] | None = None) -> Settlement:
    rows = scales or {}
    if not rows:
        return account.settle(NO_INTS, NO_INTS, NO_FLOATS)
    cycles, learners = np.array(list(rows)).T
    return account.settle(learners, cycles, np.array(list(rows.values())))


def test_whole_shards_are_paid_and_the_rest_is_released() -> None:
    account = Account(budget=100.0)
    reserve(account, 1, {0: (5, 2.0), 1: (4, 3.0)})
    assert (account.reserved, account.left) == (22.0, 78.0)
    account.close(covered({(1, 0): 3, (1, 1): 9}, []))
    settled = settle(account)
    assert [(work, grant.shards) for work, grant in settled.paid] == [((1, 0), 3), ((1, 1), 4)]
    assert settled.released == {UNTRAINED: [((1, 0), 2)]}
    assert (account.paid, account.reserved, account.left) == (18.0, 0.0, 82.0)


def test_updates_that_were_left_out_are_not_paid() -> None:
    account = Account()
    reserve(account, 1, {0: (5, 2.0), 1: (4, 3.0), 2: (1, 1.0)})
    account.close(covered({(1, 0): 5, (1, 1): 4, (1, 2): 1}, []))
    settled = settle(account, {(1, 0): 0.0, (1, 1): nan, (1, 2): 0.3})
    assert [work for work, _ in settled.paid] == [(1, 2)]
    assert settled.released == {LEFT_OUT: [((1, 0), 5)], DAMAGED: [((1, 1), 4)]}


def test_late_work_stays_reserved_until_it_counts_or_is_lost() -> None:
    account = Account(budget=100.0)
    reserve(account, 1, {0: (5, 2.0), 1: (4, 3.0)})
    assert not account.close(covered({}, [(1, 0), (1, 1)])).released
    settle(account)
    assert account.left == 78.0
    released = account.close(covered({(1, 0): 5}, [])).released
    assert list(released.values()) == [[((1, 1), 4)]]
    assert [work for work, _ in settle(account).paid] == [(1, 0)]
    assert (account.paid, account.left) == (10.0, 90.0)


def test_extensions_are_not_paid() -> None:
    account = Account()
    reserve(account, 1, {0: (5, 2.0)})
    account.close(covered({(1, 0): 8, (1, 7): 3}, []))
    assert [(work, grant.shards) for work, grant in settle(account).paid] == [((1, 0), 5)]


def test_an_average_is_paid_once() -> None:
    account = Account()
    reserve(account, 1, {0: (5, 2.0)})
    account.close(covered({(1, 0): 5}, []))
    assert settle(account).paid
    assert not settle(account).paid
    account.close(covered({(1, 0): 5}, []))
    assert not settle(account).paid


GRANTS = st.dictionaries(
    st.integers(0, 5), st.tuples(st.integers(1, 20), st.floats(0, 1e9)), min_size=1, max_size=6
)


@given(st.lists(st.tuples(GRANTS, st.randoms(use_true_random=False)), max_size=6))
def test_each_granted_shard_is_paid_once_or_released(
    cycles: list[tuple[dict[int, tuple[int, float]], Random]],
) -> None:
    account, granted, ended = Account(), dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    amounts, late = list[float](), list[tuple[int, int]]()

    def count(settled: Settlement) -> None:
        for work, grant in settled.paid:
            ended[work] = ended.get(work, 0) + grant.shards
            amounts.append(grant.shards * grant.price)
        for released in settled.released.values():
            for work, shards in released:
                ended[work] = ended.get(work, 0) + shards

    for cycle, (grants, rng) in enumerate(cycles, 1):
        reserve(account, cycle, grants)
        granted |= {(cycle, learner): shards for learner, (shards, _) in grants.items()}
        rows, kept = dict[tuple[int, int], int](), list[tuple[int, int]]()
        for work in [*late, *((cycle, learner) for learner in grants)]:
            fate = rng.random()
            if fate < 0.5:
                rows[work] = int(granted[work] * min(1.0, 3 * fate))
            elif fate < 0.8:
                kept.append(work)
        late = kept
        count(account.close(covered(rows, kept)))
        count(settle(account, dict.fromkeys(list(rows)[:1], 0.0)))
    count(account.end())
    assert ended == granted
    assert account.paid == pytest.approx(fsum(amounts))
    assert account.reserved == 0


def test_a_budget_and_extensions_exclude_each_other() -> None:
    check_budget(task("first", extension=True), None)
    check_budget(task("first", extension=False, budget=3.0), 5.0)
    with pytest.raises(SettingError, match="it has budget = 3; use extension = false"):
        check_budget(task("first", extension=True, budget=3.0), None)
    with pytest.raises(SettingError, match="each round has budget = 5"):
        check_budget(task("first", extension=True), 5.0)
