"""The folder of a run, and the names of the files and folders in it.

::

    trace.jsonl         every event and command; not without an orchestrator
    picture.svg         the picture of the run
    model.safetensors   the model after the last cycle that changed it
    best.safetensors    the best model, on request
    checkpoints/        the model after each cycle, on request
    models/             the model of each node, without an orchestrator
    reports/            the report of each node, in live runs without an orchestrator
    logs/               the output of each process that wrote any, in live runs

The other folders exist only while a live run goes on: the shards of the orchestrator, the cache and
data of each device, the updates of the current cycle, and the parameters that learners start from.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melisma.errors import DataError, SettingError
from melisma.fleet.arguments import describe
from melisma.private_files import make_private_folder

TRACE_FILE, PICTURE_FILE, MODEL_FILE = "trace.jsonl", "picture.svg", "model.safetensors"
BEST_MODEL_FILE, CHECKPOINTS_FOLDER = "best.safetensors", "checkpoints"
MODELS_FOLDER, REPORTS_FOLDER, LOGS_FOLDER = "models", "reports", "logs"
SHARDS_FOLDER, DEVICES_FOLDER = "shards", "devices"
UPDATES_FOLDER, PARAMETERS_FOLDER = "updates", "parameters"
KEPT = (
    *(MODEL_FILE, BEST_MODEL_FILE, CHECKPOINTS_FOLDER, MODELS_FOLDER, REPORTS_FOLDER),
    *(TRACE_FILE, PICTURE_FILE),
)
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def naming_kept_files(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into a `DataError` that says what the run kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise DataError(describe_full_disk(folder)) from error


def describe_full_disk(folder: Path) -> str:
    """Return a message about a full disk: the files that a run kept in its folder."""
    kept = [name for name in KEPT if (folder / name).exists()]
    files = f"kept in {folder}: {', '.join(kept)}" if kept else "nothing was kept"
    return f"no space is left on the disk of {folder}; {files}; free some space and run again"


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
        raise SettingError(f"{folder} is not empty; use a new or empty folder for the run")


def create_run_folder(folder: str | Path) -> Path:
    """Create an empty folder for a run and return its absolute path; nothing is overwritten.

    Only its owner may read a new folder; the mode of one that exists is not changed.
    """
    folder = Path(folder)
    try:
        make_private_folder(folder)
    except OSError as error:
        raise SettingError(f"cannot create the run folder {folder}: {error.strerror}") from error
    check_run_folder(folder)
    return folder.resolve()
