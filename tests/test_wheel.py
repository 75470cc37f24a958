"""The wheel that devices install works in an environment of its own."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from melisma import __version__

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_installed_wheel_joins_and_checks_devices(tmp_path: Path) -> None:
    wheels, environment = tmp_path / "wheels", tmp_path / "environment"
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels)
    run(*build, ROOT, folder=tmp_path)
    (wheel,) = wheels.glob("melisma-*.whl")
    venv.create(environment, with_pip=True)
    run(environment / "bin" / "pip", "install", "--quiet", wheel, folder=tmp_path)
    command = environment / "bin" / "melisma"
    assert __version__ in run(command, "--version", folder=tmp_path)
    assert "--new-identity" in run(command, "join", "--help", folder=tmp_path)
    lines = run(command, "doctor", folder=tmp_path).splitlines()
    assert any(line.startswith("warn  speed         no PyTorch") for line in lines)
