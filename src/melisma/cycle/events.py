"""What the cycle machine hears. Each event names its instant, and one learner or many at once.

Learners go by number, in arrays. Instants are seconds on the clock of whoever drives the machine.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.cycle.ragged import NO_ROWS, Ints, RaggedArray
from melisma.fleet.fleet_file import Disclosure
from melisma.fleet.task import Task

Floats = NDArray[np.float64]

NO_FLOATS: Floats = np.empty(0)
COSTS = ("train_s", "ship_s", "fixed_s")
PARTS = ("mean", "spread", "count")
RATES = ("price", "sample_j", "byte_j")  # of a shard, of a sample trained once, of a byte
PHASES = ("wait", "fetch model", "fetch shards", "load", "train", "upload")


class Event(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="event", tag=True):
    """Something that happened."""

    at_s: float


class TaskSubmitted(Event, frozen=True, kw_only=True, eq=False):
    """A task to train; so many learners are waited for, and all are named.

    `samples` are those of each shard. In federated learning the orchestrator owns no shards, and
    there are none. `rates` are what learners cost, in the order of `RATES`, if that is known.
    """

    run: str
    task: Task
    learners: int
    samples: Ints
    names: tuple[str, ...] = ()
    rates: Floats = NO_FLOATS


class TaskCancelled(Event, frozen=True, kw_only=True, eq=False):
    """Somebody wants it to end."""

    reason: str


class LearnersJoined(Event, frozen=True, kw_only=True, eq=False):
    """Learners are there; `discloses` is the most that each lets out before its update.

    In federated learning `local_data` are the samples of each shard that lies on each device.
    """

    learners: Ints
    names: tuple[str, ...]
    discloses: tuple[Disclosure, ...]
    local_data: RaggedArray = NO_ROWS


class LearnersLeft(Event, frozen=True, kw_only=True, eq=False):
    """Learners are gone, and what they were at with them."""

    learners: Ints
    reason: str


class EstimatesReported(Event, frozen=True, kw_only=True, eq=False):
    """What learners measured: costs by parts by learners, in the order of `COSTS` and `PARTS`."""

    learners: Ints
    costs: Floats


class BoundsReported(Event, frozen=True, kw_only=True, eq=False):
    """How many shards learners ask for by a deadline; all that leaves them with DAB."""

    learners: Ints
    cycle: int
    deadline_s: float
    shards: Ints


class ProgressReported(Event, frozen=True, kw_only=True, eq=False):
    """Samples that learners have trained so far in this cycle."""

    learners: Ints
    cycle: int
    visits: Ints


class UpdatesReceived(Event, frozen=True, kw_only=True, eq=False):
    """Updates that came, whole or partial, and are kept, unless `refused` says what was wrong.

    `phases` are learners by `PHASES`, in seconds, as each measured its own; `shipped` the shards
    that each had to fetch. Where many came one after another, `came_s` are their instants, and
    `at_s` is that of the last.
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

    @property
    def arrival_times_s(self) -> Floats:
        """When each came."""
        return self.arrivals_s if self.arrivals_s.size else np.full(self.learners.size, self.at_s)


class TimeReached(Event, frozen=True, kw_only=True, eq=False):
    """The instant of a `Wake`, or a later one."""


class Aggregated(Event, frozen=True, kw_only=True, eq=False):
    """The updates of a cycle are one model now.

    `loss` is that of training, of each update that was averaged, where it was not told before.
    """

    cycle: int
    seconds: float
    loss: Floats = NO_FLOATS


class Evaluated(Event, frozen=True, kw_only=True, eq=False):
    """How good the model is after a cycle; None where that is no number."""

    cycle: int
    loss: float | None
    accuracy: float | None
    seconds: float
