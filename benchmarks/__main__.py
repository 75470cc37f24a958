"""`python -m benchmarks`: the comparison of RPC systems, or what else can be measured here."""

import argparse
import importlib
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks import environments

WHAT = ("rpc", "http_stack", "staleness", "feel", "med", "live", "simulation", "decentralised")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run one comparison, print its tables, write its JSON file."""
    # A terminated run must leave its `with` blocks too, or servers would stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = _options()
    if options.what == "http_stack":
        _continue_in(environments.python(environments.PEERS))
    benchmark = importlib.import_module(f"benchmarks.{options.what}")
    figures = benchmark.run(quick=options.quick, only=tuple(options.only))
    path = options.json or RESULTS / f"{options.what}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    print(f"\nwritten to {path}")


def _continue_in(python: str) -> None:
    """Run on as the same command in the interpreter that has the HTTP stacks."""
    if sys.prefix != str(Path(python).parents[1]):
        os.execv(python, [python, "-m", "benchmarks", *sys.argv[1:]])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        default="rpc",
        choices=WHAT,
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="where the figures go")
    parser.add_argument("--quick", action="store_true", help="one round, for a first look")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="these alone: modules of benchmarks/peers or stacks, or parts of the last three",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
