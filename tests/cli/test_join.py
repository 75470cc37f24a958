"""`melisma join` as a process, at an orchestrator in this one."""

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from melisma import axon
from melisma.cli import join
from melisma.cli.views.join_view import report_line
from melisma.cycle import events
from melisma.live.learner import device_reports as reports
from melisma.live.learner.device_identity import DeviceState, KnownOrchestrator
from tests.cli.command_line import MELISMA, melisma
from tests.live.joining.fleet import ROOT, OpenRun
from tests.live.learner import own_stress
from tests.live.orchestrator.served_run import TASK, wait_until

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


async def test_a_second_join_on_the_same_device_ends_at_once(tmp_path: Path) -> None:
    async with (
        OpenRun(tmp_path).listening() as run,
        joining(run.string, "--name", "a", *MODULE) as first,
    ):
        await read_until(first, "joined")
        async with joining(run.string, "--name", "a", *MODULE) as second:
            output, errors = await second.communicate()
        assert second.returncode not in (None, 0)
        assert f"melisma join already runs here, process {first.pid}: " in errors.decode()
        assert output == b""
        assert first.returncode is None
        assert not run.run.of(events.IdentitiesShared)


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
        "join.pid.lock": 0o600,
        "learner.log": 0o600,
        "orchestrators.json": 0o600,
        "orchestrators.json.lock": 0o600,
        "spool": 0o700,
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


async def test_a_device_that_retries_joins_the_run_of_an_orchestrator_that_was_restarted(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        async with OpenRun(tmp_path).listening() as run:
            port = axon.Address.parse(run.address).port
            process = await stack.enter_async_context(joining(run.string, "--name", "a", *MODULE))
            await read_until(process, "joined")
        shutil.rmtree(tmp_path / "run")
        async with OpenRun(tmp_path).listening(port=port) as run:
            await read_until(process, "the orchestrator has begun another run: joining it")
            await read_until(process, "joined")
            assert len(run.run.of(events.LearnersJoined)) == 1


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
    assert "melisma join --stay waits until the orchestrator runs" in errors.decode()
    async with joining(run.string, "--stay") as process:
        await read_until(process, "waiting for the next run")
        process.terminate()
        await process.communicate()


async def test_code_that_the_owner_has_not_allowed_ends_with_the_option(tmp_path: Path) -> None:
    async with (
        OpenRun(tmp_path).listening() as run,
        joining(run.string, "--name", "a") as process,
    ):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert "--allow-module tests.live.tiny_task" in errors.decode()


async def test_an_allowed_module_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = msgspec.structs.replace(TASK, model="own_linear:Own")
    arguments = ("--name", "a", "--allow-module", "own_linear")
    async with OpenRun(tmp_path, task).listening() as run:
        async with joining(run.string, *arguments) as process:
            _, errors = await process.communicate()
        assert process.returncode == 1
        places = "the folder in which melisma join was started, installed packages"
        assert f"No module named 'own_linear'; searched: {places}\n" in errors.decode()
        source = "from tests.live.tiny_task import Linear\n\n\nclass Own(Linear):\n    pass\n"
        (tmp_path / "own_linear.py").write_text(source)
        async with joining(run.string, *arguments) as process:
            await read_until(process, "joined")
            process.terminate()
            await process.communicate()


async def test_a_device_is_in_the_states_of_its_owners_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed is measured beside the stressor of the first state, before the run begins."""
    monkeypatch.setenv("STRESS_LOG", str(tmp_path / "log"))
    states, stress = tmp_path / "states.toml", own_stress.__name__
    states.write_text(f'[[state]]\nprobability = 1.0\nstress = "{stress}:count_rounds"\n')
    arguments = ("--name", "a", "--states", str(states), *MODULE)
    async with OpenRun(tmp_path / "runs").listening() as run:
        async with joining(run.string, *arguments) as process:
            _, errors = await process.communicate()
        assert process.returncode == 1
        assert f"--allow-module {stress}" in errors.decode()
        async with joining(run.string, *arguments, "--allow-module", stress) as process:
            await read_until(process, "joined")
            process.terminate()
            await process.communicate()
    assert (tmp_path / "log").stat().st_size > 0


@pytest.mark.parametrize("has_data", [False, True])
async def test_missing_or_unfit_data_is_one_final_error_that_the_orchestrator_learns(
    tmp_path: Path, has_data: bool
) -> None:
    np.save(tmp_path / "samples.npy", np.zeros((10, 5), np.float32))
    np.save(tmp_path / "labels.npy", np.arange(10))
    data = ("--data", str(tmp_path)) if has_data else ()
    task = msgspec.structs.replace(TASK, mode="federated")
    async with OpenRun(tmp_path / "runs", task).listening() as run:
        async with joining(run.string, "--name", "a", *MODULE, *data) as process:
            output, errors = await process.communicate()
        (left,) = run.run.of(events.LearnersLeft)
    assert process.returncode == 1
    assert "starting it again" not in output.decode()
    advice = "use melisma join with --data FOLDER or --data MODULE:FUNCTION"
    shapes = "samples are float32[5], labels int64 from 0 to 9, the model weight float32[4]"
    assert (shapes if has_data else advice) in errors.decode()
    private = "a: DataError on its local data; the log of the device says more"
    assert left.reason == private if has_data else left.reason.endswith(advice)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mel1abc"], "the join string is invalid"),
        (["192.168.1.2"], "it does not start with mel1"),
        (["--hours", "22"], "--hours is '22': write it as in 22:00-06:00"),
        (["--cores", "4"], "--cores is 4: use a share of the cores above 0 and up to 1"),
        (["--min-battery", "130"], "--min-battery is 130"),
        (["--data", "missing"], "--data is 'missing', which is no folder of this device"),
        (["--states", "missing"], "--states is 'missing', which is no file of this device"),
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


def test_a_new_identity_needs_a_join_string(home: Path) -> None:
    old = DeviceState().create_identity()
    result = melisma("join", "--new-identity")
    assert result.code == 2
    assert "melisma join STRING --new-identity" in result.stderr
    assert DeviceState().create_identity() == old


def test_options_become_settings_of_the_learner(tmp_path: Path) -> None:
    state, known = DeviceState(tmp_path), KnownOrchestrator("f", ("https://10.0.0.2:1",), "a")
    names = {option.name: None for option in join.command.params if option.name}
    options = names | {
        "allow_module": ("waves",),
        "trust_code": True,
        "memory_bytes": 1 << 30,
        "device": "cpu",
    }
    settings = join._learner_settings(state, known, options, {"local_data": "waves:load"})
    assert settings.local_data == "waves:load"
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
    assert "typed in a terminal only: use melisma join STRING" in result.stderr


def test_the_command_imports_no_framework_and_no_numpy() -> None:
    code = "import sys, melisma.cli.join; print({'numpy', 'torch'} & sys.modules.keys())"
    process = psutil.Popen([sys.executable, "-c", code], stdout=-1)
    assert process.communicate()[0].decode().strip() == "set()"


def test_text_of_the_orchestrator_is_escaped() -> None:
    line = report_line(reports.Registered("r\x1b[2J", "a\nb", "for 60 s"))
    assert line == "registered for run r\\x1b[2J: task a b, for 60 s"


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (reports.Measured(1234.5), "measured 1,234 samples/s"),
        (reports.Measured(0.31), "measured 0.31 samples/s"),
        (
            reports.Measured(9.9, "as no shard fits into a cycle"),
            "measured again, as no shard fits into a cycle: 9.9 samples/s",
        ),
        (reports.Joined(begun=False), "joined; waiting for the run to begin"),
        (reports.Joined(), "joined; waiting for work"),
        (
            reports.CycleTrained(3, 1200, 4.0, 0.25),
            "cycle 3: 1,200 samples in 4.0 s, 300 samples/s, loss 0.25",
        ),
        (
            reports.CycleTrained(3, 1200, 4.0, 4.083e-05),
            "cycle 3: 1,200 samples in 4.0 s, 300 samples/s, loss 4.083e-05",
        ),
        (reports.CycleTrained(3, 0, 0.0, None), "cycle 3: 0 samples in 0.0 s"),
        (
            reports.CycleTrained(3, 10, 1.0, None, "too large"),
            "cycle 3: 10 samples in 1.0 s, 10 samples/s; not counted: too large",
        ),
        (
            reports.Reached("https://a:7788", "sha256:0123", name="desk"),
            "reached desk at https://a:7788; the code will prove its certificate sha256:0123",
        ),
        (reports.Slowed(("hot",)), "slower: hot"),
        (reports.Slowed(()), "at full speed again"),
        (reports.Ended("run ended"), "the run has ended"),
        (reports.Ended("run ended", "ended early"), "ended early"),
        (reports.Paused("outside"), "paused: outside"),
        (reports.Retrying("no answer from x", 0.51), "no answer from x; trying again in 0.5 s"),
        (reports.AwaitingRun("ended"), "waiting for the next run: ended"),
    ],
)
def test_reports_are_lines(report: reports.DeviceReport, line: str) -> None:
    assert report_line(report) == line
