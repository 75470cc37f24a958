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
from melisma.fleet.fleet_file import Disclosure
from melisma.fleet.task import Task

# The parameters that a learner measures itself with.
INITIAL_MODEL = "model-0.safetensors"
NonNegativeInt = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
ShortText = Annotated[str, Meta(max_length=2000)]
CostRow = Annotated[tuple[Seconds, ...], Meta(min_length=3, max_length=3)]
CostTable = Annotated[tuple[CostRow, ...], Meta(min_length=3, max_length=3)]


class ShardRef(msgspec.Struct, frozen=True):
    """A shard to fetch: its number, the hash of its content, its bytes and samples."""

    number: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: NonNegativeInt
    samples: NonNegativeInt


class RegisterResponse(msgspec.Struct, frozen=True):
    """What a learner gets to know first: its number, its task, and shards to measure itself on.

    Where the orchestrator cannot score models, learners hold samples back and do.
    """

    learner: NonNegativeInt
    run: str
    task: Task
    benchmark_shards: tuple[ShardRef, ...]
    hold_back: bool = False


class JoinRequest(msgspec.Struct, frozen=True):
    """A learner is ready; in federated learning with the samples of each shard that it has."""

    learner: NonNegativeInt
    discloses: Disclosure
    local_samples: tuple[NonNegativeInt, ...] = ()


class Instruction(msgspec.Struct, frozen=True, tag_field="order", tag=True):
    """Something for a learner to do."""


class RunBenchmark(Instruction, frozen=True):
    """Measure yourself for so many seconds at most, and report costs."""

    seconds: Seconds


class ComputeBound(Instruction, frozen=True):
    """Say how many shards you would take by that deadline, `held` of which you have."""

    cycle: NonNegativeInt
    deadline_s: Seconds
    held: NonNegativeInt


class Train(Instruction, frozen=True):
    """Train on these shards from that model; hand in what you have when time is up.

    In federated learning `own` are numbers of shards on the device, and nothing is fetched.
    """

    cycle: NonNegativeInt
    attempt: NonNegativeInt
    model: str
    passes: NonNegativeInt
    seconds_left: Seconds
    shards: tuple[ShardRef, ...] = ()
    local_shards: tuple[NonNegativeInt, ...] = ()


class StopTraining(Instruction, frozen=True):
    """What you are at no longer counts."""

    cycle: NonNegativeInt
    attempt: NonNegativeInt


class EvaluateModel(Instruction, frozen=True):
    """Score that model on the samples that you hold back, and report sums."""

    cycle: NonNegativeInt
    model: str


class Leave(Instruction, frozen=True):
    """It is over."""


AnyInstruction = RunBenchmark | ComputeBound | Train | StopTraining | EvaluateModel | Leave


class EvaluationSums(msgspec.Struct, frozen=True):
    """The sums of a score."""

    learner: NonNegativeInt
    cycle: NonNegativeInt
    samples: NonNegativeInt
    loss_sum: float
    correct: NonNegativeInt
    labels: NonNegativeInt


class UpdateHeader(msgspec.Struct, frozen=True):
    """What comes with an update: whose, and what was done for it, in seconds by phase."""

    learner: NonNegativeInt
    cycle: NonNegativeInt
    attempt: NonNegativeInt
    visits: NonNegativeInt
    shipped: NonNegativeInt
    loss: float
    phases: Annotated[tuple[Seconds, ...], Meta(min_length=len(PHASES), max_length=len(PHASES))]
    costs: CostTable | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Which assignment it is of."""
        return self.learner, self.cycle, self.attempt


def to_builtins(record: Any) -> Any:
    """A record as what Axon carries."""
    return msgspec.to_builtins(record)


def parse(value: Any, kind: Any) -> Any:
    """What arrived, if it is such a record; `MalformedError` says what is wrong with it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MalformedError(f"what arrived makes no sense: {error}") from None


def parse_instructions(values: Sequence[Any]) -> list[AnyInstruction]:
    """Orders that arrived."""
    return [parse(value, AnyInstruction) for value in values]
