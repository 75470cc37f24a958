"""The systemd unit and the container file of examples/device: their commands are those of today."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from melisma.axon.transport import tls
from melisma.cli import join

FOLDER = Path(__file__).parents[2] / "examples" / "device"
UNIT, CONTAINER = FOLDER / "melisma-join.service", FOLDER / "Containerfile"


def parse_join(arguments: list[str]) -> click.Context:
    """Parse the arguments of `melisma join`; raise `click.UsageError` for others."""
    assert arguments[0] == "join"
    return join.command.make_context("join", arguments[1:])


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return unit


def test_the_service_joins_with_options_of_the_command() -> None:
    program, *arguments = shlex.split(read_unit()["Service"]["ExecStart"])
    assert program == "%h/.local/bin/melisma"
    options = parse_join(arguments).params
    assert options["stay"] is True
    assert (options["cores"], options["min_battery"]) == (0.5, 30)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_service(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("%h/.local/bin/melisma", "/bin/true")
    path = tmp_path / UNIT.name
    path.write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)],
        check=False,
        capture_output=True,
        text=True,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        timeout=60,
    )
    problems = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert problems == []


def test_systemd_restarts_the_service_unless_its_usage_is_wrong() -> None:
    service = read_unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(click.UsageError.exit_code)


def instructions() -> dict[str, str]:
    """Return the last value of each instruction of the container file."""
    lines = re.sub(r"\\\n", " ", CONTAINER.read_text()).splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}


def test_the_container_waits_for_runs_and_keeps_its_identity_in_a_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = instructions()
    assert json.loads(found["ENTRYPOINT"]) == ["melisma"]
    assert parse_join(json.loads(found["CMD"])).params["stay"] is True
    variable, _, folder = found["ENV"].partition("=")
    monkeypatch.setenv(variable, folder)
    assert tls.data_folder() == Path(found["VOLUME"]) == Path(folder)
    assert found["USER"] != "root"


def test_the_container_installs_the_wheel_that_its_comment_builds() -> None:
    text = CONTAINER.read_text()
    assert "pip wheel --no-deps -w dist ." in text
    assert instructions()["COPY"].split()[0] == "dist/melisma-*.whl"
