"""What the cycle machine wants done, each with the reason for it. A driver does it."""

from typing import Literal

import msgspec

from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints, RaggedArray

Outcome = Literal["done", "stopped", "cancelled", "failed"]


class Command(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="command", tag=True):
    """Something to do."""

    reason: str


class Benchmark(Command, frozen=True, kw_only=True, eq=False):
    """Learners measure themselves on the task, for so many seconds at most, and report costs."""

    learners: Ints
    seconds: float


class AskBound(Command, frozen=True, kw_only=True, eq=False):
    """Each learner says how many shards it would take by that deadline; it holds `held` of them."""

    learners: Ints
    cycle: int
    deadline_s: float
    held: Ints


class Dispatch(Command, frozen=True, kw_only=True, eq=False):
    """An assignment for each learner: which shards, how many passes, how long.

    In federated learning shards are numbers on the device itself. `tail_s` is for how long after
    the deadline updates are waited for, `predicted_s` when each should be done, NaN where nothing
    is known.
    """

    learners: Ints
    cycle: int
    attempts: Ints
    shards: RaggedArray
    passes: Ints
    seconds_left: float
    tail_s: float
    predicted_s: Floats


class Withdraw(Command, frozen=True, kw_only=True, eq=False):
    """What these learners are at, or handed in, no longer counts; they stop."""

    learners: Ints
    cycle: int
    attempts: Ints


class Wake(Command, frozen=True, kw_only=True, eq=False):
    """Say so when that instant has come; replaces an earlier one."""

    at_s: float


class Aggregate(Command, frozen=True, kw_only=True, eq=False):
    """Average the updates of these learners with these weights."""

    cycle: int
    learners: Ints
    attempts: Ints
    weights: Floats


class Evaluate(Command, frozen=True, kw_only=True, eq=False):
    """Say how good the model is."""

    cycle: int


class Finish(Command, frozen=True, kw_only=True, eq=False):
    """It is over."""

    outcome: Outcome
