"""Memory of a simulation, measured in processes of its own."""

import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

PAGE_FAULTS = """
import resource
import numpy as np
from melisma.simulation.compute.memory import keep_freed_memory
{}
for _ in range(20):
    np.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
RETURNED = """
from pathlib import Path
import numpy as np
from melisma.simulation.compute.memory import keep_freed_memory, return_freed_memory

def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

keep_freed_memory()
arrays = [np.ones(1_000_000) for _ in range(20)]
# Memory that is free at the end of the heap only would be returned in any case.
del arrays[:-1]
kept = resident_pages()
return_freed_memory()
print(kept - resident_pages())
"""
PEAK = """
import json
from pathlib import Path
from melisma.simulation.compute.memory import keep_freed_memory, memory_needed_bytes
from melisma.simulation.simulation import prepare, run

def peak_bytes():
    # Of this process alone: `getrusage` includes the parent's memory at the fork.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(dict(line.split(":") for line in lines)["VmHWM"].split()[0])

keep_freed_memory()
# Import all modules first: they need memory, too.
run(prepare("task.toml", "small.toml"))
before = peak_bytes()
prepared = prepare("task.toml", "fleet.toml")
report = run(prepared)
needed = memory_needed_bytes(prepared.scenario.task, prepared.scenario.fleet)
print(json.dumps([report.outcome, peak_bytes() - before, needed]))
"""
TASK = """
[task]
name = "memory"
model = "twonn"
data = "mnist"
scheme = "dab"
mode = "{mode}"
passes = 1
deadline_s = 15.0
cycles = {cycles}
shard_samples = 10
max_shards = 10
sizes = {{ samples = {samples} }}
simulation = {{ work = "timing" }}
"""
FLEET = """
[[fleet.group]]
count = {learners}
samples_per_s = 20.0
bandwidth_bps = 20e6
latency_s = 0.01
spread = {{ compute = 0.3, bandwidth_bps = 0.5 }}
"""


def run_python(code: str, folder: Path | None = None, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def large_pages() -> bool:
    """Return whether the kernel uses huge pages by default, which makes page faults few."""
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return path.exists() and "[always]" in path.read_text()


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or large_pages(), reason="pages of 4 kB, and glibc's mallopt"
)
def test_freed_memory_that_is_kept_causes_no_page_faults() -> None:
    # Twenty arrays of 80 MB are 390,625 pages of 4 kB; the first array is 19,532 of them.
    kept, fetched = (
        int(run_python(PAGE_FAULTS.format(first), NUMPY_MADVISE_HUGEPAGE="0"))
        for first in ("keep_freed_memory()", "pass")
    )
    assert kept < 0.3 * fetched


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc_trim")
def test_freed_memory_between_arrays_can_be_returned() -> None:
    pages = 19 * 8_000_000 // resource.getpagesize()
    assert int(run_python(RETURNED)) > 0.9 * pages


@pytest.mark.skipif(sys.platform != "linux", reason="it has /proc")
@pytest.mark.parametrize("mode", ["parallelized", "federated"])
@pytest.mark.parametrize(
    ("learners", "cycles"), [(20_000, 4), pytest.param(60_000, 10, marks=pytest.mark.slow)]
)
def test_a_run_needs_no_more_memory_than_estimated(
    mode: str, learners: int, cycles: int, tmp_path: Path
) -> None:
    task = TASK.format(mode=mode, cycles=cycles, samples=50 * learners)
    (tmp_path / "task.toml").write_text(task)
    (tmp_path / "fleet.toml").write_text(FLEET.format(learners=learners))
    (tmp_path / "small.toml").write_text(FLEET.format(learners=100))
    outcome, peak, needed = json.loads(run_python(PEAK, tmp_path))
    assert outcome == "finished"
    assert 0.2 * needed < peak <= needed
