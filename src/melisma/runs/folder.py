"""The folder of a run."""

from pathlib import Path

from melisma.errors import SettingError


def create_run_folder(folder: str | Path) -> Path:
    """Create an empty folder for a run and return its absolute path; nothing is overwritten."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SettingError(f"{folder} is not empty; use a new or empty folder for the run")
    except OSError as error:
        raise SettingError(f"cannot create the run folder {folder}: {error.strerror}") from error
    return folder.resolve()
