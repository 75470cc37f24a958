"""Serve one stack: `python -m benchmarks.stacks MODULE PORT`."""

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module(f"benchmarks.stacks.{sys.argv[1]}").serve(int(sys.argv[2]))
