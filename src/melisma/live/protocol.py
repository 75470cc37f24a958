"""Messages between orchestrator and learner, except parameters and shards.

Only learners open connections: they register, join, and poll for instructions. Every message is
validated against its record before it is used.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, overload

import msgspec
from msgspec import Meta

from melisma import __version__
from melisma.cycle.events import PHASES
from melisma.disclosure import Disclosure
from melisma.errors import MalformedError, RefusedError
from melisma.fleet.task import Task
from melisma.learning.stream_log import ReportedChange
from melisma.learning.verification.segments import MAX_SEGMENTS
from melisma.live.code_bundle import MAX_BUNDLE_BYTES

PROTOCOL = 1
"""The number of these messages; a learner and an orchestrator with different ones do not talk."""
COMMIT_FIRST = "the update has no commitment: call commit_update first"
# The parameters on which learners run their benchmark.
INITIAL_MODEL = "model-0.safetensors"
# The matrix that devices in the state "downloading" download; nobody keeps it.
STRESS_MATRIX = "stress-matrix"
NonNegativeInt = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
ShortText = Annotated[str, Meta(max_length=2000)]
# Rows are train_s, ship_s and fixed_s; columns are mean, spread and count.
CostRow = Annotated[tuple[Seconds, ...], Meta(min_length=3, max_length=3)]
CostTable = Annotated[tuple[CostRow, ...], Meta(min_length=3, max_length=3)]
T = TypeVar("T")


Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class ShardRef(msgspec.Struct, frozen=True):
    """A shard that a learner can download."""

    number: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: NonNegativeInt
    samples: NonNegativeInt


class BundleRef(msgspec.Struct, frozen=True):
    """The source of a task's own model, which a device downloads if its owner trusts it."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_BUNDLE_BYTES)]


class RegisterRequest(msgspec.Struct, frozen=True):
    """The first message of a learner: protocol, version of Melisma, and a random session id.

    The learner sends the session id with each further call. No message names the learner: it is
    the one whose credential the call carries. `price` is that of a shard, for tasks with a budget.
    """

    session: Annotated[str, Meta(min_length=16, max_length=64)]
    protocol: int = PROTOCOL
    version: ShortText = __version__
    price: float | None = None


class RegisterResponse(msgspec.Struct, frozen=True, tag="run"):
    """The learner's number, its task, and the shards of its benchmark.

    `run_s` is the time since the orchestrator started; the run may not have `begun`. With
    `hold_back` the orchestrator has no test data: learners hold samples back for
    evaluation. `bundle` is there if the task names code of its own.
    """

    learner: NonNegativeInt
    run: str
    task: Task
    benchmark_shards: tuple[ShardRef, ...]
    hold_back: bool = False
    run_s: Seconds = 0.0
    bundle: BundleRef | None = None
    begun: bool = False


class TasksResponse(msgspec.Struct, frozen=True, tag="tasks"):
    """The orchestrator has several tasks: the device registers for each of them, by its name."""

    run: str


AnyRegisterResponse = RegisterResponse | TasksResponse


class TaskRef(msgspec.Struct, frozen=True):
    """A task of several: its name in calls, its own name, and its run."""

    name: Annotated[str, Meta(pattern="^task[0-9]{1,9}$")]
    task: ShortText
    # The name of a folder on the device.
    run: Annotated[str, Meta(pattern="^[0-9A-Za-z-]{1,64}$")]


class TaskList(msgspec.Struct, frozen=True):
    """The tasks that a device can work for now; with `ended` there will be no others."""

    tasks: tuple[TaskRef, ...]
    ended: bool = False


class JoinRequest(msgspec.Struct, frozen=True):
    """The learner is ready; in federated learning with the samples of each of its shards.

    `samples_per_s` is there if the learner has measured it already and discloses it.
    """

    discloses: Disclosure
    local_shard_samples: tuple[NonNegativeInt, ...] = ()
    samples_per_s: Annotated[float, Meta(gt=0, le=1e12)] | None = None


class Instruction(msgspec.Struct, frozen=True, tag_field="instruction", tag=True):
    """The base of all instructions to a learner."""


class RunBenchmark(Instruction, frozen=True):
    """Run the benchmark for at most `seconds` and report costs.

    `round` is the round in which tasks that share learners train next; 0 for the next cycle.
    """

    seconds: Seconds
    round: NonNegativeInt = 0


class ComputeBound(Instruction, frozen=True):
    """Report how many shards the learner can train by the deadline, with `held` in its cache."""

    cycle: NonNegativeInt
    deadline_s: Seconds
    held: NonNegativeInt


class Train(Instruction, frozen=True):
    """Train `model` on the shards, and upload the update when `seconds_left` have passed.

    In federated learning `local_shards` are numbers of shards on the device; none is downloaded.
    The operating state is drawn for `round` where several tasks share learners, else it is 0.
    """

    cycle: NonNegativeInt
    attempt: NonNegativeInt
    model: str
    passes: NonNegativeInt
    seconds_left: Seconds
    shards: tuple[ShardRef, ...] = ()
    local_shards: tuple[NonNegativeInt, ...] = ()
    round: NonNegativeInt = 0


class ExtendTraining(Instruction, frozen=True):
    """Train further shards in the same cycle; the update of the assignment covers them too."""

    cycle: NonNegativeInt
    attempt: NonNegativeInt
    passes: NonNegativeInt
    shards: tuple[ShardRef, ...] = ()
    local_shards: tuple[NonNegativeInt, ...] = ()


class PrefetchShards(Instruction, frozen=True):
    """Fetch shards of the next cycle while waiting for the next instruction."""

    shards: tuple[ShardRef, ...]


class StopTraining(Instruction, frozen=True):
    """Stop work on a withdrawn assignment and its extensions: its update would not count."""

    cycle: NonNegativeInt
    attempt: NonNegativeInt


class EvaluateModel(Instruction, frozen=True):
    """Evaluate `model` on the samples held back, and report sums."""

    cycle: NonNegativeInt
    model: str


class Leave(Instruction, frozen=True):
    """Leave the run, which has ended."""


AnyInstruction = (
    RunBenchmark
    | ComputeBound
    | Train
    | ExtendTraining
    | PrefetchShards
    | StopTraining
    | EvaluateModel
    | Leave
)


class EvaluationSums(msgspec.Struct, frozen=True):
    """The evaluation of one learner: sums over the samples it holds back.

    If the sum of losses is not finite, it is sent as 0 with `finite` = False.
    """

    cycle: NonNegativeInt
    samples: NonNegativeInt
    loss_sum: float
    correct: NonNegativeInt
    labels: NonNegativeInt
    finite: bool = True


class UpdateHeader(msgspec.Struct, frozen=True):
    """The assignment of an update, the work done for it, and the seconds of each phase.

    `attempt` is the latest extension that was begun; `shipped` counts shards of the assignment and
    its extensions that were fetched for it or ahead of it.
    """

    cycle: NonNegativeInt
    attempt: NonNegativeInt
    visits: NonNegativeInt
    planned_visits: NonNegativeInt
    shipped: NonNegativeInt
    loss: float
    phases: Annotated[tuple[Seconds, ...], Meta(min_length=len(PHASES), max_length=len(PHASES))]
    costs: CostTable | None = None


class UpdateCommitment(msgspec.Struct, frozen=True):
    """A training before its update is uploaded: what it was, and hashes of its states.

    `attempts` are the instructions of its stream of batches, in order, and `changes` those of the
    shards that were there. The reply is the segment whose states the learner has to reveal.
    """

    cycle: NonNegativeInt
    attempt: NonNegativeInt
    visits: NonNegativeInt
    batches: Annotated[int, Meta(ge=1, le=2**53)]
    attempts: Annotated[tuple[NonNegativeInt, ...], Meta(min_length=1, max_length=2**16)]
    changes: tuple[ReportedChange, ...]
    digests: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_SEGMENTS)]
    environment: ShortText


def parse_registration(message: Any) -> RegisterRequest:
    """Convert the first message of a learner; raise `RefusedError` for another protocol."""
    number = message.get("protocol") if isinstance(message, dict) else None
    # Of any type, such as an array, whose comparison has no truth value.
    if type(number) is not int or number != PROTOCOL:
        version = message.get("version") if isinstance(message, dict) else None
        raise RefusedError(
            f"the learner has protocol {number!r:.20} (melisma {version!r:.20}), the orchestrator "
            f"protocol {PROTOCOL} (melisma {__version__!r}): install the same version on both"
        )
    return parse(message, RegisterRequest)


def to_builtins(record: Any) -> Any:
    """Return a record as built-in types, which Axon can encode."""
    return msgspec.to_builtins(record)


@overload
def parse(value: Any, kind: type[T]) -> T: ...
@overload
def parse(value: Any, kind: Any) -> Any: ...
def parse(value: Any, kind: Any) -> Any:
    """Convert a received value to `kind`; raise `MalformedError` if it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MalformedError(f"invalid message: {error}") from None


def parse_instructions(values: Sequence[Any]) -> list[AnyInstruction]:
    """Convert received values to instructions."""
    return [parse(value, AnyInstruction) for value in values]
