"""The cost histories of all simulated learners in one array."""

from dataclasses import fields

import numpy as np

from melisma.cycle.events import PARTS
from melisma.cycle.learner import MIN_SHARD_FRACTION, UNKNOWN_BIAS, CostHistory
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.fleet.estimates import Estimate
from melisma.simulation.learners.cycle_timeline import CycleTimeline, Workload

HISTORY_FIELDS = tuple(field.name for field in fields(CostHistory))
ALL = slice(None)


class CostHistories:
    """A `CostHistory` for each learner; `measured` marks learners that have run a benchmark."""

    def __init__(self, learners: int) -> None:
        self.measured = np.zeros(learners, np.bool_)
        self._columns = np.zeros((len(HISTORY_FIELDS), len(PARTS), learners))
        self.clear(np.arange(learners))

    def clear(self, learners: Ints) -> None:
        """Forget what these learners have measured."""
        self.measured[learners] = False
        self._columns[:, :2, learners], self._columns[:, 2, learners] = 0.0, 1.0
        bias = self._columns[HISTORY_FIELDS.index("train_bias")]
        for column, part in zip(bias, parts_of(UNKNOWN_BIAS), strict=True):
            column[learners] = part

    def read(self, learners: Ints) -> CostHistory:
        """Return the history of these learners."""
        # `take` keeps each column in one piece; indexing would interleave them in memory.
        columns = np.take(self._columns, learners, axis=-1)
        return CostHistory(*(Estimate(*parts) for parts in columns))

    def write(self, learners: Ints, history: CostHistory, rows: Bools | slice = ALL) -> None:
        """Replace the history of these learners by the selected rows of another one."""
        for index, name in enumerate(HISTORY_FIELDS):
            parts = parts_of(getattr(history, name))
            for column, part in zip(self._columns[index], parts, strict=True):
                column[learners] = part[rows]

    def record_benchmark(self, learners: Ints, history: CostHistory) -> None:
        """Replace the history of learners that have run a benchmark."""
        self.write(learners, history)
        self.measured[learners] = True

    def record_cycle(self, learners: Ints, before_upload: CostHistory, done: CycleTimeline) -> None:
        """Refresh the history of measured learners after a cycle."""
        after_upload = before_upload.after(up_s=np.where(done.visits > 0, done.up_s, np.nan))
        known = self.measured[learners]
        self.write(learners[known], after_upload, known)


def parts_of(estimate: Estimate) -> tuple[Floats, Floats, Floats]:
    """Return mean, spread and count of an estimate, in the order of `PARTS`."""
    return estimate.mean, estimate.spread, estimate.count


def history_before_upload(
    history: CostHistory, wait_s: Floats, work: Workload, done: CycleTimeline, shard_samples: int
) -> CostHistory:
    """Return the history after a cycle, but for the upload, which follows the report of costs."""
    trained, fetched = done.visits > 0, (work.missing > 0) & (done.fetched > 0)
    shards = np.maximum(done.visits, 1) / shard_samples
    fetched_shards = np.maximum(done.fetched, MIN_SHARD_FRACTION)
    return history.after(
        down_s=done.down_s,
        ship_s=np.where(fetched, done.link_s / fetched_shards, np.nan),
        train_s=np.where(trained, done.train_s / shards, np.nan),
        rest_s=np.where(trained, wait_s + done.setup_s, np.nan),
    )
