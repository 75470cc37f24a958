"""A training between two batches as bytes: what another process of the learner needs to go on.

A hash comes first, then a JSON header, then the arrays in the safetensors format. Bytes that are
torn, damaged or of another version are refused.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from melisma.errors import DataError
from melisma.fleet.task import Task
from melisma.learning.stream_state import StreamCounts, StreamState
from melisma.learning.trainer import TrainingState
from melisma.live.protocol import ShardRef

FORMAT: Final = 1
"""The number of this format; files with another one are ignored."""
DIGEST_BYTES: Final = hashlib.sha256().digest_size
HEADER_LENGTH: Final = struct.Struct("<I")
TRAINING_SETTINGS: Final = (
    *("name", "mode", "model", "model_args", "data", "shard_samples", "batch", "loss", "seed"),
    *("optimizer", "prox"),
)
"""The settings of a task that training depends on."""
PARAMETER, EXTRA = "parameter.", "extra."
Header = TypeVar("Header")


class SpoolOwner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run, the number of the learner, and a hash of the settings of its training."""

    run: str
    learner: int
    task: str
    format: int = FORMAT

    @classmethod
    def of(cls, run: str, learner: int, task: Task) -> "SpoolOwner":
        """Return the owner of what a learner saves in a run."""
        settings = {name: getattr(task, name) for name in TRAINING_SETTINGS}
        content = msgspec.json.encode(settings, order="deterministic")
        return cls(run, learner, hashlib.sha256(content).hexdigest())


class SavedWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shards of an assignment or of one of its extensions.

    A shard on the device has the hash of its samples and labels.
    """

    attempt: int
    shards: tuple[ShardRef, ...]


class RandomState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of NumPy's PCG64, its words of 128 bits in hexadecimal digits."""

    state: str
    inc: str
    has_uint32: int
    uinteger: int

    @classmethod
    def of(cls, rng: np.random.Generator) -> "RandomState":
        """Return the state of a generator."""
        state: Any = rng.bit_generator.state
        words = state["state"]
        return cls(
            f"{words['state']:x}", f"{words['inc']:x}", state["has_uint32"], state["uinteger"]
        )

    def restore(self, rng: np.random.Generator) -> None:
        """Set a generator of the same kind to this state; raise `DataError` if it is invalid."""
        try:
            words = {"state": int(self.state, 16), "inc": int(self.inc, 16)}
            rng.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": words,
                "has_uint32": self.has_uint32,
                "uinteger": self.uinteger,
            }
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"the saved state of the random generator is invalid: {error}"
            ) from error


class SavedHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The assignment and the progress of a saved training.

    `works` are the work items of its stream of batches, the assignment first. `visits` are those
    that the trainer counts, `phases` the seconds of each phase, and `left_s` those until the
    deadline.
    """

    owner: SpoolOwner
    cycle: int
    attempt: int
    model: str
    works: tuple[SavedWork, ...]
    counts: StreamCounts
    random: RandomState
    visits: int
    phases: tuple[float, ...]
    trained_s: float
    upload_s: float
    left_s: float
    shipped: int


@dataclass(frozen=True, eq=False)
class SavedTraining:
    """The header, the state of the trainer, and that of the stream of batches."""

    header: SavedHeader
    state: TrainingState
    stream: StreamState

    @property
    def key(self) -> tuple[int, int]:
        """Cycle and attempt of the assignment."""
        return self.header.cycle, self.header.attempt


def encode_training(training: SavedTraining) -> bytes:
    """Return a training as bytes."""
    state, stream = training.state, training.stream
    arrays = {f"{PARAMETER}{name}": array for name, array in state.parameters.items()}
    arrays |= {f"{EXTRA}{name}": array for name, array in state.extra.items()}
    # JSON has no NaN, which the loss may be.
    arrays |= {"loss_sum": np.array(state.loss_sum, np.float64)}
    arrays |= {"order": stream.order, "repeat_order": stream.repeat_order}
    header = msgspec.json.encode(training.header)
    return add_digest(HEADER_LENGTH.pack(len(header)), header, save(arrays))


def decode_training(content: bytes) -> SavedTraining:
    """Return the training of `encode_training`; raise `DataError` for any other bytes."""
    header, arrays = _split(check_digest(content), SavedHeader)
    try:
        stream = StreamState(header.counts, arrays.pop("order"), arrays.pop("repeat_order"))
        loss_sum = float(arrays.pop("loss_sum"))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"it is no saved training of format {FORMAT}: {error}") from error
    parameters, extra = (
        {name.removeprefix(kind): a for name, a in arrays.items() if name.startswith(kind)}
        for kind in (PARAMETER, EXTRA)
    )
    state = TrainingState(parameters, extra, header.visits, loss_sum)
    return SavedTraining(header, state, stream)


def encode_optimizer(owner: SpoolOwner, state: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the state of an optimizer as bytes."""
    header = msgspec.json.encode(owner)
    return add_digest(HEADER_LENGTH.pack(len(header)), header, save(dict(state)))


def decode_optimizer(content: bytes) -> tuple[SpoolOwner, dict[str, NDArray[Any]]]:
    """Return owner and state of `encode_optimizer`; raise `DataError` for any other bytes."""
    header, arrays = _split(check_digest(content), SpoolOwner)
    return header, arrays


def _split(content: bytes, kind: type[Header]) -> tuple[Header, dict[str, NDArray[Any]]]:
    """Return the header and the arrays after it."""
    try:
        (length,) = HEADER_LENGTH.unpack_from(content)
        start = HEADER_LENGTH.size + length
        header = msgspec.json.decode(content[HEADER_LENGTH.size : start], type=kind)
        return header, load(content[start:])
    except (struct.error, SafetensorError, ValueError) as error:
        raise DataError(f"it is not of format {FORMAT}: {error}") from error


def add_digest(*parts: bytes) -> bytes:
    """Return the parts, one after the other, after their hash."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join((digest.digest(), *parts))


def check_digest(content: bytes) -> bytes:
    """Return the content without its hash; raise `DataError` if it has another one."""
    digest, rest = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if hashlib.sha256(rest).digest() != digest:
        raise DataError("its content does not have the hash that was written with it")
    return rest
