"""A folder with a model and data for live nodes."""

import shutil
from pathlib import Path

import pytest

from tests.live import tiny_task
from tests.live.peer.tiny_net import NET


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a model and data, and with its own home for certificates."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("MELISMA_HOME", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path
