"""Memory for bodies in transfer: bodies wait for it, and one caller holds a quarter of it."""

import asyncio
import random
from collections import Counter

import pytest

from melisma.axon.server.receive_budget import FREE_BYTES, ReceiveBudget

UNIT = FREE_BYTES + 1


async def begun(*tasks: "asyncio.Task[None]") -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


def starter(budget: ReceiveBudget, size: int, caller: str) -> "asyncio.Task[None]":
    return asyncio.ensure_future(budget.acquire(size, caller))


async def test_a_body_waits_until_another_has_arrived() -> None:
    budget = ReceiveBudget(4 * UNIT)
    tasks = [starter(budget, UNIT, f"caller {number}") for number in range(5)]
    assert await begun(*tasks) == [True] * 4 + [False]
    budget.release(UNIT, "caller 2")
    assert await begun(tasks[4]) == [True]


async def test_a_caller_over_its_quarter_waits_while_others_pass() -> None:
    budget = ReceiveBudget(4 * UNIT)
    greedy = [starter(budget, UNIT, "greedy") for _ in range(10)]
    assert sum(await begun(*greedy)) == 1
    other = starter(budget, UNIT, "other")
    assert await begun(other) == [True]
    budget.release(UNIT, "greedy")
    assert sum(await begun(*greedy)) == 2
    for task in greedy:
        task.cancel()


async def test_a_body_over_the_limit_begins_when_it_is_alone_and_is_not_overtaken() -> None:
    budget = ReceiveBudget(4 * UNIT)
    small = starter(budget, UNIT, "small")
    large = starter(budget, 100 * UNIT, "large")
    later = starter(budget, UNIT, "later")
    assert await begun(small, large, later) == [True, False, False]
    budget.release(UNIT, "small")
    assert await begun(large, later) == [True, False]
    budget.release(100 * UNIT, "large")
    assert await begun(later) == [True]


async def test_small_bodies_never_wait() -> None:
    budget = ReceiveBudget(UNIT)
    await budget.acquire(UNIT, "large")
    await asyncio.wait_for(budget.acquire(FREE_BYTES, "small"), 1)
    budget.release(FREE_BYTES, "small")


@pytest.mark.parametrize("seed", range(20))
async def test_the_limits_hold_and_all_bodies_begin_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    budget = ReceiveBudget(8 * UNIT)
    waiting: dict[asyncio.Task[None], tuple[int, str]] = {}
    held: list[tuple[int, str]] = []
    for step in range(300):
        if step < 200 and rng.random() < 0.5:
            body = (rng.randint(1, 3) * UNIT, rng.choice("abcd"))
            waiting[starter(budget, *body)] = body
        elif held and rng.random() < 0.8:
            budget.release(*held.pop(rng.randrange(len(held))))
        elif waiting and step < 200:
            task = rng.choice(list(waiting))
            task.cancel()
            del waiting[task]
        await begun()
        held += [waiting.pop(task) for task in list(waiting) if task.done()]
        by_caller = Counter[str]()
        for size, caller in held:
            by_caller[caller] += size
        assert sum(by_caller.values()) <= 8 * UNIT
        assert all(size <= 3 * UNIT for size in by_caller.values())
    while held:
        budget.release(*held.pop())
        await begun()
        held += [waiting.pop(task) for task in list(waiting) if task.done()]
    assert not waiting
