"""The spool of a learner: the training that it was at, its costs, and the state of its optimizer.

Each is a file of its device. A thread writes, so that training never waits for the disk. Files are
replaced as a whole and flushed to disk. There is one saved training at most, of the size of the
parameters, the state of the optimizer and 8 bytes for each sample of a pass; while it is replaced,
two.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from numpy.typing import NDArray

from melisma.atomic import write_atomic
from melisma.cycle.learner import CostHistory
from melisma.cycle.restarts import SAVE_S
from melisma.errors import DataError
from melisma.live.learner.saved_costs import (
    SavedStates,
    decode_costs,
    decode_history,
    encode_costs,
)
from melisma.live.learner.saved_training import (
    SavedTraining,
    SpoolOwner,
    decode_optimizer,
    decode_training,
    encode_optimizer,
    encode_training,
)
from melisma.private_files import make_private_folder
from melisma.text import visible
from melisma.user_code import describe_error

TRAINING_FILE, COSTS_FILE, OPTIMIZER_FILE = "training", "costs", "optimizer"
FILES: Final = (TRAINING_FILE, COSTS_FILE, OPTIMIZER_FILE)
MAX_FRACTION: Final = 0.01
"""The most of the time that saving takes: the copies, and the processor time of the thread.

The first save of a process comes after `SAVE_S` all the same: what it takes is not known before.
"""
MAX_BYTES_PER_S: Final = 4e6
"""The most bytes written in a second, so that an SD card lasts."""
FLUSH_S: Final = 5.0


class TrainingSpool:
    """What one learner of one run saves in a folder; without a folder, nothing.

    `costs`, `states` and `optimizer` are those of an earlier process of the same learner, None
    without. A file that is damaged or belongs to another learner is deleted, with a line on
    standard error.
    """

    def __init__(self, folder: str | None, owner: SpoolOwner) -> None:
        self._folder, self._owner = None if folder is None else Path(folder), owner
        self._training: SavedTraining | None = None
        self.costs: CostHistory | None = None
        self.states: SavedStates | None = None
        self.optimizer: dict[str, NDArray[Any]] | None = None
        self._optimizer_due_at = 0.0
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._writing = self._failed = False
        self._saved_at, self._pause_s, self._saved_visits = -1.0, SAVE_S, 0
        if self._folder is None:
            return
        try:
            make_private_folder(self._folder)
            for name in FILES:
                # Of a process that was killed while it wrote.
                for part in self._folder.glob(f"{name}.*.part"):
                    part.unlink(missing_ok=True)
        except OSError as error:
            note(f"trainings of this device are not saved: {error}")
            self._folder = None
            return
        self._read(TRAINING_FILE, self._read_training)
        self._read(COSTS_FILE, self._read_costs)
        self._read(OPTIMIZER_FILE, self._read_optimizer)
        threading.Thread(target=self._work, name="spool", daemon=True).start()

    def begin(self, visits: int) -> None:
        """Begin or continue an assignment, with these visits; the next save is due later."""
        self._failed, self._saved_visits = False, visits
        self._saved_at = time.monotonic()

    def take(self, key: tuple[int, int]) -> SavedTraining | None:
        """Return the saved training of this cycle and attempt; forget it if it is older."""
        training = self._training
        if training is None or training.key > key:
            return None
        self._training = None
        if training.key == key:
            return training
        self.delete()
        return None

    def withdraw(self, cycle: int, attempt: int) -> None:
        """Forget a saved training that was withdrawn before it was continued."""
        training = self._training
        if training is not None and training.key[0] == cycle and training.key[1] <= attempt:
            self._training = None
            self.delete()

    def is_due(self, visits: int) -> bool:
        """Return whether to save a training that has made these visits now."""
        if self._folder is None or self._writing or self._failed or visits == self._saved_visits:
            return False
        return time.monotonic() >= self._saved_at + self._pause_s

    def save(self, visits: int, began_at: float, build: Callable[[], SavedTraining]) -> None:
        """Write a training, whose state was copied since `began_at`; `build` runs in the thread."""
        now = time.monotonic()
        self._saved_at, self._saved_visits, self._writing = now, visits, True
        copy_s = now - began_at

        def write() -> None:
            began_s = time.thread_time()
            try:
                content = encode_training(build())
                self._write(TRAINING_FILE, content)
                used_s = copy_s + time.thread_time() - began_s
                self._pause_s = max(SAVE_S, used_s / MAX_FRACTION, len(content) / MAX_BYTES_PER_S)
            except Exception as error:  # noqa: BLE001 - the trainer, and its arrays, may be the user's
                self._failed = True
                note(f"the training of this cycle is not saved any more: {describe_error(error)}")
            finally:
                self._writing = False

        self._put(write)

    def save_costs(self, costs: CostHistory, states: SavedStates | None = None) -> None:
        """Write the costs, and those in each operating state."""
        content = encode_costs(self._owner, costs, states)
        self._put(lambda: self._try_to_write(COSTS_FILE, content, "measured costs"))

    def save_optimizer(self, copy_state: Callable[[], dict[str, NDArray[Any]]]) -> None:
        """Write the state of the optimizer after a training, unless cycles are too short for it."""
        if self._folder is None or time.monotonic() < self._optimizer_due_at:
            return
        try:
            content = encode_optimizer(self._owner, copy_state())
        except Exception as error:  # noqa: BLE001 - the trainer may be the user's
            note(f"the state of the optimizer is not saved: {describe_error(error)}")
            return
        self._optimizer_due_at = time.monotonic() + len(content) / MAX_BYTES_PER_S
        self._put(lambda: self._try_to_write(OPTIMIZER_FILE, content, "state of the optimizer"))

    def delete(self) -> None:
        """Delete the saved training: its update was received, or will not be."""
        self._put(lambda: self._delete(TRAINING_FILE))

    def clear(self) -> None:
        """Delete all files, as the run has ended."""
        self._put(lambda: self._delete(*FILES))
        self.flush()

    def flush(self) -> bool:
        """Wait until all is written and deleted, up to `FLUSH_S`; return whether it is."""
        done = threading.Event()
        self._put(done.set)
        return self._folder is None or done.wait(FLUSH_S)

    def _put(self, job: Callable[[], None]) -> None:
        if self._folder is not None:
            self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _write(self, name: str, content: bytes) -> None:
        assert self._folder is not None
        write_atomic(self._folder / name, content, mode=0o600)

    def _try_to_write(self, name: str, content: bytes, what: str) -> None:
        try:
            self._write(name, content)
        except OSError as error:
            note(f"{what}: not saved: {error}")

    def _delete(self, *names: str) -> None:
        assert self._folder is not None
        for name in names:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                note(f"cannot delete {self._folder / name}: {error}")

    def _read(self, name: str, parse: Callable[[bytes], SpoolOwner]) -> None:
        """Read a file; delete it if it cannot be used."""
        assert self._folder is not None
        path = self._folder / name
        try:
            owner = parse(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, DataError) as error:
            problem = str(error)
        else:
            if owner == self._owner:
                return
            problem = "it belongs to another run, learner or task"
        self._training = None if name == TRAINING_FILE else self._training
        if name == COSTS_FILE:
            self.costs = self.states = None
        self.optimizer = None if name == OPTIMIZER_FILE else self.optimizer
        note(f"ignored {path}: {problem}")
        self._delete(name)

    def _read_training(self, content: bytes) -> SpoolOwner:
        self._training = decode_training(content)
        return self._training.header.owner

    def _read_optimizer(self, content: bytes) -> SpoolOwner:
        owner, self.optimizer = decode_optimizer(content)
        return owner

    def _read_costs(self, content: bytes) -> SpoolOwner:
        saved = decode_costs(content)
        self.costs, self.states = decode_history(saved.costs), saved.states
        return saved.owner


def note(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{visible(line)}\n")
    sys.stderr.flush()
