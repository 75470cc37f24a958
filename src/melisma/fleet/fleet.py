"""A fleet as arrays over its learners, and the costs of a task on each of them.

Training time follows from `train_s` (a shard), a rate (samples), or operations per second (from a
clock or a share of a core). An operating state divides training by its share of compute and
transfers by its share of bandwidth; latency does not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from inspect import Signature, signature
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from melisma.disclosure import Disclosure
from melisma.errors import SettingError
from melisma.fleet.arguments import describe, to_plain
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.availability import Availability, Changes
from melisma.fleet.files.toml_file import convert
from melisma.fleet.observed_states import ProbabilitySource
from melisma.fleet.shared_link import SharedLink
from melisma.fleet.states import StateCosts, choose_states, cycle_states
from melisma.fleet.task import Task
from melisma.fleet.variation import BandwidthTrace, Noise, Variation


@dataclass(frozen=True, eq=False)
class Fleet:
    """The learners of a fleet; a speed that is given in another unit is NaN.

    `state_probability`, `state_compute` and `state_bandwidth` are learners by states: the
    probability of each state, and the share of compute and bandwidth that is left in it.
    `state_stress` is the index of its stressor in `stressors`, -1 without one; live devices run it,
    and then ignore the shares. `state_probabilities` says whether learners know the probabilities.
    `sample_j` and `byte_j` are joules for a sample trained once and for a byte sent or received.
    `trace_ids` is the index of each learner's trace in `traces`, -1 without one; its rates are
    then the means of the trace. Model and shards use the downlink, updates the uplink.
    `discloses` is the most that each learner discloses before its update. `groups` maps the name of
    each table of the file to its learners. `own_samples` is the number of samples on each device in
    federated learning, NaN where the data is divided evenly. `orchestrator` is the link of the
    orchestrator, which all of them share; the rates above are those of their own links.
    Fleets are made by `read_fleet`, `from_profiles` and `from_tables`.
    """

    names: tuple[str, ...]
    shard_s: Floats
    sample_s: Floats
    ops_per_s: Floats
    clock_hz: Floats
    downlink_bps: Floats
    uplink_bps: Floats
    latency_s: Floats
    price: Floats
    base_s: Floats
    threshold: Ints
    state_probability: Floats
    state_compute: Floats
    state_bandwidth: Floats
    state_stress: Ints
    stressors: tuple[str, ...]
    state_probabilities: ProbabilitySource
    sample_j: Floats
    byte_j: Floats
    availability: Availability
    budget: float
    seed: int
    core_ops_per_s: float
    discloses: tuple[Disclosure, ...]
    noise: Noise
    trace_ids: Ints
    traces: tuple[BandwidthTrace, ...]
    groups: Mapping[str, range]
    own_samples: Floats
    orchestrator: SharedLink

    __signature__: ClassVar[Signature]

    def __new__(cls, *args: Any, **columns: Any) -> "Fleet":
        """Raise `SettingError` unless all fields are given, as they are by the three makers."""
        names = [field.name for field in fields(cls)]
        if {*names[: len(args)], *columns} != set(names) or len(args) > len(names):
            raise SettingError(
                "Fleet: its fields are arrays over all learners; use "
                'Fleet.from_profiles({"kitchen": "raspberry-pi-4"}), Fleet.from_tables(...) with '
                "the tables of a FLEET.toml, or melisma.fleet.read_fleet(path)"
            )
        return super().__new__(cls)

    @classmethod
    def from_profiles(cls, profiles: Mapping[str, str], seed: int = 1) -> "Fleet":
        """Return a fleet with a learner for each name, of the profile that it is mapped to."""
        expected = 'expected names with profiles, such as {"kitchen": "raspberry-pi-4"}'
        if not isinstance(profiles, Mapping):
            raise SettingError(f"Fleet: profiles are {describe(profiles)}; {expected}")
        if not profiles:
            raise SettingError(f"Fleet: profiles are empty; {expected}")
        learners = [{"name": name, "profile": profile} for name, profile in profiles.items()]
        return cls.from_tables(learner=learners, seed=seed)

    @classmethod
    def from_tables(cls, **tables: Any) -> "Fleet":
        """Return the fleet of these keys and tables, which are those of `[fleet]` in FLEET.toml.

        `learner` and `group` are lists of dictionaries. A `SettingError` names the key.
        """
        # Imported here, as that module uses this one.
        from melisma.fleet.files.fleet_builder import build_fleet
        from melisma.fleet.files.fleet_file import FleetTable

        return build_fleet(convert("Fleet", to_plain(tables), FleetTable, top=""))

    @property
    def learners(self) -> int:
        """The number of learners."""
        return len(self.names)

    @property
    def has_prices(self) -> bool:
        """Whether the fleet sets prices or a budget."""
        return bool(np.isfinite(self.budget) or np.any(self.price != 1.0))

    def has_same_devices(self, other: "Fleet") -> bool:
        """Return whether a fleet of the same file, but with another seed, has the same devices."""
        arrays = [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]
        return all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=True)
            for name in arrays
        )

    def train_s(self, task: Task) -> Floats:
        """Seconds to train one shard once with all compute available."""
        by_sample = self.sample_seconds(task) * task.shard_samples
        return np.where(np.isnan(self.shard_s), by_sample, self.shard_s)

    def sample_seconds(self, task: Task) -> Floats:
        """Seconds to train one sample once with all compute available."""
        sample_s = self.specified_sample_s(task)
        by_ops = np.isnan(sample_s)
        # A task may lack sample_ops: read it only if a speed is given in operations.
        ops = task.sample_ops if by_ops.any() else 0.0
        return np.where(by_ops, ops / self.ops_per_s, sample_s)

    def specified_sample_s(self, task: Task) -> Floats:
        """Seconds per sample of learners whose speed is given in time; NaN for the others."""
        return np.where(np.isnan(self.shard_s), self.sample_s, self.shard_s / task.shard_samples)

    def core_shares(self, task: Task, core_sample_s: float) -> Floats:
        """Each learner as a share of one core, which trains a sample in `core_sample_s`."""
        sample_s = self.specified_sample_s(task)
        by_ops = self.ops_per_s / self.core_ops_per_s
        return np.where(np.isnan(sample_s), by_ops, core_sample_s / sample_s)

    def ship_s(self, task: Task) -> Floats:
        """Seconds to fetch one shard at full bandwidth, as `shard_transfer_s`."""
        return shard_transfer_s(task, self.shared_rates_bps[0], self.latency_s)

    def fixed_s(self, task: Task) -> Floats:
        """Seconds to fetch the model and upload the update at full bandwidth."""
        down_bps, up_bps = self.shared_rates_bps
        return transfer_s(task.model_bytes, down_bps, self.latency_s) + transfer_s(
            task.model_bytes, up_bps, self.latency_s
        )

    @property
    def shared_rates_bps(self) -> tuple[Floats, Floats]:
        """Downlink and uplink of each learner while all of them use the orchestrator's link."""
        down_bps, up_bps = self.orchestrator.levels_bps(self.downlink_bps, self.uplink_bps)
        return np.minimum(self.downlink_bps, down_bps), np.minimum(self.uplink_bps, up_bps)

    def state_costs(self, task: Task) -> StateCosts:
        """Return the three costs in each state, with the probability of the state."""
        latency_s = self.latency_s[:, None]
        levels_bps = self.orchestrator.levels_bps(self.downlink_bps, self.uplink_bps)
        down_bps, up_bps = (
            np.minimum(bps[:, None] * self.state_bandwidth, level_bps)
            for bps, level_bps in zip((self.downlink_bps, self.uplink_bps), levels_bps, strict=True)
        )
        train_s = self.train_s(task)[:, None] / self.state_compute
        ship_s = shard_transfer_s(task, down_bps, latency_s)
        fixed_s = transfer_s(task.model_bytes, down_bps, latency_s)
        fixed_s = fixed_s + transfer_s(task.model_bytes, up_bps, latency_s)
        shard_s = ship_s + (task.passes or 1) * train_s
        typical_s = fixed_s + task.shards / self.learners * shard_s
        return StateCosts(self.state_probability, typical_s, train_s, ship_s, fixed_s)

    def local_shards(self, task: Task) -> Ints:
        """Return the shards on each device before the first cycle: 0 in parallelized learning.

        In federated learning they hold `local_samples`; the last one of a device may be short.
        """
        shards: Ints = -(-self.local_samples(task) // task.shard_samples)
        return shards

    def local_samples(self, task: Task) -> Ints:
        """Return the samples on each device before the first cycle: 0 in parallelized learning.

        In federated learning a device has its `own_samples`, and the others share the rest evenly.
        If no device has own samples, the shards are divided evenly, and the first devices get one
        more if there is a remainder. `partition` selects which samples these are, not how many.
        """
        given = ~np.isnan(self.own_samples)
        if task.mode == "parallelized":
            if given.any():
                raise SettingError(
                    f"own_samples of {self.names[int(np.argmax(given))]} is for mode = "
                    f'"federated" only, and task {task.name} is parallelized; remove one of them'
                )
            return np.zeros(self.learners, dtype=np.int64)
        if not given.any():
            sizes = self._even_shards(task) * task.shard_samples
            sizes[-1] -= max(0, int(sizes.sum()) - task.samples)
            return sizes
        return self._unequal_samples(task, given)

    def _unequal_samples(self, task: Task, given: NDArray[np.bool_]) -> Ints:
        """Return the own samples of devices, and even parts of the rest for the others."""
        sizes = np.where(given, self.own_samples, 0.0).astype(np.int64)
        rest, others = task.samples - int(sizes.sum()), np.flatnonzero(~given)
        needed = others.size * max(0, (task.min_shards - 1) * task.shard_samples + 1)
        if rest < needed:
            raise SettingError(
                f"task {task.name}: own_samples sum to {sizes.sum():,}, which leaves "
                f"{max(rest, 0):,} of {task.samples:,} samples to {others.size} other devices; "
                f"expected at least {needed:,}: use fewer or smaller own_samples, or more samples"
            )
        if others.size:
            per_device, more = divmod(rest, others.size)
            sizes[others] = per_device + (np.arange(others.size) < more)
        shards = -(-sizes // task.shard_samples)
        if (few := np.flatnonzero(shards < task.min_shards)).size:
            first = int(few[0])
            raise SettingError(
                f"task {task.name}: {self.names[first]} has {shards[first]} shards; expected at "
                f"least min_shards, {task.min_shards}: use a smaller shard_samples"
            )
        return sizes

    def _even_shards(self, task: Task) -> Ints:
        per_learner, remainder = divmod(task.shards, self.learners)
        if per_learner < task.min_shards:
            shard_samples = task.samples // (self.learners * task.min_shards)
            raise SettingError(
                f"task {task.name}: {task.shards} shards on {self.learners} devices "
                f"leave {per_learner} to some; expected at least min_shards, {task.min_shards}"
                + (f": use shard_samples <= {shard_samples}" if shard_samples else "")
            )
        return per_learner + (np.arange(self.learners) < remainder).astype(np.int64)

    def states_in_cycle(self, cycle: int) -> Ints:
        """Return the operating state of each learner in a cycle, drawn by the fleet's seed."""
        return cycle_states(cycle, self.state_probability, self.seed, np.arange(self.learners))

    def draw_states(self, rng: np.random.Generator) -> Ints:
        """Draw a state for each learner by its probabilities, independent of any cycle."""
        return choose_states(self.state_probability, rng.random(self.learners))

    @property
    def variation(self) -> Variation:
        """How speeds and links vary during a run, by the fleet's seed."""
        learners = np.arange(self.learners)
        return Variation(self.seed, learners, self.noise, self.trace_ids, self.traces)

    @property
    def present_at_start(self) -> NDArray[np.bool_]:
        """A mask of the learners that are present and awake when a run starts."""
        return self.availability.present_at_start

    def changes(self, until_s: float) -> Changes:
        """Return when learners join, leave, fall asleep and wake, from the start to `until_s`."""
        return self.availability.changes(until_s, self.seed)


# `__new__` hides the fields.
_, *_FIELDS = signature(Fleet.__init__).parameters.values()
Fleet.__signature__ = Signature(_FIELDS)


def transfer_s(size_bytes: float, bandwidth_bps: Floats, latency_s: Floats) -> Floats:
    """Return the seconds of one transfer: the latency, and the bits over the bandwidth."""
    return latency_s + 8 * size_bytes / bandwidth_bps


def shard_transfer_s(task: Task, downlink_bps: Floats, latency_s: Floats) -> Floats:
    """Return the seconds to fetch one shard, which is one transfer; 0 in federated learning."""
    if task.mode == "federated":
        return np.zeros(np.shape(downlink_bps))
    return transfer_s(task.shard_bytes, downlink_bps, latency_s)
