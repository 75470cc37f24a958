"""The file of a running orchestrator: there while it runs, for its owner alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.live.orchestrator.running_orchestrator import announce_running, find_running


def test_a_running_orchestrator_is_found_while_it_runs(tmp_path: Path) -> None:
    assert find_running(tmp_path) is None
    with announce_running("https://127.0.0.1:1", "token", "r1", tmp_path):
        found = find_running(tmp_path)
        assert found is not None
        assert (found.address, found.owner_token) == ("https://127.0.0.1:1", "token")
        assert (tmp_path / "running.json").stat().st_mode & 0o077 == 0
        second = announce_running("https://127.0.0.1:2", "token", "r2", tmp_path)
        with pytest.raises(SettingError, match="another orchestrator is running"), second:
            pass
    assert find_running(tmp_path) is None
    with announce_running("https://127.0.0.1:3", "token", "r3", tmp_path):
        assert find_running(tmp_path) is not None


def test_the_file_of_a_killed_orchestrator_does_not_count(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; "
        "from melisma.live.orchestrator.running_orchestrator import announce_running; "
        "own = announce_running('https://127.0.0.1:1', 't', 'r1', Path(sys.argv[1])); "
        "own.__enter__(); "
        "os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert (tmp_path / "running.json").exists()
    assert find_running(tmp_path) is None
