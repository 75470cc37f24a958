"""The folder of a run."""

from pathlib import Path

from melisma.errors import SettingError


def check_run_folder(folder: str | Path) -> None:
    """Raise SettingError if the folder exists and is not empty; create nothing."""
    folder = Path(folder)
    try:
        used = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise SettingError(f"cannot read the run folder {folder}: {error.strerror}") from error
    if used:
        raise SettingError(f"{folder} is not empty; use a new or empty folder for the run")


def create_run_folder(folder: str | Path) -> Path:
    """Create an empty folder for a run and return its absolute path; nothing is overwritten."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"cannot create the run folder {folder}: {error.strerror}") from error
    check_run_folder(folder)
    return folder.resolve()
