"""A task that shares its learners with others: it requests shares, and trains what it is granted.

Who works for which task is decided for all tasks together, in `melisma.service`. A shared task
collects the costs of all learners, and in place of a plan of its own it requests shares. The cycle
then goes on as any other, with the learners and the numbers of shards that it was granted.
"""

import numpy as np

from melisma.allocation import CyclePlan
from melisma.allocation.schemes import Scheme
from melisma.cycle import commands, events
from melisma.cycle.commands import Commands
from melisma.cycle.planning import PlannedCycle, ready_learners
from melisma.cycle.rounds import (
    assign,
    finish,
    record_empty_cycle,
    reject_plan,
    start_round,
    wake,
)
from melisma.cycle.state import CycleState, Stage
from melisma.errors import SettingError
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task


def check_shared(task: Task, scheme: Scheme) -> None:
    """Raise `SettingError` if a task cannot share its learners with others."""
    scheme.check_shared()
    scheme.check_passes(task.passes)
    refused = {
        "mode = federated": task.mode == "federated",
        "sample": task.sample is not None,
        "max_shards": task.max_shards is not None,
        "total_s or finish_by": task.total_s is not None or task.finish_by is not None,
    }
    for setting, is_set in refused.items():
        if is_set:
            raise SettingError(
                f"task {task.name} has {setting}, which tasks that share learners do not support; "
                "remove it, or run the task alone"
            )


def request_shares(state: CycleState) -> commands.RequestShares:
    """Wait for shares of the learners that are ready."""
    learners = ready_learners(state)
    state.stage, state.limit_s = Stage.SHARING, np.inf
    return commands.RequestShares(
        reason=f"scheme {state.scheme.name} plans all tasks together",
        cycle=state.cycle,
        learners=learners,
        costs=state.learners.costs[:, :, learners].copy(),
    )


def on_granted(state: CycleState, event: events.SharesGranted) -> Commands:
    """Dispatch the granted shards; learners that have left meanwhile get none."""
    if state.stage is not Stage.SHARING:
        return []
    here = np.isin(event.learners, ready_learners(state)) & (event.shards > 0)
    learners, shards = event.learners[here], event.shards[here]
    if not learners.size:
        return record_empty_cycle(state, "no learner that was granted is left")
    passes = np.full(learners.size, state.task.passes)
    planned = PlannedCycle(
        learners, CyclePlan(shards, passes), predict_seconds(state, learners, shards), ()
    )
    start_round(state, event.at_s)
    return [assign(state, planned), *wake(state)]


def on_refused(state: CycleState, event: events.SharesRefused) -> Commands:
    """Fail the run in its first cycle; later, record an empty cycle and measure again.

    A final refusal ends the run, which has not failed if it has a model of some cycle.
    """
    if state.stage is not Stage.SHARING:
        return []
    if not event.final:
        return reject_plan(state, event.reason)
    has_model = state.empty_cycles < state.cycle - 1
    return finish(state, "finished" if has_model else "failed", event.reason)


def predict_seconds(state: CycleState, learners: Ints, shards: Ints) -> Floats:
    """Return the seconds that learners need for these shards, by the costs that they reported."""
    train_s, ship_s, fixed_s = state.learners.costs[:, 0, learners]
    predicted_s: Floats = fixed_s + (ship_s + (state.task.passes or 1) * train_s) * shards
    return predicted_s
