"""The trace of a run: one JSON line a step, with the event and the commands that it led to.

Everything that is shown of a run can be redrawn from its trace. Lines are written whole, so that a
kill leaves at most the last one torn, which reading passes over.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.errors import DataError

AnyEvent = (
    events.TaskSubmitted
    | events.TaskCancelled
    | events.LearnersJoined
    | events.LearnersLeft
    | events.EstimatesReported
    | events.BoundsReported
    | events.ProgressReported
    | events.UpdatesReceived
    | events.TimeReached
    | events.Aggregated
    | events.Evaluated
)
AnyCommand = (
    commands.Benchmark
    | commands.AskBound
    | commands.Dispatch
    | commands.Withdraw
    | commands.Wake
    | commands.Aggregate
    | commands.Evaluate
    | commands.Finish
)


class Step(msgspec.Struct, frozen=True, eq=False):
    """What was heard, and what was said to it."""

    event: AnyEvent
    commands: list[AnyCommand]


def _listed(array: Any) -> Any:
    return array.tolist()


def _array(kind: Any, values: Any) -> Any:
    """Numbers that are none are written as null."""
    _, dtype = get_args(kind)
    return np.array(values, dtype=get_args(dtype)[0])


_encoder = msgspec.json.Encoder(enc_hook=_listed)
_decoder = msgspec.json.Decoder(Step, dec_hook=_array)


def encode_step(step: Step) -> bytes:
    """One step as a line."""
    return _encoder.encode(step) + b"\n"


def decode_steps(lines: Iterable[bytes], name: str = "trace") -> Iterator[Step]:
    """The steps of these lines; `DataError` names the line that is none, unless it is torn."""
    for number, text in enumerate(lines, 1):
        if not text.endswith(b"\n"):
            return
        try:
            yield _decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise DataError(f"{name}, line {number}: {error}") from None


def read_trace(path: Path) -> list[Step]:
    """The steps of a file."""
    with path.open("rb") as file:
        return list(decode_steps(file, str(path)))
