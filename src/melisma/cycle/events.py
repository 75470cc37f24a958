"""Events of the cycle machine. Each has an instant and concerns one learner or many at once.

Learners are numbers in arrays. Instants are seconds on the clock of the driver.
"""

import msgspec
import numpy as np

from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.disclosure import Disclosure
from melisma.fleet.array_types import NO_FLOATS, NO_INTS, Floats, Ints
from melisma.fleet.task import StopSettings, Task

COSTS = ("train_s", "ship_s", "fixed_s")
PARTS = ("mean", "spread", "count")
RATES = ("price", "sample_j", "byte_j")  # per shard, per sample trained once, per byte
PHASES = ("wait", "fetch model", "fetch shards", "load", "train", "upload")


class Event(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="event", tag=True):
    """An event with its instant."""

    at_s: float


class TaskSubmitted(Event, frozen=True, kw_only=True, eq=False):
    """A task was submitted; the run waits for `learner_count` learners; `names` has all of them.

    `shard_samples` is the number of samples of each shard; empty in federated learning, where the
    orchestrator has no shards. `rates` are the rates of learners in the order of `RATES`, if known.
    `absence_s` is how long the run waits for a learner if all have left; 0 if none can come back.
    `ends_s` is the instant by which a run with a total time ends. A `shared` task shares its
    learners with other tasks: it requests the shards of each learner instead of planning them.
    `secret` decides which updates are checked; learners never see it.
    """

    run: str
    task: Task
    learner_count: int
    shard_samples: Ints
    names: tuple[str, ...] = ()
    rates: Floats = NO_FLOATS
    absence_s: float = 0.0
    ends_s: float | None = None
    shared: bool = False
    secret: str = ""


class TaskCancelled(Event, frozen=True, kw_only=True, eq=False):
    """The run was cancelled."""

    reason: str


class TaskContinued(Event, frozen=True, kw_only=True, eq=False):
    """A run that had ended goes on, up to cycle `cycles`, with `learner_count` learners.

    `stop` replaces the goal of the task, and `ends_s` the instant by which a run with a total time
    ends. `model` is the version of the parameters to go on with, None for the latest.
    """

    cycles: int | None
    learner_count: int
    stop: StopSettings = StopSettings()
    ends_s: float | None = None
    model: int | None = None


class OrchestratorRestarted(Event, frozen=True, kw_only=True, eq=False):
    """The orchestrator restarted after `downtime_s`; learners have gone on meanwhile."""

    downtime_s: float


class LearnersRegistered(Event, frozen=True, kw_only=True, eq=False):
    """Learners that the task was submitted without have registered, and are getting ready."""

    learners: Ints
    names: tuple[str, ...]


class LearnersJoined(Event, frozen=True, kw_only=True, eq=False):
    """Learners joined; `discloses` is the most that each reports before its update.

    In federated learning `local_shard_samples` are the samples of each shard on each device.
    """

    learners: Ints
    names: tuple[str, ...]
    discloses: tuple[Disclosure, ...]
    local_shard_samples: RaggedArray = NO_ROWS


class LearnersResumed(Event, frozen=True, kw_only=True, eq=False):
    """Learners restarted and are ready to go on with their assignments."""

    learners: Ints


class LearnersLeft(Event, frozen=True, kw_only=True, eq=False):
    """Learners left, and their work is lost."""

    learners: Ints
    reason: str


class IdentitiesShared(Event, frozen=True, kw_only=True, eq=False):
    """The identities of learners are in use twice, such as on a copied disk."""

    learners: Ints
    reason: str


class CostsReported(Event, frozen=True, kw_only=True, eq=False):
    """Learners reported costs: `COSTS` by `PARTS` by learners."""

    learners: Ints
    costs: Floats


class BoundsReported(Event, frozen=True, kw_only=True, eq=False):
    """Learners reported how many shards they can train by a deadline; DAB needs nothing else."""

    learners: Ints
    cycle: int
    deadline_s: float
    shards: Ints


class ProgressReported(Event, frozen=True, kw_only=True, eq=False):
    """Learners reported the visits that they have made so far in this cycle."""

    learners: Ints
    cycle: int
    visits: Ints


class SharesGranted(Event, frozen=True, kw_only=True, eq=False):
    """A shared task was granted learners for its cycle, and this many shards for each of them."""

    learners: Ints
    shards: Ints


class SharesRefused(Event, frozen=True, kw_only=True, eq=False):
    """No plan gives a shared task what it needs, not even without other tasks.

    If that is `final`, as its budget is used up, the run ends with the cycles that it had.
    """

    reason: str
    final: bool = False


class ShardsRequested(Event, frozen=True, kw_only=True, eq=False):
    """Learners will be done before the deadline and request this many further shards."""

    learners: Ints
    cycle: int
    shards: Ints


class ShardsReleased(Event, frozen=True, kw_only=True, eq=False):
    """Learners will not get to these shards before the deadline; others may train them."""

    learners: Ints
    cycle: int
    shards: RaggedArray


class UpdatesCommitted(Event, frozen=True, kw_only=True, eq=False):
    """Learners that verify their work have trained, and committed to hashes of their states.

    `segments` are the numbers of segments of each training, and `environments` the version of the
    framework and the kind of device.
    """

    learners: Ints
    cycle: int
    attempts: Ints
    segments: Ints
    environments: tuple[str, ...]


class UpdatesReceived(Event, frozen=True, kw_only=True, eq=False):
    """Updates, complete or partial, were received and stored, unless `refused` says why not.

    `attempts` are the latest extensions that each learner has trained on. `visits` include further
    passes over the same shards, `planned_visits` do not; without these, all visits were planned.
    `phases` are seconds, learners by `PHASES`, as measured by each learner; `shipped` is the number
    of shards that each had to fetch. If updates arrived one after another, `arrivals_s` are their
    instants and `at_s` is the last one.
    """

    learners: Ints
    cycle: int
    attempts: Ints
    visits: Ints
    shipped: Ints
    loss: Floats
    phases: Floats
    arrivals_s: Floats = NO_FLOATS
    refused: str = ""
    planned_visits: Ints = NO_INTS

    @property
    def visits_of_plan(self) -> Ints:
        """The visits that were planned and made."""
        return self.planned_visits if self.planned_visits.size else self.visits

    @property
    def arrival_times_s(self) -> Floats:
        """The instant at which each update arrived."""
        return self.arrivals_s if self.arrivals_s.size else np.full(self.learners.size, self.at_s)


class TimeReached(Event, frozen=True, kw_only=True, eq=False):
    """The instant of a `Wake`, or a later one, was reached."""


class VerifiedUpdates(msgspec.Struct, frozen=True, eq=False):
    """The checks of updates: learner, cycle of the assignment, and verdict of the re-execution.

    `gaps` are the statistic of the first filter, NaN where it was not computed; `visits` is the
    cost of all checks in trained samples. `reasons` are those of updates that failed.
    """

    learners: Ints
    cycles: Ints
    verdicts: Ints
    gaps: Floats
    visits: float = 0.0
    reasons: tuple[str, ...] = ()


NO_VERIFIED_UPDATES = VerifiedUpdates(NO_INTS, NO_INTS, NO_INTS, NO_FLOATS)


class Aggregated(Event, frozen=True, kw_only=True, eq=False):
    """The updates of a cycle were aggregated; `model` is the version of the parameters since then.

    `loss` is the training loss of each averaged update, where updates did not report it. `guarded`
    are the learners whose update changed the model too far, with the cycle of its assignment:
    `scales` are the factors by which the changes were reduced, 0 if the update was left out. It is
    NaN for an update that was left out because it was damaged on the orchestrator's disk. Those of
    `verified` whose check failed are left out, too.
    """

    cycle: int
    seconds: float
    model: int = 0
    loss: Floats = NO_FLOATS
    guarded: Ints = NO_INTS
    guarded_cycles: Ints = NO_INTS
    scales: Floats = NO_FLOATS
    verified: VerifiedUpdates = NO_VERIFIED_UPDATES


class Evaluated(Event, frozen=True, kw_only=True, eq=False):
    """The model was evaluated after a cycle; a figure that is unknown or not finite is None.

    `finite` is False if the loss was computed and is not finite: the model is of no use.
    """

    cycle: int
    loss: float | None
    accuracy: float | None
    seconds: float
    finite: bool = True


AnyEvent = (
    TaskSubmitted
    | TaskCancelled
    | TaskContinued
    | OrchestratorRestarted
    | LearnersRegistered
    | LearnersJoined
    | LearnersResumed
    | LearnersLeft
    | IdentitiesShared
    | CostsReported
    | BoundsReported
    | SharesGranted
    | SharesRefused
    | ProgressReported
    | ShardsRequested
    | ShardsReleased
    | UpdatesCommitted
    | UpdatesReceived
    | TimeReached
    | Aggregated
    | Evaluated
)
