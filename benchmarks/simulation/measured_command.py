"""Run `melisma` and record its peak memory: `OUT.json`, then the arguments of the command."""

import json
import os
import sys
from pathlib import Path

from benchmarks.harness import usage
from melisma.cli import main as melisma


def main() -> None:
    """Run the command and write its peak resident memory to the file."""
    out, *sys.argv[1:] = sys.argv[1:]
    try:
        melisma()
    finally:
        Path(out).write_text(json.dumps({"peak_bytes": usage.peak_mb(os.getpid()) * 1e6}))


if __name__ == "__main__":
    main()
