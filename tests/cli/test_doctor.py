"""`melisma doctor`: lines or JSON, and its exit code."""

import json
from pathlib import Path

import pytest

from melisma.live.joining import device_checks
from melisma.live.joining.device_checks import Finding
from tests.cli.command_line import melisma


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELISMA_HOME", str(tmp_path))
    monkeypatch.setattr(device_checks, "check_speed", lambda: Finding("speed", "ok", "fast"))
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
    monkeypatch.setattr(device_checks, "check_speed", lambda: broken)
    assert "fail  speed         install it again\\x1b[2J\n" in melisma("doctor").stdout
    result = melisma("doctor", "--json")
    assert result.code == 1
    assert json.loads(result.stdout)[-1]["level"] == "fail"


def test_an_invalid_join_string_ends_at_once() -> None:
    result = melisma("doctor", "mel1abc")
    assert result.code == 2
    assert "the join string is invalid" in result.stderr
