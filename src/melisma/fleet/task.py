"""A task: the model and data to train, the deadline of a cycle, and the scheme."""

from collections.abc import Callable
from datetime import datetime
from math import ceil, inf
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from melisma.errors import SettingError, suggest
from melisma.fleet.finish_time import parse_finish_time
from melisma.fleet.server_settings import ServerSettings
from melisma.fleet.sizes import DataSize, ModelSize, data_size, model_size
from melisma.fleet.tables import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    OpenFraction,
    Positive,
    PositiveInt,
    Seed,
    Table,
)
from melisma.user_code import IMPORT_PATH


def check_name(name: str) -> None:
    """Raise ValueError if a name is empty or would not print as one line."""
    if not name.strip():
        raise ValueError("name is empty")
    if not name.isprintable():
        raise ValueError(f"name is {name!r:.60}; expected printable characters on one line")


# Of a task without `cycles` and without a total time.
DEFAULT_CYCLES = 10
# The first cycle of a run with a total time takes this part of it, within these limits; the lengths
# of later cycles follow from measured costs.
FIRST_CYCLE_FRACTION, MIN_CYCLE_S, MAX_FIRST_CYCLE_S = 0.02, 1.0, 60.0
MIN_TOTAL_S = 5 * MIN_CYCLE_S

# Of models; a custom trainer may have others.
OPTIMIZER_NAMES = ("sgd", "adam")


class OptimizerSettings(Table, frozen=True, kw_only=True):
    """The optimizer of a learner."""

    name: str = "sgd"
    lr: Positive = 0.1
    momentum: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    keep: bool = False


PARTITION_KINDS = ("iid", "sorted", "dirichlet")


class PartitionSettings(Table, frozen=True, kw_only=True):
    """The distribution of samples over devices in federated learning.

    `kind` is one of `PARTITION_KINDS`, or a function of the user by `package.module:function`.
    """

    kind: str = "iid"
    alpha: Positive = 0.5

    def __post_init__(self) -> None:
        """Raise ValueError if the kind is unknown."""
        if self.kind not in PARTITION_KINDS and IMPORT_PATH.fullmatch(self.kind) is None:
            expected = suggest(self.kind, PARTITION_KINDS, "package.module:function")
            raise ValueError(f"kind is {self.kind!r}; {expected}")


class StopSettings(Table, frozen=True, kw_only=True):
    """Conditions to stop before the last cycle."""

    accuracy: Annotated[float, Meta(gt=0, le=1)] | None = None
    loss: Positive | None = None


class TaskSizes(Table, frozen=True, kw_only=True):
    """Sizes of model and data, if their names are unknown or a study counts otherwise."""

    samples: PositiveInt | None = None
    sample_bytes: PositiveInt | None = None
    model_bytes: PositiveInt | None = None
    sample_ops: Positive | None = None


class RadioSettings(Table, frozen=True, kw_only=True):
    """The transmission of gradients in a radio cell, for `feel` and its baselines."""

    gradient_bits: Positive | None = None
    frame_s: Positive = 0.01
    min_batch: PositiveInt = 1
    max_batch: PositiveInt = 128
    update_cycles: NonNegative = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError if no batch size is allowed."""
        if self.min_batch > self.max_batch:
            raise ValueError(
                f"min_batch is {self.min_batch}; expected at most max_batch, {self.max_batch}"
            )


class SimulationSettings(Table, frozen=True, kw_only=True):
    """The work of a simulated run: timing only, or real training, one by one or batched."""

    work: Literal["timing", "train", "batched"] = "batched"


class Task(Table, frozen=True, kw_only=True):
    """A training task, as described by one TASK.toml.

    `deadline_s` is that of a cycle, and there are `cycles` of them. With `total_s` or `finish_by`
    instead, the run ends by then, and chooses length and number of its cycles: `deadline_s` is the
    length of the first one, and `cycles` the most, if given. If both are given, the earlier one
    counts.
    With `extension`, learners train until the deadline, on further shards where there are any. With
    `overlap`, they train while they fetch. From the deadline on a cycle closes with `quorum` of the
    planned weight; `late` says whether later updates join the next average. `guard` says what
    happens to an update that changes the model far more than others: its change is scaled down, it
    is left out, or it counts like any other. `verify` says whether updates are checked: by a cheap
    filter, or also by training parts of them once more. `PAPER_RULES` are those of the papers.
    `sample` is the number of learners, or the fraction of them, that each cycle draws at random; by
    default all take part. `prox` is the weight of the proximal term in local training (FedProx);
    `normalize` divides the change of each update by its steps (FedNova). `server` is the optimiser
    that the orchestrator applies to the mean change, and `aggregation` a robust one or a function
    that takes the place of the mean. `start` is the file of a model to start from, and
    `checkpoints` says which models besides the last one are kept.
    `budget` is the most that all cycles of a task may cost that shares its learners with others.
    `model` and `data` may be left out where they are given as Python objects. Whether `passes` fit
    the scheme is checked before a run loads anything, as its caller may choose another scheme.
    """

    name: str
    model: str = ""
    data: str = ""
    deadline_s: Positive = 0.0  # 0 until `total_s` is known
    total_s: Positive | None = None
    finish_by: str | None = None
    mode: Literal["parallelized", "federated"] = "parallelized"
    scheme: str = "dab"
    passes: PositiveInt | None = None
    cycles: PositiveInt | None = None
    shard_samples: PositiveInt = 500
    batch: PositiveInt = 32
    loss: str = "cross_entropy"
    optimizer: OptimizerSettings = OptimizerSettings()
    prox: NonNegative = 0.0
    normalize: bool = False
    server: ServerSettings = ServerSettings()
    aggregation: str = "mean"
    start: str | None = None
    checkpoints: Literal["none", "best", "all"] = "none"
    stop: StopSettings = StopSettings()
    seed: Seed = 1
    caution: OpenFraction = 0.9
    sample: PositiveInt | Fraction | None = None
    extension: bool = True
    overlap: bool = True
    quorum: Fraction = 0.8
    late: Literal["carry", "drop"] = "carry"
    guard: Literal["clip", "drop", "off"] = "clip"
    verify: Literal["off", "filter", "audit"] = "off"
    model_args: dict[str, Any] = msgspec.field(default_factory=dict)
    data_args: dict[str, Any] = msgspec.field(default_factory=dict)
    partition: PartitionSettings | None = None
    min_shards: NonNegativeInt = 1
    max_shards: PositiveInt | None = None
    budget: NonNegative | None = None
    sizes: TaskSizes = TaskSizes()
    radio: RadioSettings = RadioSettings()
    simulation: SimulationSettings = SimulationSettings()

    def __post_init__(self) -> None:
        """Raise ValueError for keys that contradict each other."""
        check_name(self.name)
        self._set_time()
        if self.max_shards is not None and self.min_shards > self.max_shards:
            raise ValueError(
                f"min_shards is {self.min_shards}; expected at most max_shards, {self.max_shards}"
            )
        if self.partition is not None and self.mode != "federated":
            raise ValueError('partition is for mode = "federated" only')
        self._check_verify()

    def _check_verify(self) -> None:
        """Raise ValueError if updates of this task cannot be verified."""
        if self.verify == "off":
            return
        if self.mode == "federated":
            raise ValueError(
                f'verify = "{self.verify}" needs the training data, which is on the devices with '
                'mode = "federated"; use aggregation = "median" or "trimmed_mean"'
            )
        if self.verify == "audit" and (self.optimizer.keep or self.prox):
            key = "optimizer.keep" if self.optimizer.keep else "prox"
            raise ValueError(
                f'verify = "audit" cannot repeat a training with {key}: remove {key}, or use '
                'verify = "filter"'
            )

    def _set_time(self) -> None:
        """Set the defaults of `deadline_s` and `cycles`, or raise ValueError."""
        if self.finish_by is not None:
            parse_finish_time(self.finish_by, datetime.now().astimezone())
        if self.total_s is None and self.finish_by is None:
            if not self.deadline_s:
                raise ValueError(
                    "deadline_s is missing: use deadline_s for the seconds of a cycle, total_s for "
                    "those of the whole run, or finish_by for the time at which it ends"
                )
            if self.cycles is None:
                msgspec.structs.force_setattr(self, "cycles", DEFAULT_CYCLES)
        elif self.total_s is None:
            return
        elif self.total_s < MIN_TOTAL_S:
            raise ValueError(f"total_s is {self.total_s:g}; expected at least {MIN_TOTAL_S:g}")
        elif not self.deadline_s:
            first_s = min(FIRST_CYCLE_FRACTION * self.total_s, MAX_FIRST_CYCLE_S)
            msgspec.structs.force_setattr(self, "deadline_s", max(first_s, MIN_CYCLE_S))

    def with_total(self, now: datetime | None = None) -> "Task":
        """Return the task with the `total_s` that `finish_by` leaves; `now` is the present.

        Raises SettingError if that time has passed.
        """
        if self.finish_by is None:
            return self
        now = now or datetime.now().astimezone()
        finish = parse_finish_time(self.finish_by, now)
        total_s = min(self.total_s or inf, (finish - now).total_seconds())
        if total_s < MIN_TOTAL_S:
            raise SettingError(
                f'finish_by = "{self.finish_by}" is too soon: it is {now:%Y-%m-%d %H:%M:%S} now'
            )
        # A time of day has another meaning tomorrow.
        finish_by = f"{finish:%Y-%m-%d %H:%M}"
        return msgspec.structs.replace(self, finish_by=finish_by, total_s=total_s)

    def seconds_left(self, elapsed_s: float) -> float:
        """Return the rest of the total time after `elapsed_s`, or until `finish_by`."""
        left_s = (self.total_s or inf) - elapsed_s
        if self.finish_by is None:
            return left_s
        now = datetime.now().astimezone()
        return min(left_s, (parse_finish_time(self.finish_by, now) - now).total_seconds())

    @property
    def expected_s(self) -> float:
        """The seconds that all cycles take together if each takes until its deadline."""
        return self.total_s or (self.cycles or 0) * self.deadline_s

    @property
    def expected_cycles(self) -> int:
        """The number of cycles; with a total time, if all are as long as the first one."""
        return self.cycles or ceil(self.expected_s / self.deadline_s)

    def describe_cycles(self) -> str:
        """Return number and length of the cycles in words."""
        if self.finish_by is not None:
            return f"until {self.finish_by}"
        if self.total_s is not None:
            return f"for {self.total_s:g} s"
        return f"{self.cycles} cycle{'s' * (self.cycles != 1)} of {self.deadline_s:g} s"

    def describe_cycle(self, number: int) -> str:
        """Return the number of a cycle, and that of the last one if it is known."""
        return f"cycle {number}" + ("" if self.cycles is None else f" of {self.cycles}")

    @property
    def samples(self) -> int:
        """The number of training samples."""
        return self.sizes.samples or self._data_size().samples

    @property
    def shards(self) -> int:
        """The number of shards; the last one may be short."""
        return ceil(self.samples / self.shard_samples)

    @property
    def shard_bytes(self) -> int:
        """Bytes of a full shard."""
        sample_bytes = self.sizes.sample_bytes or self._data_size().sample_bytes
        return sample_bytes * self.shard_samples

    @property
    def model_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.sizes.model_bytes or self._model_size().model_bytes

    @property
    def sample_ops(self) -> float:
        """Floating-point operations to train on one sample once."""
        return self.sizes.sample_ops or self._model_size().sample_ops

    def shards_setting(self, shards: int) -> tuple[str, int]:
        """Return the key and the largest value with at least, or at most, that many shards.

        More shards of the same data are smaller ones; fewer shards of the same size are less data.
        """
        if shards > self.shards:
            return "shard_samples", max(1, ceil(self.samples / (shards - 1)) - 1)
        return "samples", shards * self.shard_samples

    def describe_shards_setting(self, shards: int) -> str:
        """Return the change of the task file that makes that number of shards."""
        key, value = self.shards_setting(shards)
        return f"{key} <= {value}" + (" in [task.sizes]" if key == "samples" else "")

    def check_names(self) -> None:
        """Raise SettingError if the task names no model or no data."""
        for key, example in (("model", "twonn"), ("data", "mnist")):
            if not getattr(self, key):
                raise SettingError(
                    f'{key} is missing: name it, such as {key} = "{example}", or in Python pass '
                    f"an object as the argument {key}"
                )

    def check_shard_samples(self) -> None:
        """Raise SettingError if a single shard would be larger than the data."""
        if self.shard_samples > self.samples:
            raise SettingError(
                f"shard_samples = {self.shard_samples} is more than the {self.samples} samples of "
                f"the data; use shard_samples <= {self.samples}"
            )

    def check_sizes(self) -> None:
        """Raise SettingError that names all missing sizes, or if a shard exceeds the data."""
        problems = [*filter(None, map(_problem, (self._check_data_size, self._check_model_size)))]
        if problems:
            raise SettingError("; ".join(problems))
        self.check_shard_samples()

    def check_optimizer(self) -> None:
        """Raise SettingError if the model is a known one and the optimizer is not."""
        name = self.optimizer.name
        if ":" not in self.model and name not in OPTIMIZER_NAMES:
            raise SettingError(f"optimizer.name is {name!r}; {suggest(name, OPTIMIZER_NAMES)}")

    def _check_data_size(self) -> None:
        _ = self.samples, self.shard_bytes

    def _check_model_size(self) -> None:
        _ = self.model_bytes, self.sample_ops

    def _data_size(self) -> DataSize:
        return data_size(self.data, self._missing("samples", "sample_bytes"))

    def _model_size(self) -> ModelSize:
        return model_size(self.model, self.model_args, self._missing("model_bytes", "sample_ops"))

    def _missing(self, *keys: str) -> str:
        """Return those of the keys that `sizes` leaves out, as words."""
        return " and ".join(key for key in keys if getattr(self.sizes, key) is None)


def _problem(check: Callable[[], None]) -> str | None:
    """Return the message of a check that fails."""
    try:
        check()
    except SettingError as error:
        return str(error)
    return None


# Each learner trains what it was given and stops; the cycle waits for all, drops late updates, and
# averages all others as they are.
PAPER_RULES: dict[str, Any] = {
    "extension": False,
    "overlap": False,
    "quorum": 1.0,
    "late": "drop",
    "guard": "off",
}
