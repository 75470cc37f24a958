"""What travels between orchestrator and learner, beside parameters and shards.

Learners only ever call: they enter, join, and ask for orders; an order comes back as soon as there
is one. Everything that arrives is checked against these records before it is used.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from melisma.cycle.events import PHASES
from melisma.errors import MalformedError
from melisma.fleet.fleet_file import Tells
from melisma.fleet.task import Task

# The parameters that a learner measures itself with.
FIRST_MODEL = "model-0.safetensors"
Number = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Words = Annotated[str, Meta(max_length=2000)]
Row = Annotated[tuple[Seconds, ...], Meta(min_length=3, max_length=3)]
Costs = Annotated[tuple[Row, ...], Meta(min_length=3, max_length=3)]


class Parcel(msgspec.Struct, frozen=True):
    """A shard to fetch: its number, the hash of its content, its bytes and samples."""

    number: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Number
    samples: Number


class Entry(msgspec.Struct, frozen=True):
    """What a learner gets to know first: its number, its task, and shards to measure itself on.

    Where the orchestrator cannot score models, learners hold samples back and do.
    """

    number: Number
    run: str
    task: Task
    subset: tuple[Parcel, ...]
    hold_back: bool = False


class Joining(msgspec.Struct, frozen=True):
    """A learner is ready; in federated learning with the samples of each shard that it has."""

    number: Number
    tells: Tells
    own: tuple[Number, ...] = ()


class Order(msgspec.Struct, frozen=True, tag_field="order", tag=True):
    """Something for a learner to do."""


class Measure(Order, frozen=True):
    """Measure yourself for so many seconds at most, and report costs."""

    seconds: Seconds


class Bound(Order, frozen=True):
    """Say how many shards you would take by that deadline, `held` of which you have."""

    cycle: Number
    deadline_s: Seconds
    held: Number


class Train(Order, frozen=True):
    """Train on these shards from that model; hand in what you have when time is up.

    In federated learning `own` are numbers of shards on the device, and nothing is fetched.
    """

    cycle: Number
    attempt: Number
    model: str
    passes: Number
    seconds_left: Seconds
    shards: tuple[Parcel, ...] = ()
    own: tuple[Number, ...] = ()


class Stop(Order, frozen=True):
    """What you are at no longer counts."""

    cycle: Number
    attempt: Number


class Judge(Order, frozen=True):
    """Score that model on the samples that you hold back, and report sums."""

    cycle: Number
    model: str


class Leave(Order, frozen=True):
    """It is over."""


AnyOrder = Measure | Bound | Train | Stop | Judge | Leave


class Judged(msgspec.Struct, frozen=True):
    """The sums of a score."""

    learner: Number
    cycle: Number
    samples: Number
    loss_sum: float
    right: Number
    judged: Number


class Handed(msgspec.Struct, frozen=True):
    """What comes with an update: whose, and what was done for it, in seconds by phase."""

    learner: Number
    cycle: Number
    attempt: Number
    visits: Number
    shipped: Number
    loss: float
    phases: Annotated[tuple[Seconds, ...], Meta(min_length=len(PHASES), max_length=len(PHASES))]
    costs: Costs | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Which assignment it is of."""
        return self.learner, self.cycle, self.attempt


def plain(record: Any) -> Any:
    """A record as what Axon carries."""
    return msgspec.to_builtins(record)


def checked(value: Any, kind: Any) -> Any:
    """What arrived, if it is such a record; `MalformedError` says what is wrong with it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MalformedError(f"what arrived makes no sense: {error}") from None


def orders(values: Sequence[Any]) -> list[AnyOrder]:
    """Orders that arrived."""
    return [checked(value, AnyOrder) for value in values]
