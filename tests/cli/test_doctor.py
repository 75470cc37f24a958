"""`melisma doctor`: lines or JSON, and its exit code."""

import json
import subprocess
from pathlib import Path

import pytest

from melisma.live.join_string import JoinString
from melisma.live.joining import device_checks
from melisma.live.joining.device_checks import Finding
from tests.cli.command_line import MELISMA, melisma


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELISMA_HOME", str(tmp_path))
    monkeypatch.setattr(device_checks, "check_speed", lambda: [Finding("speed", "ok", "fast")])
    monkeypatch.setattr(device_checks, "check_packages", lambda: Finding("packages", "ok", "all"))


def test_a_healthy_device_has_a_line_for_each_check() -> None:
    result = melisma("doctor")
    assert result.code == 0, result
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok    python        3.")
    assert "ok    speed         fast" in lines
    assert lines[-1] == "no orchestrator is known: pass the join string to check the way to it"


def test_a_failure_is_an_exit_code_and_json_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Finding("speed", "fail", "install it again\x1b[2J")
    monkeypatch.setattr(device_checks, "check_speed", lambda: [broken])
    assert "fail  speed         install it again\\x1b[2J\n" in melisma("doctor").stdout
    result = melisma("doctor", "--json")
    assert result.code == 1
    assert json.loads(result.stdout)[-1]["level"] == "fail"


def test_an_invalid_join_string_ends_at_once() -> None:
    result = melisma("doctor", "mel1abc")
    assert result.code == 2
    assert "the join string is invalid" in result.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has this file")
def test_the_join_string_is_hidden_while_the_checks_run() -> None:
    string = str(JoinString.create(9, f"sha256:{'0' * 64}", "AAECAwQFBgcICQoL", ["127.0.0.1"])[0])
    with subprocess.Popen([*MELISMA, "doctor", string], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ok    python")
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        process.kill()
    assert arguments[-2:] == [b"*" * len(string), b""]
