"""The wheel that devices install works in an environment of its own."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

from melisma import __version__
from tests.live.attacks.attacked_fleet import attacked_fleet, total

ROOT = Path(__file__).parents[1]


def run(*arguments: str | Path, folder: Path) -> str:
    """Run a program without the source of this repository, and return its output."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        arguments,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=settings | {"MELISMA_HOME": str(folder / "home")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder, and return its path."""
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
    run(*build, ROOT, folder=folder)
    (wheel,) = folder.glob("melisma-*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_installed_wheel_joins_and_checks_devices(tmp_path: Path) -> None:
    wheel, environment = build_wheel(tmp_path), tmp_path / "environment"
    venv.create(environment, with_pip=True)
    run(environment / "bin" / "pip", "install", "--quiet", wheel, folder=tmp_path)
    command = environment / "bin" / "melisma"
    assert __version__ in run(command, "--version", folder=tmp_path)
    assert "--new-identity" in run(command, "join", "--help", folder=tmp_path)
    lines = run(command, "doctor", folder=tmp_path).splitlines()
    assert any(line.startswith("warn  speed         no PyTorch") for line in lines)


def command_of(tool: str, folder: Path) -> list[str]:
    """Return the command that runs the wheel by `uvx` or `pipx`, which are installed if needed."""
    wheel, program = build_wheel(folder), shutil.which("uv" if tool == "uvx" else tool)
    if program is None:
        environment = folder / "tools"
        venv.create(environment, with_pip=True)
        package = "uv" if tool == "uvx" else tool
        run(environment / "bin" / "pip", "install", "--quiet", package, folder=folder)
        program = str(environment / "bin" / package)
    if tool == "uvx":
        cache = f"UV_CACHE_DIR={folder / 'cache'}"
        return ["env", cache, program, "tool", "run", "--from", str(wheel), "melisma"]
    homes = f"PIPX_HOME={folder / 'pipx'}", f"PIPX_BIN_DIR={folder / 'bin'}"
    run("env", *homes, program, "install", wheel, folder=folder)
    return [str(folder / "bin" / "melisma")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_a_device_that_installed_the_wheel_joins_and_trains(tmp_path: Path, tool: str) -> None:
    tools, folder = tmp_path / "tools-of-device", tmp_path / "fleet"
    tools.mkdir()
    folder.mkdir()
    command = command_of(tool, tools)
    with attacked_fleet(folder, learners=2, cycles=2, deadline_s=60.0) as fleet:
        anchor = fleet.anchor()
        arguments = ["join", fleet.text, "--name", "installed", "--allow-module", "tiny_task"]
        device = fleet.start("installed", ["env", "-u", "PYTHONPATH", *command, *arguments])
        assert anchor.at_work.wait(300), device.text
        process = psutil.Process(device.pid)
        programs = [each.cmdline()[0] for each in (process, *process.children(recursive=True))]
        anchor.release()
        report = fleet.finish()
        assert device.wait() == 0, device.text
    # The learner process too runs the Python of the installed wheel.
    assert sum(program.startswith(str(tools)) for program in programs) >= 2, programs
    assert report.outcome == "finished"
    trained = total(report, "installed")
    assert (trained.cycles, trained.left) == (2, 0)
    assert trained.counted_visits > 0
