"""`python -m benchmarks NAME`: run one benchmark, print its tables and save its figures."""

import argparse
import importlib
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks.harness import environments

MODULES = {
    "rpc": "axon.rpc",
    "http_stack": "axon.http_stack",
    "staleness": "allocation.staleness",
    "feel": "allocation.feel",
    "med": "allocation.med",
    "live": "live.live",
    "simulation": "simulation.simulation",
    "decentralised": "peer.decentralised",
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run one benchmark, print its tables, write its JSON file."""
    # Exit through the `with` blocks on SIGTERM too, so that no server is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = _options()
    if options.what == "http_stack":
        _continue_in(environments.python(environments.RPC))
    benchmark = importlib.import_module(f"benchmarks.{MODULES[options.what]}")
    figures = benchmark.run(quick=options.quick, only=tuple(options.only))
    path = options.json or RESULTS / f"{options.what}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    print(f"\nwritten to {path}")


def _continue_in(python: str) -> None:
    """Restart this command in the interpreter that has the HTTP stacks installed."""
    if sys.prefix != str(Path(python).parents[1]):
        os.execv(python, [python, "-m", "benchmarks", *sys.argv[1:]])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        default="rpc",
        choices=tuple(MODULES),
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the figures")
    parser.add_argument("--quick", action="store_true", help="one round, for a first look")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="run only these modules of competitors/ or axon/stacks/, or these parts",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
