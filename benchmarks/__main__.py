"""`python -m benchmarks NAME`: run one benchmark, print its tables and save its results."""

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
    "med_gaps": "allocation.med_gaps",
    "live": "live.live",
    "guard": "live.guard",
    "durability": "live.durability",
    "simulation": "simulation.simulation",
    "service": "service.service",
    "non_iid": "learning.non_iid",
    "greedy": "learning.greedy",
    "repeatability": "learning.repeatability",
    "decentralised": "peer.decentralised",
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run one benchmark, print its tables and write its JSON file."""
    # Exit through the `with` blocks on SIGTERM too, so that no server is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = _options()
    if options.benchmark == "http_stack":
        _restart_in(environments.python(environments.RPC))
    module = importlib.import_module(f"benchmarks.{MODULES[options.benchmark]}")
    results = module.run(quick=options.quick, only=tuple(options.only))
    path = options.json or RESULTS / f"{options.benchmark}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    print(f"\nresults written to {path}")


def _restart_in(python: str) -> None:
    """Restart this command in the interpreter that has the HTTP stacks installed."""
    if sys.prefix != str(Path(python).parents[1]):
        os.execv(python, [python, "-m", "benchmarks", *sys.argv[1:]])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "benchmark",
        nargs="?",
        default="rpc",
        choices=tuple(MODULES),
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the results")
    parser.add_argument(
        "--quick", action="store_true", help="measure one round, for a first impression"
    )
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
