"""Commands of the service, each with its reason. A driver carries them out."""

import msgspec

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task


class Command(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="command", tag=True):
    """A command to the driver."""

    reason: str


class PlanRound(Command, frozen=True, kw_only=True, eq=False):
    """Plan a round of these tasks, and report `RoundPlanned` or `RoundInfeasible`.

    `costs` are those of each task: `train_s`, `ship_s` and `fixed_s` by learners, NaN for a
    learner that is not ready for the task. A search ends after `limit_s`. `assigned` is the
    position of each learner's task where it is decided, -1 for none; empty if the plan decides.
    `budget` is that of the round, and `budgets_left` are what the tasks' own budgets leave for this
    round, None without one.
    """

    round: int
    numbers: tuple[int, ...]
    tasks: tuple[Task, ...]
    scheme: str
    learners: Ints
    names: tuple[str, ...]
    costs: tuple[Floats, ...]
    price: Floats
    budget: float | None
    limit_s: float
    assigned: Ints
    budgets_left: tuple[float | None, ...] = ()


class GrantShares(Command, frozen=True, kw_only=True, eq=False):
    """Let the cycle machine of a task handle `SharesGranted`; `planned_s` is its time in the plan.

    `cost` is the price of all shards of the round. The shards of a learner are paid at its `price`
    of this moment, whatever it is later.
    """

    round: int
    number: int
    cycle: int
    learners: Ints
    shards: Ints
    price: Floats
    planned_s: float
    cost: float


class RefuseShares(Command, frozen=True, kw_only=True, eq=False):
    """Let the cycle machine of a task handle `SharesRefused` with this reason.

    With `final` the task ends.
    """

    number: int
    final: bool = False


class HoldTask(Command, frozen=True, kw_only=True, eq=False):
    """Tell the owner of a task that it waits for a later round; the reason says why.

    The next round is planned by `until_s`, when the tasks of this one reach their deadlines; None
    if no task begins: then it is planned when a learner or another task is ready.
    """

    round: int
    number: int
    until_s: float | None = None


class Pay(Command, frozen=True, kw_only=True, eq=False):
    """Pay learners of a task for whole shards that their counted updates cover.

    Each row is one payment: the `learner`, called `names`, had the work in one of `cycles`, and is
    paid `amounts` = `shards` * `prices`. `cycle` is that whose average the updates joined. A task,
    cycle and learner are paid once.
    """

    number: int
    task: str
    cycle: int
    learners: Ints
    names: tuple[str, ...]
    cycles: Ints
    shards: Ints
    prices: Floats
    amounts: Floats


class ReleaseShares(Command, frozen=True, kw_only=True, eq=False):
    """Release shards of a task that were granted to learners in `cycles`: they are not paid."""

    number: int
    learners: Ints
    cycles: Ints
    shards: Ints


class Wake(Command, frozen=True, kw_only=True, eq=False):
    """Send `TimeReached` at an instant; replaces an earlier `Wake`."""

    at_s: float


AnyCommand = PlanRound | GrantShares | RefuseShares | HoldTask | Pay | ReleaseShares | Wake
Commands = list[AnyCommand]
