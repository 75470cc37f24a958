"""`melisma orchestrate`, `status`, `learners`, `revoke` and `rename` as users call them."""

import inspect
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click
import msgspec
import pytest

import melisma as melisma_package
from melisma.cli import orchestrate
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.orchestrator.registry import Registry
from tests.cli.command_line import MELISMA, melisma, parse_json
from tests.live import enrolled_device, tiny_task

TASK = """
[task]
name = "blobs"
model = "tiny_task:Linear"
data = "tiny_task:blobs"
scheme = "equal"
passes = 1
deadline_s = 2.0
cycles = {cycles}
shard_samples = 50
optimizer = {{ name = "sgd", lr = 0.3 }}
"""
LOCAL = ("--host", "127.0.0.1", "--port", "0", "--no-discovery")
WAIT_S = 40.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELISMA_HOME", str(tmp_path / "home"))


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that holds the module `tiny_task`."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Output:
    """The lines that a process has written so far."""

    def __init__(self, stream: IO[str]) -> None:
        self.text, self._stream = "", stream
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the stream, after the process has ended."""
        self._thread.join()
        self._stream.close()

    def _read(self) -> None:
        while part := self._stream.read(1):
            with self._changed:
                self.text += part
                self._changed.notify_all()

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Wait until the output matches."""
        ends_at = time.monotonic() + WAIT_S
        with self._changed:
            while not (found := re.search(pattern, self.text)):
                assert time.monotonic() < ends_at, self.text
                self._changed.wait(0.2)
        return found


class Orchestrator:
    """A process of `melisma orchestrate`."""

    def __init__(
        self, folder: Path, *options: str, cycles: int = 2, script: str | None = None
    ) -> None:
        (folder / "task.toml").write_text(TASK.format(cycles=cycles), encoding="utf-8")
        self.folder = folder
        command = [*MELISMA, "orchestrate", "task.toml", "--out", "run", *LOCAL, *options]
        self.process = subprocess.Popen(
            command if script is None else [sys.executable, "-c", script],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout, self.stderr = Output(self.process.stdout), Output(self.process.stderr)

    def close(self) -> None:
        """Close the streams of the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.stdout.close()
        self.stderr.close()

    def settings(self, name: str, *, lines: Output | None = None) -> LearnerSettings:
        """Enrol a device; return the settings of its learner process."""
        joined = (lines or self.stdout).wait_for(r"melisma join (mel1[\w-]+)[^\n]*\n")
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return msgspec.structs.replace(
            enrolled_device.join(home, joined[1]),
            module_path=(str(self.folder),),
            allowed_modules=("tiny_task",),
        )

    @contextmanager
    def device(self, name: str, *, lines: Output | None = None) -> Iterator[None]:
        """Let a device take part inside a ``with``."""
        process = enrolled_device.start_learner(self.settings(name, lines=lines))
        try:
            yield
        finally:
            process.kill()
            process.communicate()


@contextmanager
def orchestrator(
    folder: Path, *options: str, cycles: int = 2, script: str | None = None
) -> Iterator[Orchestrator]:
    """Run `melisma orchestrate`, or a Python script instead of it, inside a ``with``."""
    running = Orchestrator(folder, *options, cycles=cycles, script=script)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        running.close()


def test_python_trains_on_devices_that_join(work_folder: Path) -> None:
    script = (
        "import melisma\n"
        "report = melisma.train('task.toml', devices=2, port=0, folder='run')\n"
        "print(report.outcome, *sorted(report.names))\n"
    )
    with orchestrator(work_folder, script=script) as running:
        with running.device("pi"), running.device("jetson"):
            assert running.process.wait(WAIT_S) == 0, running.stderr.text
        running.stdout.wait_for("the run begins when 2 learners are ready\n")
        running.stdout.wait_for("finished jetson pi\n")
    assert (work_folder / "run" / "model.safetensors").is_file()


def test_python_has_the_options_of_the_command_line() -> None:
    renamed = {"out": "folder", "no_discovery": "discovery"}
    options = {renamed.get(str(item.name), item.name) for item in orchestrate.command.params}
    arguments = set(inspect.signature(melisma_package.orchestrate).parameters)
    # A service, which has no task, is for the command line.
    assert options - {"as_json", "show", "budget"} == arguments - {
        "say",
        "on_cycle",
        "model",
        "data",
    }


def test_a_run_from_the_join_string_to_the_summary(work_folder: Path) -> None:
    with orchestrator(work_folder, "--learners", "1") as running:
        running.stdout.wait_for(
            r"^loading model tiny_task:Linear and data tiny_task:blobs\ntask blobs: "
        )
        running.stdout.wait_for(r"on each device:\n")
        running.stdout.wait_for(r"the run begins when 1 learner is ready; Ctrl-C ends it\n")
        assert re.search(r"addresses: 127\.0\.0\.1:\d+\n", running.stdout.text)
        with running.device("pi"):
            assert running.process.wait(WAIT_S) == 0
    running.stdout.wait_for("model +run/model.safetensors")
    for line in ("pi: registered from 127.0.0.1", "pi: ready", "cycle 2:"):
        assert line in running.stdout.text
    assert (work_folder / "run" / "model.safetensors").is_file()


def test_json_leaves_standard_output_to_the_report(work_folder: Path) -> None:
    with orchestrator(work_folder, "--learners", "1", "--json") as running:
        with running.device("pi", lines=running.stderr):
            assert running.process.wait(WAIT_S) == 0
        running.stdout.wait_for(r"\n")
    report = parse_json(running.stdout.text)
    assert report["outcome"] == "finished"
    assert report["names"] == ["pi"]


def test_an_interrupt_keeps_the_model(work_folder: Path) -> None:
    with orchestrator(work_folder, "--learners", "1", cycles=100) as running:
        with running.device("pi"):
            running.stdout.wait_for("cycle 1: ")
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(WAIT_S) == 130
        running.stdout.wait_for("trace +run/trace.jsonl")
    assert (work_folder / "run" / "model.safetensors").is_file()


def test_an_interrupt_before_the_run_leaves_nothing(work_folder: Path) -> None:
    with orchestrator(work_folder, "--learners", "1") as running:
        running.stdout.wait_for("the run begins")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(WAIT_S) == 130
        running.stderr.wait_for("melisma: interrupted\n")
    assert not (work_folder / "run").exists()


def test_the_owner_answers_in_the_terminal(work_folder: Path) -> None:
    with orchestrator(work_folder, "--learners", "1", "--approve") as running:
        assert running.process.stdin is not None
        running.process.stdin.write("n\ny\n")
        running.process.stdin.flush()
        with pytest.raises(Exception, match="did not accept pi"):
            running.settings("pi")
        running.stderr.wait_for(
            r"let pi join\? it calls from 127\.0\.0\.1, "
            r"with the identity sha256:[0-9a-f]{16} \[y/N\]"
        )
        assert running.settings("pi").name == "pi"


def test_an_open_question_is_asked_again_after_other_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = orchestrate.OrchestratorScreen(as_json=True)

    def confirm(*_: object, **__: object) -> bool:
        screen.say("jetson: registered")
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    assert screen.decide("pi", "sha256:0123", "10.0.0.7")
    screen.say("pi: registered")
    question = "let pi join? it calls from 10.0.0.7, with the identity sha256:0123 [y/N]: "
    expected = f"\njetson: registered\n{question}pi: registered\n"
    assert capsys.readouterr().err == expected


def test_the_status_of_a_running_orchestrator(work_folder: Path) -> None:
    with orchestrator(work_folder, "--learners", "2", cycles=100) as running:
        with running.device("pi"):
            running.stdout.wait_for("pi: ready")
            status = melisma("status")
            assert status.code == 0
            assert "blobs: equal, begins when 2 learners are ready" in status.stdout
            assert re.search(r"pi +ready +127\.0\.0\.1 +\d+ s ago", status.stdout)
            with running.device("jetson"):
                running.stdout.wait_for("cycle 1: ")
                found = json.loads(melisma("status", "--json").stdout)
                assert found["state"] == "running"
                assert {item["name"] for item in found["learners"]} == {"pi", "jetson"}
                listed = json.loads(melisma("learners", "--json").stdout)
                assert {item["state"] for item in listed} <= {"training", "waiting"}
                assert melisma("revoke", "jetson").code == 0
                running.stdout.wait_for("jetson: revoked by the owner\n")
        second = melisma("orchestrate", work_folder / "task.toml", *LOCAL, "--out", "second")
        assert second.code == 2
        assert "another orchestrator is running" in second.stderr
    assert not (work_folder / "second").exists()


def test_without_an_orchestrator_the_status_says_so() -> None:
    result = melisma("status")
    assert result.code == 2
    assert result.stderr == (
        "melisma: no orchestrator is running on this machine for this user: start one with "
        "melisma orchestrate TASK.toml\n"
    )


def test_devices_are_listed_renamed_and_revoked() -> None:
    assert "no device has joined yet" in melisma("learners").stdout
    Registry().add(f"sha256:{'ab' * 32}", "pi", "192.0.2.7")
    assert re.search(
        r"pi +- +192\.0\.2\.7 +\d{4}-\d\d-\d\d \d\d:\d\d +sha256:(ab){8}\n",
        melisma("learners").stdout,
    )
    assert melisma("rename", "pi", "kitchen").stdout == "pi is kitchen from the next run on\n"
    wrong = melisma("revoke", "kitchn")
    assert wrong.code == 2
    assert "kitchen" in wrong.stderr
    assert melisma("revoke", "kitchen").code == 0
    Registry().add(f"sha256:{'cd' * 32}", "kitchen", "192.0.2.8")
    lines = melisma("learners").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["kitchen", "-", "192.0.2.8"],
        ["kitchen", "revoked", "192.0.2.7"],
    ]
    (date,) = lines[3:]
    assert re.fullmatch(r"kitchen, sha256:(ab){8}: revoked \d{4}-\d\d-\d\d \d\d:\d\d", date)
    listed = json.loads(melisma("learners", "--json").stdout)
    assert [(item["state"], item["revoked_at"] is None) for item in listed] == [
        (None, True),
        ("revoked", False),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--learners", "0"), "--learners"),
        (("--until-ready", "-1"), "until_ready = -1 is invalid: use until_ready >= 0"),
        (("--until-ready", "25:00"), "until_ready is '25:00'; expected a time"),
        (("--host", "my-laptop"), "is not an IP address: use one of this machine"),
        (("--host", "192.0.2.200"), "cannot listen on 192.0.2.200"),
        (("--learners", "5", "--max-learners", "2"), "use max_learners >= 5"),
        (("--scheme", "equall"), "equal"),
    ],
)
def test_wrong_options_end_at_once(
    work_folder: Path, options: tuple[str, ...], message: str
) -> None:
    (work_folder / "task.toml").write_text(TASK.format(cycles=1), encoding="utf-8")
    result = melisma("orchestrate", "task.toml", "--out", "run", *LOCAL, *options)
    assert result.code == 2
    assert message in result.stderr
    assert not (work_folder / "run").exists()


def test_a_missing_task_file_is_named(work_folder: Path) -> None:
    result = melisma("orchestrate", "no.toml", *LOCAL)
    assert result.code == 2
    assert "no.toml" in result.stderr
