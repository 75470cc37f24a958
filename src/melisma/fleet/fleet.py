"""A fleet as arrays over its learners, and what a task costs each of them.

Seconds follow from the description: a shard in `train_s`, or samples by a rate, or operations by
the clock or by a share of a core. Over states, costs are expectations with the spread between the
states (Eq. 4.1 of Mays' thesis is linear in them).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.estimates import Estimate, Estimates, Floats
from melisma.fleet.task import Task


@dataclass(frozen=True, eq=False)
class Fleet:
    """What is known of each learner; NaN where a speed is said in another way.

    `states`, `compute_left` and `bandwidth_left` are learners by states: how likely each state is,
    and what share of compute and bandwidth it leaves.
    """

    names: tuple[str, ...]
    shard_s: Floats
    sample_s: Floats
    ops_per_s: Floats
    clock_hz: Floats
    bandwidth_bps: Floats
    latency_s: Floats
    price: Floats
    base_s: Floats
    threshold: NDArray[np.int64]
    states: Floats
    compute_left: Floats
    bandwidth_left: Floats
    budget: float
    seed: int

    @property
    def learners(self) -> int:
        """How many there are."""
        return len(self.names)

    def train_s(self, task: Task) -> Floats:
        """Seconds to train one shard once, undisturbed."""
        by_sample = self.sample_seconds(task) * task.shard_samples
        return np.where(np.isnan(self.shard_s), by_sample, self.shard_s)

    def sample_seconds(self, task: Task) -> Floats:
        """Seconds to train one sample once, undisturbed."""
        by_ops = np.where(np.isnan(self.sample_s), task.sample_ops / self.ops_per_s, self.sample_s)
        return np.where(np.isnan(self.shard_s), by_ops, self.shard_s / task.shard_samples)

    def ship_s(self, task: Task) -> Floats:
        """Seconds to fetch one shard, undisturbed; none in federated learning."""
        shard_bits = 8 * task.shard_bytes if task.mode == "parallelized" else 0
        return shard_bits / self.bandwidth_bps

    def fixed_s(self, task: Task) -> Floats:
        """Seconds for the model down and the update up, undisturbed."""
        return 2 * (8 * task.model_bytes / self.bandwidth_bps + self.latency_s)

    def in_state(self, task: Task, state: NDArray[np.int64]) -> dict[str, Floats]:
        """The three costs with each learner in the state of that number."""
        at = np.arange(self.learners), state
        compute, bandwidth = self.compute_left[at], self.bandwidth_left[at]
        return {
            "train_s": self.train_s(task) / compute,
            "ship_s": self.ship_s(task) / bandwidth,
            "fixed_s": self.fixed_s(task) / bandwidth,
        }

    def estimates(self, task: Task) -> Estimates:
        """The three costs over the states: their mean and spread."""
        return Estimates(
            self._over_states(self.train_s(task), self.compute_left),
            self._over_states(self.ship_s(task), self.bandwidth_left),
            self._over_states(self.fixed_s(task), self.bandwidth_left),
        )

    def drawn_states(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """A state for each learner, by its own chances."""
        passed = np.cumsum(self.states, axis=1)[:, :-1] <= rng.random((self.learners, 1))
        drawn: NDArray[np.int64] = passed.sum(axis=1, dtype=np.int64)
        return drawn

    def _over_states(self, seconds: Floats, left: Floats) -> Estimate:
        slower = 1 / left
        mean = (self.states * slower).sum(axis=1)
        variance = (self.states * (slower - mean[:, None]) ** 2).sum(axis=1)
        return Estimate(seconds * mean, seconds * np.sqrt(variance))
