"""`melisma resume`: the lines, exit codes and errors of the command."""

import shutil
from pathlib import Path

import pytest

from tests.cli.command_line import melisma, parse_json
from tests.live import tiny_task

TASK = """
[task]
name = "blobs"
model = "tiny_task:Linear"
data = "tiny_task:blobs"
scheme = "equal"
passes = 1
deadline_s = 20.0
cycles = 1
shard_samples = 100
extension = false
optimizer = { lr = 0.3 }
"""
FLEET = """
[[fleet.group]]
name = "d"
count = 2
samples_per_s = 500
bandwidth_bps = 20e6
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with task, fleet and model code."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_ended_run_goes_on_and_its_report_has_all_cycles() -> None:
    assert melisma("run", "task.toml", "--fleet", "fleet.toml", "--out", "run").code == 0
    again = melisma("resume", "run", "--cycles", "2", "--json")
    assert again.code == 0, again.stderr
    assert [cycle["number"] for cycle in parse_json(again.stdout)["cycles"]] == [1, 2]
    ended = melisma("resume", "run")
    assert ended.code == 2
    assert ended.stderr == (
        "melisma: the run has ended after cycle 2: use --cycles N with N > 2 to continue it\n"
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (".", "has no journal.db, so no run in it can be resumed; use the folder of a run"),
        ("missing", "missing; use the folder of a run, such as those below runs"),
        ("file", "is a file, and not a folder; use the folder of a run"),
        ("group", "so no run in it can be resumed; use melisma peers resume"),
        ("traced", "only a journal can be resumed: start a new run"),
    ],
)
def test_a_wrong_folder_is_named_with_what_to_use(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").touch()
    for folder, file in (("group", "peers.json"), ("traced", "trace.jsonl")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    done = melisma("resume", str(tmp_path / name))
    assert done.code == 2
    assert problem in done.stderr
