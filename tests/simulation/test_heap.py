import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from melisma.simulation.heap import keep_memory
{}
for _ in range(20):
    np.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(first: str) -> int:
    code = FAULTS.format(first)
    # Small pages: large ones would be few in any case.
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={"NUMPY_MADVISE_HUGEPAGE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc has mallopt")
def test_memory_that_is_kept_is_not_fetched_again() -> None:
    # Twenty times 80 MB are 390,625 pages of 4 kB, the first time 19,532 of them.
    assert faults("keep_memory()") < 0.3 * faults("pass")
