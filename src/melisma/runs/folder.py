"""The folder of a run, and the names of the files and folders in it.

::

    trace.jsonl         every event and command; not without an orchestrator
    journal.db          the same while a live run goes on, and what is needed to resume it
    parameters/         the models that learners start from, of live runs
    picture.svg         the picture of the run
    model.safetensors   the model after the last cycle that changed it
    best.safetensors    the best model, on request
    checkpoints/        the model after each cycle, on request
    models/             the model of each node, without an orchestrator
    reports/            the report of each node, in live runs without an orchestrator
    state/              the state from which each node resumes, without an orchestrator
    peers.json          the settings with which a group of nodes resumes
    logs/               the output of each process that wrote any, in live runs

The folder of tasks that share learners has a folder for each of them, and

::

    service.db          every event and command of the service, and its ledger, of live runs
    service.jsonl       every event and command of the service, of simulations

The other folders exist only while a live run goes on: the shards of the orchestrator, the cache and
data of each device, and the updates of the current cycle.
"""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melisma.atomic import make_durable_folder
from melisma.errors import DataError, SettingError
from melisma.fleet.arguments import describe

TRACE_FILE, PICTURE_FILE, MODEL_FILE = "trace.jsonl", "picture.svg", "model.safetensors"
JOURNAL_FILE, GROUP_FILE = "journal.db", "peers.json"
SERVICE_JOURNAL, SERVICE_TRACE = "service.db", "service.jsonl"
BEST_MODEL_FILE, CHECKPOINTS_FOLDER = "best.safetensors", "checkpoints"
MODELS_FOLDER, REPORTS_FOLDER, LOGS_FOLDER = "models", "reports", "logs"
SHARDS_FOLDER, DEVICES_FOLDER = "shards", "devices"
UPDATES_FOLDER, PARAMETERS_FOLDER = "updates", "parameters"
KEPT = (
    *(MODEL_FILE, BEST_MODEL_FILE, CHECKPOINTS_FOLDER, MODELS_FOLDER, REPORTS_FOLDER),
    *(TRACE_FILE, PICTURE_FILE),
)
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


def task_folder(number: int, name: str) -> str:
    """Return the name of the folder of one task of several: its number from 1, and its name."""
    return f"{number + 1}-{UNSAFE.sub('-', name)}"


@contextmanager
def naming_kept_files(folder: Path) -> Iterator[None]:
    """Turn an error of the disk of a run into a `DataError` that says what the run kept."""
    try:
        yield
    except OSError as error:
        # SQLite reports some full disks as an input/output error.
        if error.errno in FULL_DISK or (error.errno == errno.EIO and not _free_bytes(folder)):
            raise DataError(describe_full_disk(folder)) from error
        if error.filename is None or not Path(error.filename).is_relative_to(folder):
            raise
        raise DataError(
            f"cannot use {error.filename}: {error.strerror}; {_kept_files(folder)}; make {folder} "
            f"readable and writable for this user, or copy it, and {_how_to_go_on(folder)}"
        ) from error


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free if folder.exists() else 0


def describe_full_disk(folder: Path) -> str:
    """Return a message about a full disk: the files that a run kept in its folder."""
    return (
        f"no space is left on the disk of {folder}; {_kept_files(folder)}; free some space and "
        f"{_how_to_go_on(folder)}"
    )


def _kept_files(folder: Path) -> str:
    kept = [name for name in KEPT if (folder / name).exists()]
    return f"kept in {folder}: {', '.join(kept)}" if kept else "nothing was kept"


def _how_to_go_on(folder: Path) -> str:
    return f"use melisma resume {folder}" if (folder / JOURNAL_FILE).exists() else "run again"


def check_is_run_folder(folder: Path) -> None:
    """Raise `SettingError` unless a folder has the journal of a run."""
    if (folder / JOURNAL_FILE).is_file():
        return
    hint = "use the folder of a run, such as those below runs"
    if (folder / GROUP_FILE).is_file():
        hint = f"use melisma peers resume {folder}"
    elif (folder / TRACE_FILE).is_file():
        hint = (
            "it has the trace of a run, but only a journal can be resumed: start a new run from "
            "its model with melisma run --start"
        )
    if not folder.exists():
        problem = f"there is no folder {folder}"
    elif folder.is_dir():
        problem = f"{folder} has no {JOURNAL_FILE}, so no run in it can be resumed"
    else:
        problem = f"{folder} is a file, and not a folder"
    raise SettingError(f"{problem}; {hint}")


def check_run_folder(folder: str | Path) -> None:
    """Raise SettingError if the folder exists and is not empty; create nothing."""
    if not isinstance(folder, str | Path):
        raise SettingError(f"folder is {describe(folder)}; expected the path of a folder")
    folder = Path(folder)
    try:
        used = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise SettingError(f"cannot read the run folder {folder}: {error.strerror}") from error
    if used:
        known = (folder / JOURNAL_FILE).exists()
        hint = f", or melisma resume {folder} to go on with the run in it" if known else ""
        raise SettingError(f"{folder} is not empty; use a new or empty folder for the run{hint}")


def create_run_folder(folder: str | Path) -> Path:
    """Create an empty folder for a run and return its absolute path; nothing is overwritten.

    Only its owner may read a new folder; the mode of one that exists is not changed.
    """
    folder = Path(folder)
    try:
        make_durable_folder(folder)
    except OSError as error:
        raise SettingError(f"cannot create the run folder {folder}: {error.strerror}") from error
    check_run_folder(folder)
    return folder.resolve()
