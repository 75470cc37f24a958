"""Commands of the cycle machine, each with its reason. A driver carries them out."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import NO_FLOATS, NO_INTS, Floats, Ints

Outcome = Literal["finished", "reached goal", "cancelled", "failed"]


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


class RequestShares(Command, frozen=True, kw_only=True, eq=False):
    """Request learners and shards for a cycle of a shared task; replaces an earlier request.

    `learners` are those that are ready, with their `costs` as they reported them: `COSTS` by
    `PARTS` by learners.
    """

    cycle: int
    learners: Ints
    costs: Floats


class Dispatch(Command, frozen=True, kw_only=True, eq=False):
    """Send an assignment to each learner.

    In federated learning `shards` are numbers on the device itself. `tail_s` is how long after the
    deadline updates are accepted; `predicted_s` how long each assignment should take, NaN if
    unknown. `no_pass` lists learners with planned shards but no time for one pass over them: they
    get no assignment. `drawn` are the learners of the cycle's sample, if the task has one, or
    those that a shared task was granted.
    """

    learners: Ints
    cycle: int
    attempts: Ints
    shards: RaggedArray
    passes: Ints
    seconds_left: float
    tail_s: float
    predicted_s: Floats
    no_pass: Ints = NO_INTS
    drawn: Ints = NO_INTS


class Extend(Command, frozen=True, kw_only=True, eq=False):
    """Give learners at work further shards; one update covers them too.

    `handed_on` are those of the shards that another learner was given before.
    """

    learners: Ints
    cycle: int
    attempts: Ints
    shards: RaggedArray
    passes: Ints
    handed_on: Ints


class Resend(Command, frozen=True, kw_only=True, eq=False):
    """Repeat assignments whose instruction may be lost; learners that have them ignore it.

    Attempt 1 is the assignment itself, others are its extensions. Shards that were taken back are
    not repeated.
    """

    learners: Ints
    cycle: int
    attempts: Ints
    shards: RaggedArray
    passes: Ints
    seconds_left: float


class Prefetch(Command, frozen=True, kw_only=True, eq=False):
    """Let learners fetch shards of the next cycle while they wait for it."""

    learners: Ints
    shards: RaggedArray


class Withdraw(Command, frozen=True, kw_only=True, eq=False):
    """Tell learners that these assignments no longer count; they stop working on them."""

    learners: Ints
    cycle: int
    attempts: Ints


class Challenge(Command, frozen=True, kw_only=True, eq=False):
    """Let learners reveal the states at the edges of one segment of their training."""

    learners: Ints
    cycle: int
    attempts: Ints
    segments: Ints


class Suspect(Command, frozen=True, kw_only=True, eq=False):
    """Report learners whose updates do not fit the shards that they were given."""

    learners: Ints


class Wake(Command, frozen=True, kw_only=True, eq=False):
    """Send `TimeReached` at an instant; replaces an earlier `Wake`."""

    at_s: float


class LateUpdates(msgspec.Struct, frozen=True, eq=False):
    """Updates of earlier cycles that arrived after their cycle was closed.

    `covered` are the whole shards that the visits of each cover, in a shared task.
    """

    learners: Ints
    cycles: Ints
    attempts: Ints
    weights: Floats
    visits: Ints
    steps: Ints = NO_INTS
    covered: Ints = NO_INTS

    @classmethod
    def concatenate(cls, parts: "Sequence[LateUpdates]") -> "LateUpdates":
        """Return the updates of all parts."""
        names = cls.__struct_fields__
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


NO_LATE_UPDATES = LateUpdates(NO_INTS, NO_INTS, NO_INTS, NO_FLOATS, NO_INTS)


class CoveredWork(msgspec.Struct, frozen=True, eq=False):
    """The work of a shared task when a cycle closes: it is paid for what updates cover.

    `learners` have an update in the average, from an assignment of `cycles`, whose visits cover
    this many whole `shards`. The late work of `awaited` learners, from `awaited_cycles`, may still
    join a later average. No other work that was granted is going to count.
    """

    learners: Ints
    cycles: Ints
    shards: Ints
    awaited: Ints
    awaited_cycles: Ints


class Aggregate(Command, frozen=True, kw_only=True, eq=False):
    """Average the updates of these learners with these weights; without any, keep the model.

    Of `late` updates the change relative to the parameters that they began with is added to the
    present parameters, and joins the average with its own weight. `visits` are those of each
    update, further passes included: the guard expects a larger change after more visits. `steps`
    are those of each update if the task normalises changes by them. `covered` is what the updates
    of a shared task cover.
    """

    cycle: int
    learners: Ints
    attempts: Ints
    weights: Floats
    visits: Ints
    steps: Ints = NO_INTS
    late: LateUpdates = NO_LATE_UPDATES
    covered: CoveredWork | None = None


class Evaluate(Command, frozen=True, kw_only=True, eq=False):
    """Evaluate the model."""

    cycle: int


class Restore(Command, frozen=True, kw_only=True, eq=False):
    """Replace the model by the one that this cycle began with."""

    cycle: int


class Dismiss(Command, frozen=True, kw_only=True, eq=False):
    """Remove learners from the run, whose numbers make planning impossible.

    The machine has removed them already; `LearnersLeft` with this reason records it.
    """

    learners: Ints


class Finish(Command, frozen=True, kw_only=True, eq=False):
    """End the run."""

    outcome: Outcome


AnyCommand = (
    Benchmark
    | AskBound
    | RequestShares
    | Dispatch
    | Extend
    | Resend
    | Prefetch
    | Withdraw
    | Challenge
    | Suspect
    | Wake
    | Aggregate
    | Evaluate
    | Restore
    | Dismiss
    | Finish
)
Commands = list[AnyCommand]
