"""Code of a task is ended when it uses too much memory or time."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import ResumableTrainer
from melisma.live.learner.code_limits import default_memory_bytes, watch_trainer
from melisma.live.learner.trainer_setup import require_64_bit
from tests.live.learner import counting_task
from tests.live.learner.played_orchestrator import TASK


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", f"from melisma.live.learner import code_limits\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_memory_beyond_the_limit_is_an_error() -> None:
    done = run(
        "code_limits.limit_memory(1 << 30)\nsmall = bytearray(1 << 20)\n"
        "try:\n    bytearray(2 << 30)\nexcept MemoryError:\n    print('refused')"
    )
    assert done.stdout == "refused\n", done.stderr


def test_the_default_limit_leaves_memory_to_the_device() -> None:
    assert 0 < default_memory_bytes() < 1 << 50


@pytest.mark.parametrize(
    "endless",
    ["while True: pass", "import ctypes; ctypes.PyDLL(None).usleep(2**31 - 1)"],
    ids=["Python", "code that holds the lock"],
)
def test_code_that_takes_too_long_is_ended_with_its_place(endless: str) -> None:
    done = run(f"with code_limits.time_limit(0.2):\n    {endless}")
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "<string>" in done.stderr


def test_code_in_time_is_not_ended() -> None:
    code = "with code_limits.time_limit(1.5): pass\nimport time; time.sleep(1.7); print('done')"
    assert run(code).stdout == "done\n"


def test_a_watched_trainer_is_ended_in_training() -> None:
    done = run(
        "class Stuck:\n    def train(self, *_):\n        while True: pass\n"
        "code_limits.GRACE_S = 0.1\n"
        "code_limits.WatchedTrainer(Stuck(), 0.05).train({}, iter(()), None)"
    )
    assert done.returncode == 1
    assert "in train" in done.stderr


def test_a_32_bit_system_is_refused_with_the_fix() -> None:
    require_64_bit()
    with pytest.raises(SettingError, match="install a 64-bit operating system"):
        require_64_bit(2**31 - 1)


def test_trainings_of_a_watched_trainer_can_be_continued_if_those_of_the_trainer_can() -> None:
    forgetful, counting = counting_task.Forgetful(TASK), counting_task.Counting(TASK)
    assert not isinstance(watch_trainer(forgetful, 1.0), ResumableTrainer)
    watched = watch_trainer(counting, 1.0)
    assert isinstance(watched, ResumableTrainer)
    samples = Split(np.zeros((10, 2)), np.arange(10))
    rng = np.random.default_rng(1)
    states = []

    def batches() -> Iterator[Split]:
        for batch in batches_of(samples, 1, 5, rng):
            states.append(watched.checkpoint())
            yield batch

    expected = watched.train(watched.initial(), batches(), rng)
    assert [state.visits for state in states] == [0, 5]
    watched.restore(states[1])
    again = watched.train(states[1].parameters, iter(()), rng)
    assert (expected.visits, again.visits) == (10, 5)
    assert np.array_equal(again.parameters["visits"], states[1].parameters["visits"])
