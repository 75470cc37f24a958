"""The processes of a device take turns."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melisma.live.learner.turns import Turns

HOLDER = """
import sys
from melisma.live.learner.turns import Turns
with Turns(sys.argv[1]).take():
    print("taken", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holding(path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Let a process have the turn until its standard input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        yield holder


def test_a_turn_waits_for_that_of_another_process(tmp_path: Path) -> None:
    with holding(tmp_path / "turns") as holder:
        with Turns(tmp_path / "other").take() as waited_s:
            assert waited_s < 1  # that of another device
        assert holder.stdin is not None
        began = time.monotonic()
        holder.stdin.close()
        with Turns(tmp_path / "turns").take() as waited_s:
            assert waited_s <= time.monotonic() - began + 1e-3
        assert holder.wait() == 0


def test_the_turn_of_a_killed_process_ends(tmp_path: Path) -> None:
    with holding(tmp_path / "turns") as holder:
        holder.kill()
        with Turns(tmp_path / "turns").take():
            assert holder.wait() == -9


def test_turns_of_one_process_follow_each_other(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "turns")
    for _ in range(2):
        with turns.take() as waited_s:
            assert waited_s >= 0


def test_a_process_without_a_file_is_the_only_one() -> None:
    with Turns(None).take() as waited_s:
        assert waited_s == 0
