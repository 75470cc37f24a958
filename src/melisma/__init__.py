"""Melisma trains one model on the devices you have, by the deadline you set.

::

    import melisma

    report = melisma.train("task.toml", "fleet.toml")
    print(report.accuracy, report.model)
    report.plot()

The layout::

    __main__.py  the entry point of the `melisma` command
    disclosure.py  what learners disclose before their updates
    errors.py    every exception
    atomic.py    file writes that survive a crash
    backports.py  names of newer Python versions, for Python 3.10
    prices.py    the price of a shard that a learner sets
    private_files.py  folders and files for their owner alone
    text.py      text from other machines, made safe to print, and numbers
    user_code.py  imports of the user's models, data and schemes by `package.module:name`
    axon/        remote calls over HTTP; can be used alone
    fleet/       devices: profiles, links, states, estimates, emulation, the two TOML files
    allocation/  how much each learner trains: problem -> plan, one scheme a file
    learning/    data, shards, models, trainers, benchmark, aggregation, metrics
    cycle/       the global update cycle as a state machine: events in, commands out
    service/     several tasks that share a fleet, as a state machine: events in, commands out
    runs/        the record of a run: trace, folder, progress, report, pictures
    peer/        training without an orchestrator, as state machines: AET-SGD and its baselines
    live/        the wall clock: orchestrator, learners and peers as processes
    simulation/  the virtual clock: faults, comparisons, up to a million learners
    testing/     helpers to test schemes and trainers
    cli/         the `melisma` command, one file a subcommand; the only part that prints

Importing this package imports none of its parts; each is imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "CycleResult",
    "Fleet",
    "Report",
    "SimulationOptions",
    "Task",
    "__version__",
    "allocation",
    "axon",
    "compare",
    "errors",
    "evaluate",
    "fleet",
    "orchestrate",
    "peer",
    "plan",
    "resume",
    "resume_peers",
    "run_peers",
    "runs",
    "simulate",
    "simulate_peers",
    "simulation",
    "size",
    "testing",
    "train",
]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from melisma import allocation, axon, errors, fleet, peer, runs, simulation, testing
    from melisma.fleet.fleet import Fleet
    from melisma.fleet.task import Task
    from melisma.learning.evaluation import evaluate
    from melisma.live.orchestration import orchestrate
    from melisma.live.peer.local_group import resume_peers, run_peers
    from melisma.live.resuming import resume
    from melisma.live.training import train
    from melisma.runs.cycle_result import CycleResult
    from melisma.runs.report import Report
    from melisma.simulation.comparison.scheme_runs import compare
    from melisma.simulation.peers.peer_simulation import simulate_peers
    from melisma.simulation.plans.plan_request import plan
    from melisma.simulation.simulation import SimulationOptions, simulate
    from melisma.simulation.sizing.sizing import size
else:
    _FROM = {
        "CycleResult": "runs.cycle_result",
        "Fleet": "fleet.fleet",
        "Report": "runs.report",
        "SimulationOptions": "simulation.simulation",
        "Task": "fleet.task",
        "evaluate": "learning.evaluation",
        "compare": "simulation.comparison.scheme_runs",
        "orchestrate": "live.orchestration",
        "plan": "simulation.plans.plan_request",
        "resume": "live.resuming",
        "resume_peers": "live.peer.local_group",
        "run_peers": "live.peer.local_group",
        "simulate": "simulation.simulation",
        "simulate_peers": "simulation.peers.peer_simulation",
        "size": "simulation.sizing.sizing",
        "train": "live.training",
    }

    def __getattr__(name):
        if name in _FROM:
            return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
        if name in __all__:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
