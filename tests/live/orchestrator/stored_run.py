"""A `RunStore` that is fed with the steps of a run, without an orchestrator."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.ragged import NO_ROWS
from melisma.learning.parameters import Layout
from melisma.live.orchestrator.run_journal import RunJournal
from melisma.live.orchestrator.run_store import GuardedUpdates, RunStore
from melisma.runs.journal import Journal
from melisma.runs.trace import Step

NO_STATE: Any = None  # only the end of a cycle needs it
NONE = np.zeros(0, np.int64)


def make_store(folder: Path, arrays: Any, **parts: Any) -> RunStore:
    """Return the store of a new run without shards, with these initial parameters."""
    folder.mkdir(exist_ok=True)
    journal = RunJournal(Journal.create(folder))
    store = RunStore(journal, Layout.from_arrays(arrays), parts.pop("shards", None), **parts)
    store.save_initial(arrays)
    store.journal.flush()
    return store


def record(store: RunStore, *issued: Any, event: Any = None) -> None:
    """Record a step."""
    store.record(Step(event or events.TimeReached(at_s=0.0), [*issued]), NO_STATE)


def begin_cycle(store: RunStore, cycle: int) -> None:
    """Record that work of a cycle was dispatched."""
    dispatch = commands.Dispatch(
        reason="",
        learners=NONE,
        cycle=cycle,
        attempts=NONE,
        shards=NO_ROWS,
        passes=NONE,
        seconds_left=1.0,
        tail_s=0.0,
        predicted_s=np.zeros(0),
    )
    record(store, dispatch)


async def close(store: RunStore, command: Any, kept: Any = ()) -> GuardedUpdates:
    """Aggregate as the orchestrator does; return what the guard did."""
    result = store.aggregate(command.cycle, store.take_accepted(command, kept))
    obsolete = store.conclude(result)
    aggregated = events.Aggregated(at_s=0.0, cycle=command.cycle, seconds=0.0, model=result.version)
    record(store, event=aggregated)
    await store.journal.sync()
    await store.clean_up(obsolete)
    return result.guarded


def close_cycle(store: RunStore, command: Any, kept: Any = ()) -> GuardedUpdates:
    """Aggregate as the orchestrator does, without an event loop that runs."""
    return asyncio.run(close(store, command, kept))


def restore(store: RunStore, cycle: int) -> None:
    """Return to the model before a cycle."""
    record(store, commands.Restore(reason="", cycle=cycle))
    store.restore()
