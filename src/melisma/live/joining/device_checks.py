"""Checks whether this device can train for an orchestrator, and says what to mend."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import msgspec

from melisma import __version__, axon
from melisma.axon import Address
from melisma.backports import RUN_MODULE
from melisma.errors import AxonError, MelismaError, UnauthorizedError
from melisma.live.join_string import JoinString
from melisma.live.joining.clock_check import (
    describe_difference,
    find_clock_problem,
    is_synchronized,
    measure_clock_difference,
)
from melisma.live.joining.speed_probe import SpeedProbe
from melisma.live.joining.throttling import find_throttling, reports_throttling
from melisma.live.joining.use_limits import PASSIVE_THREADS, read_battery, reports_power
from melisma.live.learner.device_identity import DeviceState
from melisma.live.learner.reach import FailedAddress, ReachedOrchestrator, reach_each

Level = Literal["ok", "warn", "fail"]
OLDEST_PYTHON: Final = (3, 10)
MEMINFO: Final = Path("/proc/meminfo")
MIN_MEMORY_BYTES: Final = 300 << 20
GOOD_MEMORY_BYTES: Final = 1 << 30
MIN_DISK_BYTES: Final = 100 << 20
GOOD_DISK_BYTES: Final = 2 << 30
PROBE_TIMEOUT_S: Final = 180.0
SPEED_MODULE: Final = "melisma.live.joining.speed_probe"
REACH_TIMEOUT_S: Final = 5.0
GPU_FILES: Final = (Path("/dev/nvidia0"), Path("/dev/nvhost-gpu"))
"""Files of NVIDIA's drivers for desktops and for Jetsons."""
RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check; the text of a warning or a failure says what to mend."""

    check: str
    level: Level
    text: str


def check_python(
    version: tuple[int, int] = sys.version_info[:2], largest_int: int = sys.maxsize
) -> Finding:
    """Check version and word size of Python."""
    found = f"{version[0]}.{version[1]}"
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if version < OLDEST_PYTHON:
        return Finding("python", "fail", f"{found} is too old: install {oldest} or newer")
    if largest_int < 2**32:
        text = f"{found} is a 32-bit program: install a 64-bit operating system on this device"
        return Finding("python", "fail", text)
    return Finding("python", "ok", f"{found}, 64 bit; melisma {__version__}")


def check_packages(names: Sequence[str] = ("numpy", "safetensors", "cryptography")) -> Finding:
    """Check that the packages that every learner needs can be imported, each in a process."""
    versions = []
    for name in names:
        done = _run_python("-c", f"import {name}")
        if done.returncode:
            text = f"{name} cannot be imported ({_last_line(done)}): install melisma again"
            return Finding("packages", "fail", text)
        versions.append(f"{name} {metadata.version(name)}")
    return Finding("packages", "ok", ", ".join(versions))


def check_memory(meminfo: Path = MEMINFO, sysconf: Callable[[str], int] = os.sysconf) -> Finding:
    """Check the memory that is free for a learner; only Linux reports it."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return _check_total_memory(sysconf)
    sizes = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
    total, free = (int(sizes[key][0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    return _judge_memory(free, f"{_gigabytes(free)} of {_gigabytes(total)} free")


def _check_total_memory(sysconf: Callable[[str], int]) -> Finding:
    """Check the memory of the machine, where that which is free is not known."""
    try:
        total = sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return Finding("memory", "warn", "not known on this system: a learner needs 0.3 GB")
    return _judge_memory(
        total, f"{_gigabytes(total)} in all; this system does not report how much is free"
    )


def _judge_memory(usable_bytes: int, text: str) -> Finding:
    if usable_bytes < MIN_MEMORY_BYTES:
        return Finding("memory", "fail", f"{text}: end other programs, PyTorch needs 0.3 GB")
    if usable_bytes < GOOD_MEMORY_BYTES:
        return Finding("memory", "warn", f"{text}: enough for small models only")
    return Finding("memory", "ok", text)


def check_disk(name: str, folder: Path) -> Finding:
    """Check the free space where a folder is or would be."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{_gigabytes(free)} free in {folder}"
    if not os.access(existing, os.W_OK):
        text = f"{existing} cannot be written: set MELISMA_HOME to a folder of your own"
        return Finding(name, "fail", text)
    if free < MIN_DISK_BYTES:
        return Finding(name, "fail", f"{text}: free some space, or use --cache")
    if free < GOOD_DISK_BYTES:
        return Finding(name, "warn", f"{text}: set --cache-bytes below that, or use --cache")
    return Finding(name, "ok", text)


def check_clock(now_s: float | None = None, synchronized: bool | None = None) -> Finding:
    """Check that the clock was set, and is synchronised if that is known."""
    problem, shown = find_clock_problem(time.time() if now_s is None else now_s, synchronized)
    if problem:
        return Finding("clock", "warn", f"{shown} {problem}")
    return Finding("clock", "ok", f"{shown}; training does not depend on it")


def check_clocks(address: str, state: DeviceState, synchronized: bool | None = None) -> Finding:
    """Compare the clock with that of the orchestrator at an address with its fingerprint."""
    certificate = state.identity if state.identity.exists() else None
    ahead_s = measure_clock_difference(address, certificate)
    if ahead_s is None:
        return Finding("clocks", "ok", "the orchestrator does not report its time")
    problem = describe_difference(ahead_s, synchronized)
    if problem:
        return Finding("clocks", "warn", problem)
    return Finding("clocks", "ok", "device and orchestrator show the same time")


def check_power() -> Iterator[Finding]:
    """Report the battery and signs of throttling, or that this system reports neither."""
    if battery := read_battery():
        power = "with power" if battery.has_power else "on battery"
        yield Finding("battery", "ok", f"{battery.percent:.0f} %, {power}")
    elif not reports_power():
        yield Finding(
            "battery", "ok", "not known on this system: melisma join has no --min-battery"
        )
    reasons = find_throttling()
    yield from (Finding("throttling", "warn", f"slower: {reason}") for reason in reasons)
    if not reports_throttling():
        text = "not known on this system: a slower device is found by its speed alone"
        yield Finding("throttling", "ok", text)


def check_speed(
    run: RunPython | None = None, gpu_files: Sequence[Path] = GPU_FILES
) -> list[Finding]:
    """Measure PyTorch on the processor and on GPUs, in a process of its own."""
    probe = _measure_speed(run or _run_python)
    if isinstance(probe, Finding):
        return [probe]
    speeds = ", ".join(f"{speed:,.0f} on {name}" for name, speed in probe.samples_per_s.items())
    text = f"PyTorch {probe.torch_version}, samples/s of a small model: {speeds}"
    return [Finding("speed", "ok", text), _check_gpu(probe, gpu_files)]


def _check_gpu(probe: SpeedProbe, gpu_files: Sequence[Path]) -> Finding:
    """Report the GPU that a learner would use, and one that PyTorch does not find."""
    if gpus := [name for name in probe.samples_per_s if name != "cpu"]:
        return Finding("gpu", "ok", f"{gpus[0]}, which melisma join uses unless --device says cpu")
    if any(path.exists() for path in gpu_files):
        text = (
            f"PyTorch {probe.torch_version} cannot use the NVIDIA GPU of this device: install its "
            "driver and a PyTorch with CUDA, on a Jetson that of NVIDIA"
        )
        return Finding("gpu", "warn", text)
    return Finding("gpu", "ok", "none that PyTorch can use; the processor trains")


def _measure_speed(run: RunPython) -> SpeedProbe | Finding:
    """Return what the process has measured, or what is wrong with PyTorch."""
    try:
        done = run(*RUN_MODULE, SPEED_MODULE)
    except subprocess.TimeoutExpired:
        text = f"PyTorch was not loaded within {PROBE_TIMEOUT_S:g} s: this device is too slow"
        return Finding("speed", "fail", text)
    if done.returncode < 0:
        text = (
            f"PyTorch was ended by signal {-done.returncode}: install a build for this processor"
            + (", or free memory" if done.returncode == -9 else "")
        )
        return Finding("speed", "fail", text)
    try:
        probe = msgspec.json.decode(done.stdout, type=SpeedProbe)
    except msgspec.DecodeError:
        text = f"the measurement failed ({_last_line(done)}): install PyTorch again"
        return Finding("speed", "fail", text)
    if probe.problem:
        return Finding("speed", "warn", "no PyTorch: pip install 'melisma[torch]' to train with it")
    return probe


def check_data(source: str) -> Finding:
    """Read the data of this device as a learner would, and count its samples."""
    from melisma.fleet.task import Task
    from melisma.live.learner.local_data import read_local_data

    task = Task(name="doctor", model="twonn", data="mnist", deadline_s=1.0, mode="federated")
    try:
        shards, _ = read_local_data(source, task, 0, hold_back=False)
    except MelismaError as error:
        return Finding("data", "fail", str(error))
    samples = sum(map(len, shards))
    return Finding("data", "ok", f"{samples:,} samples, such as {shards[0].samples.shape[1:]}")


@dataclass(frozen=True)
class CheckedOrchestrator:
    """An orchestrator to check: hosts, port and fingerprint or the start of it."""

    hosts: tuple[str, ...]
    port: int
    fingerprint: str

    @classmethod
    def from_string(cls, text: str) -> "CheckedOrchestrator":
        """Return the orchestrator of a join string."""
        invitation = JoinString.parse(text)
        return cls(invitation.hosts, invitation.port, invitation.fingerprint_prefix)

    @classmethod
    def last_joined(cls, state: DeviceState) -> "CheckedOrchestrator | None":
        """Return the orchestrator that this device joined last, if there is one."""
        for known in state.orchestrators():
            addresses = [Address.parse(address) for address in known.addresses]
            hosts = tuple(address.host for address in addresses)
            return cls(hosts, addresses[0].port, known.fingerprint)
        return None


def check_orchestrator(target: CheckedOrchestrator, state: DeviceState) -> Iterator[Finding]:
    """Check each address, TLS and fingerprint there, the clock, and whether it has enrolled."""
    results = reach_each(target.hosts, target.port, target.fingerprint, REACH_TIMEOUT_S)
    reached = [result.address for result in results if isinstance(result, ReachedOrchestrator)]
    for host, result in zip(target.hosts, results, strict=True):
        if isinstance(result, FailedAddress):
            yield Finding("address", "warn" if reached else "fail", str(result))
        else:
            text = f"{host} port {target.port}: answers, TLS with the expected certificate"
            yield Finding("address", "ok", text)
    if not reached:
        text = (
            f"not reached: check that it is running, that this device is in the same network or "
            f"VPN, and that its firewall allows TCP port {target.port}"
        )
        yield Finding("orchestrator", "fail", text)
        return
    yield check_clocks(reached[0], state, is_synchronized())
    yield _check_enrolled(reached[0], state)


def _check_enrolled(address: str, state: DeviceState) -> Finding:
    if not state.identity.exists():
        return Finding("enrolled", "warn", "no identity yet: use melisma join STRING")
    try:
        with axon.connect(address, certificate=state.identity) as orchestrator:
            axon.describe(orchestrator)
    except UnauthorizedError as error:
        return Finding("enrolled", "warn", str(error))
    except AxonError as error:
        return Finding("enrolled", "fail", f"the orchestrator does not answer calls: {error}")
    return Finding("enrolled", "ok", "the orchestrator knows the identity of this device")


def _run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PROBE_TIMEOUT_S,
        check=False,
        # As the learner process has it.
        env=PASSIVE_THREADS | os.environ,
    )


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode < 0:
        return f"signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GB"
