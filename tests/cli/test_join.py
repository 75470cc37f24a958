"""`melisma join` as a process, at an orchestrator in this one."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from melisma import axon
from melisma.cli import join
from melisma.cli.views.join_view import report_line
from melisma.cycle import events
from melisma.live.learner import device_reports as reports
from melisma.live.learner.agent import LearnerSettings
from melisma.live.learner.device_identity import DeviceState, KnownOrchestrator
from tests.cli.command_line import MELISMA, melisma
from tests.live.joining.fleet import ROOT, OpenRun
from tests.live.orchestrator.served_run import wait_until

MAX_SUPERVISOR_BYTES = 60_000_000
MODULE = ("--allow-module", "tests.live.tiny_task")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MELISMA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, sys.path), ROOT]))
    return tmp_path / "home"


@asynccontextmanager
async def joining(*arguments: str) -> AsyncIterator[Process]:
    """Run `melisma join` as a process inside an ``async with``."""
    process = await asyncio.create_subprocess_exec(
        *MELISMA, "join", *arguments, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def read_until(process: Process, start: str) -> list[str]:
    """Return the lines of a process up to one that begins with `start`."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith(start):
        line = await process.stdout.readline()
        assert line, lines
        lines.append(line.decode().rstrip("\n"))
    return lines


async def test_ctrl_c_leaves_the_run_and_ends_the_learner(tmp_path: Path, home: Path) -> None:
    async with (
        OpenRun(tmp_path).listening() as run,
        joining(run.string, "--name", "a", *MODULE) as process,
    ):
        lines = await read_until(process, "joined")
        supervisor = psutil.Process(process.pid)
        (learner,) = supervisor.children()
        assert supervisor.memory_info().rss < MAX_SUPERVISOR_BYTES
        process.send_signal(signal.SIGINT)
        rest, errors = await process.communicate()
        assert process.returncode == 130
        assert not learner.is_running()
        assert [left.reason for left in run.run.of(events.LearnersLeft)] == [
            "a: its owner stopped it"
        ]
    assert rest.decode() == "left the run\n"
    assert errors.decode().strip() == "melisma: interrupted"
    starts = ["identity sha256:", "reached the orchestrator at https://127.0.0.1:"]
    starts += ["known to the orchestrator as a", "started the learner process", "registered for"]
    shown = [line for line in lines if not line.startswith(("not reached", "measured"))]
    assert len(shown) == len(starts) + 1
    assert all(line.startswith(start) for line, start in zip(shown, starts, strict=False))
    assert {path.name: path.stat().st_mode & 0o777 for path in (home / "device").iterdir()} == {
        "cache": 0o700,
        "identity.pem": 0o600,
        "learner.log": 0o600,
        "orchestrators.json": 0o600,
        "orchestrators.json.lock": 0o600,
    }


async def test_a_device_joins_again_without_a_string_and_reports_as_json(tmp_path: Path) -> None:
    async with OpenRun(tmp_path).listening() as run:
        async with joining(run.string, "--name", "a", *MODULE) as process:
            await read_until(process, "joined")
            process.terminate()
            await process.communicate()
        async with joining("--json", *MODULE) as process:
            lines = await read_until(process, '{"report":"Joined"')
            await wait_until(lambda: len(run.run.of(events.LearnersJoined)) == 2)
            process.terminate()
            await process.communicate()
    records = [json.loads(line) for line in lines]
    enrolled = next(record for record in records if record["report"] == "Enrolled")
    assert enrolled == {"report": "Enrolled", "name": "a", "again": True}


async def test_with_stay_a_device_waits_until_the_orchestrator_runs(tmp_path: Path) -> None:
    async with (
        OpenRun(tmp_path).listening() as run,
        joining(run.string, "--name", "a", *MODULE) as process,
    ):
        await read_until(process, "joined")
        process.terminate()
        await process.communicate()
    async with joining("--stay") as process:
        lines = await read_until(process, "waiting for the next run")
        assert "did not answer at any of its 2 addresses" in lines[-1]
        process.terminate()
        await process.communicate()
    assert process.returncode == 130
    async with joining() as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert "the orchestrator did not answer" in errors.decode()


async def test_code_that_the_owner_has_not_allowed_ends_with_the_option(tmp_path: Path) -> None:
    async with (
        OpenRun(tmp_path).listening() as run,
        joining(run.string, "--name", "a") as process,
    ):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert "--allow-module tests.live.tiny_task" in errors.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mel1abc"], "the join string is invalid"),
        (["192.168.1.2"], "it does not start with mel1"),
        (["--hours", "22"], "--hours is '22': write it as in 22:00-06:00"),
        (["--cores", "4"], "--cores is 4: use a share of the cores above 0 and up to 1"),
        (["--min-battery", "130"], "--min-battery is 130"),
        (["--data", "missing"], "--data is 'missing', which is no folder of this device"),
        (["--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda', 'mps'"),
    ],
)
def test_invalid_arguments_end_at_once_with_a_fix(
    arguments: list[str], message: str, home: Path
) -> None:
    result = melisma("join", *arguments)
    assert result.code == 2
    assert message in result.stderr
    assert not (home / "device" / "identity.pem").exists()


def test_options_become_settings_of_the_learner(tmp_path: Path) -> None:
    state, known = DeviceState(tmp_path), KnownOrchestrator("f", ("https://10.0.0.2:1",), "a")
    names = {option.name: None for option in join.command.params if option.name}
    options = names | {
        "allow_module": ("waves",),
        "trust_code": True,
        "memory_bytes": 1 << 30,
        "device": "cpu",
    }
    fields = join._learner_settings(state, known, options)
    settings = msgspec.convert(fields, LearnerSettings)
    assert (settings.allowed_modules, settings.trust_code) == (("waves",), True)
    assert (settings.memory_bytes, settings.compute_device) == (1 << 30, "cpu")
    assert settings.supervised


def test_without_a_string_and_a_terminal_the_code_cannot_be_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"https://127.0.0.1:1#sha256:{'0' * 64}"
    found = [axon.DiscoveredWorker(name, address) for name in ("x", "y")]
    monkeypatch.setattr(join, "discover_orchestrators", lambda: found)
    result = melisma("join")
    assert result.code == 2
    assert "asks for it in a terminal: use melisma join STRING" in result.stderr


def test_the_command_imports_no_framework_and_no_numpy() -> None:
    code = "import sys, melisma.cli.join; print({'numpy', 'torch'} & sys.modules.keys())"
    process = psutil.Popen([sys.executable, "-c", code], stdout=-1)
    assert process.communicate()[0].decode().strip() == "set()"


def test_text_of_the_orchestrator_is_escaped() -> None:
    line = report_line(reports.Registered("r\x1b[2J", "a\nb", 5.0))
    assert line == "registered for run r\\x1b[2J: task a b, 5 s a cycle"


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (reports.Measured(1234.5), "measured 1,234 samples/s"),
        (
            reports.CycleTrained(3, 1200, 4.0, 0.25),
            "cycle 3: 1,200 samples in 4.0 s, 300 samples/s, loss 0.250",
        ),
        (reports.CycleTrained(3, 0, 0.0, None), "cycle 3: 0 samples in 0.0 s"),
        (
            reports.CycleTrained(3, 10, 1.0, None, "too large"),
            "cycle 3: 10 samples in 1.0 s, 10 samples/s; not counted: too large",
        ),
        (reports.Slowed(("hot",)), "slower: hot"),
        (reports.Slowed(()), "at full speed again"),
        (reports.Ended("run ended"), "the run has ended"),
        (reports.Paused("outside"), "paused: outside"),
        (reports.Retrying("no answer from x", 0.51), "no answer from x; trying again in 0.5 s"),
        (reports.AwaitingRun("ended"), "waiting for the next run: ended"),
    ],
)
def test_reports_are_lines(report: reports.DeviceReport, line: str) -> None:
    assert report_line(report) == line
