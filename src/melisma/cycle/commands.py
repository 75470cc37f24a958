"""Commands of the cycle machine, each with its reason. A driver carries them out."""

from typing import Literal

import msgspec
import numpy as np

from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Floats, Ints

Outcome = Literal["done", "stopped", "cancelled", "failed"]


class Command(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="command", tag=True):
    """A command to the driver."""

    reason: str


class Benchmark(Command, frozen=True, kw_only=True, eq=False):
    """Let learners measure their costs for up to `seconds` and report them."""

    learners: Ints
    seconds: float


class AskBound(Command, frozen=True, kw_only=True, eq=False):
    """Ask learners how many shards they can train by a deadline.

    `held` is the number of upcoming shards that each learner already holds.
    """

    learners: Ints
    cycle: int
    deadline_s: float
    held: Ints


class Dispatch(Command, frozen=True, kw_only=True, eq=False):
    """Send an assignment to each learner.

    In federated learning `shards` are numbers on the device itself. `tail_s` is how long after the
    deadline updates are accepted; `predicted_s` how long each assignment should take, NaN if
    unknown. `no_pass` lists learners with planned shards but no time for one pass over them: they
    get no assignment.
    """

    learners: Ints
    cycle: int
    attempts: Ints
    shards: RaggedArray
    passes: Ints
    seconds_left: float
    tail_s: float
    predicted_s: Floats
    no_pass: Ints = msgspec.field(default_factory=lambda: np.empty(0, np.int64))


class Withdraw(Command, frozen=True, kw_only=True, eq=False):
    """Tell learners that these assignments no longer count; they stop working on them."""

    learners: Ints
    cycle: int
    attempts: Ints


class Wake(Command, frozen=True, kw_only=True, eq=False):
    """Send `TimeReached` at an instant; replaces an earlier `Wake`."""

    at_s: float


class Aggregate(Command, frozen=True, kw_only=True, eq=False):
    """Average the updates of these learners with these weights; without any, keep the model."""

    cycle: int
    learners: Ints
    attempts: Ints
    weights: Floats


class Evaluate(Command, frozen=True, kw_only=True, eq=False):
    """Evaluate the model."""

    cycle: int


class Finish(Command, frozen=True, kw_only=True, eq=False):
    """End the run."""

    outcome: Outcome


AnyCommand = Benchmark | AskBound | Dispatch | Withdraw | Wake | Aggregate | Evaluate | Finish
