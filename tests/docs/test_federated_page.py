"""The example of federated learning on devices trains as the page about fleets prints it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import MELISMA
from tests.docs.page import run_page

PAGE = (Path(__file__).parents[2] / "docs" / "live" / "fleet.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Federated learning")[2].partition("\n## ")[0]
COMMAND = re.compile(r"^(melisma|python) (.*?)(?: +#.*)?$", re.MULTILINE)


@pytest.mark.timeout(300)
def test_two_devices_train_on_their_own_samples(tmp_path: Path) -> None:
    run_page(SECTION, tmp_path)
    (_, orchestrate), *device_commands = COMMAND.findall(SECTION)
    local = "--port 0 --host 127.0.0.1 --no-discovery"
    processes = [start(tmp_path, "first", "melisma", f"{orchestrate} {local}")]
    try:
        string = read_join_string(processes[0])
        for number in range(0, len(device_commands), 2):
            device = f"device-{number}"
            (_, script), (_, join) = device_commands[number : number + 2]
            with start(tmp_path, device, "python", script) as process:
                assert process.wait() == 0
            joined = start(tmp_path, device, "melisma", join.replace("mel1…", string))
            processes.append(joined)
        outputs = [process.communicate(timeout=200)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], outputs
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert "accuracy" in outputs[0]
    assert "pi: ready" in outputs[0]
    assert "laptop: ready" in outputs[0]


def start(folder: Path, machine: str, program: str, arguments: str) -> "subprocess.Popen[str]":
    """Start a printed command in the folder of a machine."""
    command = MELISMA if program == "melisma" else [sys.executable]
    home = folder / machine
    home.mkdir(exist_ok=True)
    arguments = re.sub(r"\b(federated.toml|my_digits.py)", rf"{folder}/\1", arguments)
    return subprocess.Popen(
        [*command, *arguments.split()],
        cwd=home,
        env=os.environ | {"MELISMA_HOME": str(home / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_join_string(process: "subprocess.Popen[str]") -> str:
    """Return the join string that an orchestrator prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"mel1[\w-]+", line):
            return match[0]
    raise AssertionError("the orchestrator printed no join string")
