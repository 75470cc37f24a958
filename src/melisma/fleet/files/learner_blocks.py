"""The learners of one table of a FLEET.toml: a single device with its copies, or a drawn group."""

from dataclasses import dataclass
from math import inf, nan

import numpy as np

from melisma.disclosure import Disclosure
from melisma.fleet.array_types import Floats
from melisma.fleet.day_hours import parse_hours
from melisma.fleet.files.fleet_file import (
    AvailabilityTable,
    FleetGroup,
    FleetLearner,
    FleetTable,
    HardwareTable,
    NoiseTable,
    PriceTable,
    SamplesTable,
)
from melisma.fleet.files.profiles import PROFILES, Profile
from melisma.fleet.files.spread import draw_factors
from melisma.fleet.rng import generator
from melisma.prices import MAX_PRICE

# Operations per second of one core: a small dense model, batches of 32, on a 2.x GHz server core.
CORE_OPS_PER_S = 1e10
NO_PROFILE = Profile(nan, nan, nan, 0.0, "")
UNIT_LINK = Profile(nan, 1.0, 1.0, 0.0, "")
NO_NOISE = NoiseTable(benchmark_bias=1.0, cold_start_s=0.0)
LINKS = ("downlink_bps", "uplink_bps")
NOISE_PREFIX = "noise_"


@dataclass
class LearnerBlock:
    """Learners of one table of the file; `key` is the table's, `group` the name of them all.

    `stress` is the stressor of each state, of all learners alike.
    """

    key: str
    group: str
    names: list[str]
    bandwidth_trace: str | None
    discloses: Disclosure
    columns: dict[str, Floats]
    state_arrays: list[Floats]
    stress: tuple[str, ...]


def build_single(learner: FleetLearner, count: int, table: FleetTable) -> LearnerBlock:
    """Return a single device, or `count` copies of it, which are numbered."""
    names = [learner.name] if count == 1 else _number_names(learner.name, count)
    columns = {
        name: np.full(count, value) for name, value in _hardware_columns(learner, table).items()
    }
    columns["price"] = np.full(count, learner.price)
    columns["own_samples"] = np.full(count, float(learner.own_samples or nan))
    rows = [(s.probability, s.compute, s.bandwidth) for s in learner.state] or [(1.0, 1.0, 1.0)]
    states = [np.tile(np.array(column), (count, 1)) for column in zip(*rows, strict=True)]
    key = f"learner[{learner.name}]"
    stress = tuple(state.stress for state in learner.state) or ("",)
    trace = learner.bandwidth_trace
    return LearnerBlock(key, learner.name, names, trace, learner.discloses, columns, states, stress)


def build_group(group: FleetGroup, number: int, table: FleetTable) -> LearnerBlock:
    """Draw the learners of a group by the fleet's seed."""
    name, count = group.name or group.profile or f"group-{number + 1}", group.count
    columns = {key: np.full(count, value) for key, value in _hardware_columns(group, table).items()}

    def group_rng(purpose: str) -> np.random.Generator:
        return generator(table.seed, f"fleet group {number} {purpose}")

    def factors(key: str) -> Floats:
        relative: float = getattr(group.spread, key)
        return draw_factors(relative, group.spread.distribution, count, group_rng(key))

    speed_factors = factors("compute")
    for key in ("shard_s", "sample_s"):
        columns[key] = columns[key] / speed_factors
    for key in ("ops_per_s", "clock_hz"):
        columns[key] = columns[key] * speed_factors
    link_factors = factors("bandwidth_bps")
    for key in LINKS:
        columns[key] = columns[key] * link_factors * factors(key)
    columns["latency_s"] = columns["latency_s"] * factors("latency_s")
    columns["price"] = _draw_prices(group, group_rng("price"))
    columns["own_samples"] = _draw_own_samples(group, group_rng("own samples"))
    states = _draw_states(group, group_rng("states"))
    names = _number_names(name, count)
    key = f"group[{group.name or number}]"
    none = ("",) * states[0].shape[1]
    stress = none if group.states is None else group.states.stress or none
    trace = group.bandwidth_trace
    return LearnerBlock(key, name, names, trace, group.discloses, columns, states, stress)


def _number_names(name: str, count: int) -> list[str]:
    digits = len(str(count))
    return [f"{name}-{number:0{digits}d}" for number in range(1, count + 1)]


def _draw_prices(group: FleetGroup, rng: np.random.Generator) -> Floats:
    if not isinstance(group.price, PriceTable):
        return np.full(group.count, group.price)
    prices = rng.normal(group.price.mean, group.price.sd, group.count)
    return np.clip(prices, group.price.low, min(group.price.high, MAX_PRICE))


def _draw_own_samples(group: FleetGroup, rng: np.random.Generator) -> Floats:
    """Draw the samples on each device, at least 1; NaN if the group does not give them."""
    own = group.own_samples
    if not isinstance(own, SamplesTable):
        return np.full(group.count, float(own or nan))
    factors = draw_factors(own.spread, own.distribution, group.count, rng)
    return np.maximum(np.rint(own.mean * factors), 1.0)


def _draw_states(group: FleetGroup, rng: np.random.Generator) -> list[Floats]:
    if group.states is None:
        return [np.ones((group.count, 1))] * 3
    kinds = len(group.states.compute)
    # softmax(one-hot / heat) with a uniform one-hot (section 4.3.1 of Mays' thesis); subtracting 1
    # avoids overflow at a low heat.
    logits = np.eye(kinds)[rng.integers(0, kinds, group.count)] - 1
    weight = np.exp(logits / group.states.heat)
    shares = (group.states.compute, group.states.bandwidth)
    rows = [np.tile(np.array(share), (group.count, 1)) for share in shares]
    return [weight / weight.sum(axis=1, keepdims=True), *rows]


def _hardware_columns(device: HardwareTable, table: FleetTable) -> dict[str, float]:
    """Return the values of one device; the profile supplies those that are not given."""
    profile = PROFILES[device.profile] if device.profile else NO_PROFILE
    speed = _speed_columns(device, profile, table.core_ops_per_s or CORE_OPS_PER_S)
    # In a cell the radio channel replaces the link of the profile.
    link = NO_PROFILE if table.cell else profile
    if device.bandwidth_trace is not None:
        # Relative to the mean rates of the trace, which are applied later.
        link = UNIT_LINK
    noise = device.noise or table.noise or NO_NOISE
    return speed | {
        "downlink_bps": device.downlink_bps or device.bandwidth_bps or link.downlink_bps,
        "uplink_bps": device.uplink_bps or device.bandwidth_bps or link.uplink_bps,
        "trace_ids": -1.0,
        "latency_s": profile.latency_s if device.latency_s is None else device.latency_s,
        "base_s": device.base_s,
        "threshold": float(device.threshold),
        "sample_j": device.energy.sample_j,
        "byte_j": device.energy.byte_j,
        **availability_columns(device.availability),
        **{NOISE_PREFIX + key: getattr(noise, key) for key in NoiseTable.__struct_fields__},
    }


def _speed_columns(
    device: HardwareTable, profile: Profile, core_ops_per_s: float
) -> dict[str, float]:
    speed = {"shard_s": nan, "sample_s": nan, "ops_per_s": nan, "clock_hz": nan}
    if device.train_s is not None:
        speed["shard_s"] = device.train_s
    elif device.samples_per_s is not None:
        speed["sample_s"] = 1 / device.samples_per_s
    elif device.clock_hz is not None:
        speed["clock_hz"] = speed["ops_per_s"] = device.clock_hz
        if device.cycles_per_sample is not None:
            speed["sample_s"] = device.cycles_per_sample / device.clock_hz
    else:
        share = profile.compute if device.compute is None else device.compute
        speed["ops_per_s"] = share * core_ops_per_s
    return speed


def availability_columns(times: AvailabilityTable) -> dict[str, float]:
    """Return the availability of a device; by default it never leaves and never sleeps."""
    hours_from_s, hours_to_s = parse_hours(times.hours) if times.hours else (nan, nan)
    return {
        "hours_from_s": hours_from_s,
        "hours_to_s": hours_to_s,
        "battery_j": inf if times.battery_j is None else times.battery_j,
        "recharge_w": times.recharge_w,
        "joins_s": times.joins_s,
        "leaves_s": inf if times.leaves_s is None else times.leaves_s,
        "awake_s": inf if times.awake_s is None else times.awake_s,
        "asleep_s": 0.0 if times.asleep_s is None else times.asleep_s,
    }
