"""Commands that settle grants: payments of counted work, and releases of all other work."""

import numpy as np

from melisma.service import commands
from melisma.service.accounts import Settlement, columns
from melisma.service.commands import Commands
from melisma.service.service_state import ServiceState, TaskRecord


def issue(state: ServiceState, record: TaskRecord, cycle: int, settled: Settlement) -> Commands:
    """Return the payment of an average of `cycle`, and a release for each reason."""
    issued: Commands = []
    if settled.paid:
        issued.append(pay(state, record, cycle, settled))
    for reason, released in settled.released.items():
        cycles, learners = columns([work for work, _ in released])
        shards = np.array([count for _, count in released], np.int64)
        issued.append(
            commands.ReleaseShares(
                reason=reason, number=record.number, learners=learners, cycles=cycles, shards=shards
            )
        )
    return issued


def pay(state: ServiceState, record: TaskRecord, cycle: int, settled: Settlement) -> commands.Pay:
    """Return the payment of shards at the price of their grant."""
    cycles, learners = columns([work for work, _ in settled.paid])
    shards = np.array([grant.shards for _, grant in settled.paid], np.int64)
    prices = np.array([grant.price for _, grant in settled.paid], np.float64)
    return commands.Pay(
        reason="their updates are in the average",
        number=record.number,
        task=record.task.name,
        cycle=cycle,
        learners=learners,
        names=tuple(state.names[learner] for learner in learners.tolist()),
        cycles=cycles,
        shards=shards,
        prices=prices,
        amounts=shards * prices,
    )
