"""Serve one stack: `python -m benchmarks.axon.stacks MODULE PORT`."""

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module(f"benchmarks.axon.stacks.{sys.argv[1]}").serve(int(sys.argv[2]))
