"""Secrets of the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from melisma.cli.process_list import hide_argument
print(hide_argument(sys.argv[1]), sys.argv[1], hide_argument("mel1unknown"), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has this file")
def test_an_argument_is_hidden_from_other_users_and_known_to_the_program() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "mel1secret", "--stay"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True mel1secret False\n"
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert arguments[3:] == [b"*" * len("mel1secret"), b"--stay", b""]
        assert process.stdin is not None
        process.stdin.close()
