from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.errors import DataError
from melisma.runs.trace import (
    Step,
    TraceFile,
    decode_steps,
    encode_step,
    read_trace,
    write_trace,
)
from melisma.testing import FakeDevice, VirtualRun, make_task


def trace(scheme: str = "dab") -> list[Step]:
    return VirtualRun(make_task(scheme=scheme), [FakeDevice(0.1), FakeDevice(0.4)]).run()


@pytest.mark.parametrize("scheme", ["dab", "proportional"])
def test_a_written_trace_is_read_back(scheme: str, tmp_path: Path) -> None:
    steps = trace(scheme)
    path = tmp_path / "trace.jsonl"
    write_trace(path, steps)
    read = read_trace(path)
    assert [encode_step(step) for step in read] == [encode_step(step) for step in steps]
    assert type(read[0].event) is events.TaskSubmitted
    assert read[0].event.task == make_task(scheme=scheme)


def test_nan_and_none_survive_encoding() -> None:
    event = events.UpdatesReceived(
        at_s=1.0,
        learners=np.array([0]),
        cycle=1,
        attempts=np.array([1]),
        visits=np.array([0]),
        shipped=np.array([0]),
        loss=np.array([np.nan]),
        phases=np.zeros((1, 6)),
    )
    score = events.Evaluated(at_s=2.0, cycle=1, loss=None, accuracy=None, seconds=0.1)
    first, second = decode_steps([encode_step(Step(event, [])), encode_step(Step(score, []))])
    assert isinstance(first.event, events.UpdatesReceived)
    assert np.isnan(first.event.loss[0])
    assert first.event.phases.shape == (1, 6)
    assert isinstance(second.event, events.Evaluated)
    assert second.event.loss is None


def test_an_incomplete_last_line_is_skipped() -> None:
    lines = list(map(encode_step, trace()))
    assert len(list(decode_steps([*lines[:5], lines[5][:-9]]))) == 5


def test_an_invalid_line_is_named() -> None:
    lines = list(map(encode_step, trace()))
    with pytest.raises(DataError, match="mine, line 2"):
        list(decode_steps([lines[0], b'{"event": 3}\n'], "mine"))


def test_a_trace_begins_with_the_version_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, trace())
    assert path.read_bytes().startswith(b'{"format":"melisma-trace","version":2}\n')


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"format":"melisma-trace","version":1}\n', "format version 1, but .* reads 2"),
        (b"", "is not a trace"),
        (b'{"event":{},"commands":[]}\n', "is not a trace"),
        (b"learner,at_s,event\n", "is not a trace"),
    ],
)
def test_a_file_of_another_format_or_version_is_refused(
    header: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(header + b"".join(map(encode_step, trace())))
    with pytest.raises(DataError, match=message):
        read_trace(path)


def test_a_trace_written_step_by_step_equals_one_written_at_once(tmp_path: Path) -> None:
    file, steps = TraceFile(tmp_path), trace()
    assert not (tmp_path / "trace.jsonl").exists()
    for step in steps:
        file.write(step)
    file.close()
    write_trace(tmp_path / "whole.jsonl", steps)
    assert (tmp_path / "trace.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_trace_can_hold_every_event_and_every_command() -> None:
    assert set(get_args(events.AnyEvent)) == set(events.Event.__subclasses__())
    assert set(get_args(commands.AnyCommand)) == set(commands.Command.__subclasses__())
