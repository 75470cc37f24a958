"""Building of a fleet from the tables of a FLEET.toml: profiles, groups, radio cell, states.

A fleet of another size keeps the proportions of the file: groups are drawn with other counts, and
copies of a single learner are numbered and have the same values.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from math import inf, nan
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from melisma.disclosure import Disclosure
from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.fleet.array_types import Floats
from melisma.fleet.availability import Availability, BatteryLimits, Changes
from melisma.fleet.channel import Channel, random_distances_m
from melisma.fleet.day_hours import DayHours, parse_clock, parse_hours
from melisma.fleet.files.apportionment import apportion
from melisma.fleet.files.bandwidth_trace import read_bandwidth_trace
from melisma.fleet.files.fleet_file import (
    AvailabilityTable,
    CellTable,
    FleetFile,
    FleetGroup,
    FleetLearner,
    FleetTable,
    HardwareTable,
    NoiseTable,
    OrchestratorTable,
    PriceTable,
    SamplesTable,
)
from melisma.fleet.files.profiles import PROFILES, Profile
from melisma.fleet.files.spread import draw_factors
from melisma.fleet.files.toml_file import read_toml
from melisma.fleet.files.trace_file import read_trace
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.shared_link import SharedLink
from melisma.fleet.variation import BandwidthTrace, Noise

# Operations per second of one core: a small dense model, batches of 32, on a 2.x GHz server core.
CORE_OPS_PER_S = 1e10
NO_PROFILE = Profile(nan, nan, nan, 0.0, "")
LINKS = ("downlink_bps", "uplink_bps")
UNIT_LINK = Profile(nan, 1.0, 1.0, 0.0, "")
NO_NOISE = NoiseTable(benchmark_bias=1.0, cold_start_s=0.0)
NOISE_PREFIX = "noise_"


class TraceError(SettingError):
    """A trace cannot be read; the message begins with the key of its path."""


@dataclass
class _LearnerBlock:
    """Learners of one table of the file; `key` is the table's, `group` the name of them all."""

    key: str
    group: str
    names: list[str]
    bandwidth_trace: str | None
    discloses: Disclosure
    columns: dict[str, Floats]
    state_arrays: list[Floats]


def read_fleet(path: str | Path, learners: int | None = None, seed: int | None = None) -> Fleet:
    """Read the fleet of a FLEET.toml; a `SettingError` names file and key.

    With `learners`, the fleet has that number, in the proportions of the file; `seed` replaces the
    seed of the file.
    """
    table = read_fleet_table(path)
    if seed is not None:
        table = replace(table, seed=seed)
    try:
        return build_fleet(table, learners)
    except TraceError as error:
        raise SettingError(f"{path}: fleet.{error}") from None
    except SettingError as error:
        raise SettingError(f"{path}: fleet: {error}") from None


def read_fleet_table(path: str | Path) -> FleetTable:
    """Read the tables of a FLEET.toml, with paths that do not depend on the current folder."""
    return _resolve_paths(read_toml(path, FleetFile).fleet, Path(path).parent)


def scale_fleet(
    fleet: Fleet | str | Path, learners: int | None = None, seed: int | None = None
) -> Fleet:
    """Return a fleet, or that of a file, with another number of learners or seed, if given.

    Only a fleet of a file can have another number: it is scaled in its proportions.
    """
    if isinstance(fleet, str | Path):
        return read_fleet(fleet, learners, seed)
    if not isinstance(fleet, Fleet):
        raise SettingError(
            f"fleet is {describe(fleet)}; expected a melisma.Fleet or the path of a FLEET.toml"
        )
    if learners not in (None, fleet.learners):
        raise SettingError(
            f"learners = {learners}, but this fleet has {fleet.learners} learners; only a fleet "
            "that is read from a file can be scaled"
        )
    return fleet if seed is None else dataclasses.replace(fleet, seed=seed)


def _resolve_paths(table: FleetTable, folder: Path) -> FleetTable:
    """Return the table with the paths of its traces relative to a folder."""

    def resolve(name: str | None) -> str | None:
        return None if name is None else str(folder / name)

    return replace(
        table,
        trace=resolve(table.trace),
        learner=tuple(
            replace(learner, bandwidth_trace=resolve(learner.bandwidth_trace))
            for learner in table.learner
        ),
        group=tuple(
            replace(group, bandwidth_trace=resolve(group.bandwidth_trace)) for group in table.group
        ),
    )


def build_fleet(table: FleetTable, learners: int | None = None) -> Fleet:
    """Return the learners of the file, single ones first, or `learners` in its proportions."""
    parts = _build_blocks(table, learners)
    names = _unique_names(parts)
    traces = _apply_traces(parts)
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    _set_radio_rates(columns, names, table)
    states = [np.concatenate(rows) for rows in zip(*_pad_states(parts), strict=True)]
    threshold, trace_ids = (columns.pop(key).astype(np.int64) for key in ("threshold", "trace_ids"))
    return Fleet(
        names,
        availability=_build_availability(columns, names, table, learners),
        noise=Noise(
            **{key: columns.pop(NOISE_PREFIX + key) for key in NoiseTable.__struct_fields__}
        ),
        **columns,
        threshold=threshold,
        trace_ids=trace_ids,
        traces=traces,
        groups=_group_learners(parts),
        orchestrator=_shared_link(table.orchestrator),
        state_probability=states[0],
        state_compute=states[1],
        state_bandwidth=states[2],
        budget=table.budget,
        seed=table.seed,
        core_ops_per_s=table.core_ops_per_s or CORE_OPS_PER_S,
        discloses=tuple(chain.from_iterable([part.discloses] * len(part.names) for part in parts)),
    )


def _build_blocks(table: FleetTable, learners: int | None) -> list[_LearnerBlock]:
    """Build the learners of each table that has any."""
    singles = len(table.learner)
    counts = apportion([1] * singles + [group.count for group in table.group], learners)
    parts = [
        _build_single(learner, count, table)
        for learner, count in zip(table.learner, counts[:singles], strict=True)
        if count
    ]
    return parts + [
        _build_group(replace(group, count=count), number, table)
        for number, (group, count) in enumerate(zip(table.group, counts[singles:], strict=True))
        if count
    ]


def _unique_names(parts: Sequence[_LearnerBlock]) -> tuple[str, ...]:
    names = tuple(chain.from_iterable(part.names for part in parts))
    if len(set(names)) < len(names):
        (name, times), *_ = Counter(names).most_common(1)
        raise SettingError(
            f"{times} learners have the name {name!r}; rename one of them or its group"
        )
    return names


def _shared_link(table: OrchestratorTable) -> SharedLink:
    uplink_bps, downlink_bps = (
        rate or table.bandwidth_bps or inf for rate in (table.uplink_bps, table.downlink_bps)
    )
    return SharedLink(uplink_bps, downlink_bps)


def _group_learners(parts: Sequence[_LearnerBlock]) -> dict[str, range]:
    """Return the learners of each table by its name; equal names stand for the first."""
    ends = list(accumulate(len(part.names) for part in parts))
    groups = dict[str, range]()
    for part, end in zip(parts, ends, strict=True):
        groups.setdefault(part.group, range(end - len(part.names), end))
    return groups


def _number_names(name: str, count: int) -> list[str]:
    digits = len(str(count))
    return [f"{name}-{number:0{digits}d}" for number in range(1, count + 1)]


def _build_single(learner: FleetLearner, count: int, table: FleetTable) -> _LearnerBlock:
    names = [learner.name] if count == 1 else _number_names(learner.name, count)
    columns = {
        name: np.full(count, value) for name, value in _hardware_columns(learner, table).items()
    }
    columns["price"] = np.full(count, learner.price)
    columns["own_samples"] = np.full(count, float(learner.own_samples or nan))
    rows = [(s.probability, s.compute, s.bandwidth) for s in learner.state] or [(1.0, 1.0, 1.0)]
    states = [np.tile(np.array(column), (count, 1)) for column in zip(*rows, strict=True)]
    key = f"learner[{learner.name}]"
    return _LearnerBlock(
        key, learner.name, names, learner.bandwidth_trace, learner.discloses, columns, states
    )


def _build_group(group: FleetGroup, number: int, table: FleetTable) -> _LearnerBlock:
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
    return _LearnerBlock(key, name, names, group.bandwidth_trace, group.discloses, columns, states)


def _draw_prices(group: FleetGroup, rng: np.random.Generator) -> Floats:
    if not isinstance(group.price, PriceTable):
        return np.full(group.count, group.price)
    prices = rng.normal(group.price.mean, group.price.sd, group.count)
    return np.clip(prices, group.price.low, group.price.high)


def _draw_own_samples(group: FleetGroup, rng: np.random.Generator) -> Floats:
    """Draw the samples on each device, at least 1; NaN if the group does not give them."""
    own = group.own_samples
    if not isinstance(own, SamplesTable):
        return np.full(group.count, float(own or nan))
    factors = draw_factors(own.spread, own.distribution, group.count, rng)
    return np.maximum(np.rint(own.mean * factors), 1.0)


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
        **_availability_columns(device.availability),
        **{NOISE_PREFIX + key: getattr(noise, key) for key in NoiseTable.__struct_fields__},
    }


def _availability_columns(times: AvailabilityTable) -> dict[str, float]:
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


def _build_availability(
    columns: dict[str, Floats], names: tuple[str, ...], table: FleetTable, learners: int | None
) -> Availability:
    """Take the availability out of `columns`; traced learners follow the trace only."""
    defaults = _availability_columns(AvailabilityTable())
    times = {key: columns.pop(key) for key in defaults}
    with _naming_key("trace"):
        traced = Changes.merge([])
        if table.trace is not None:
            traced = read_trace(table.trace, names, learners)
    for key, default in defaults.items():
        times[key][traced.learners] = default
    begin_s = parse_clock("starts_at", table.starts_at or "00:00")
    hours = DayHours(times.pop("hours_from_s"), times.pop("hours_to_s"), begin_s)
    battery = BatteryLimits(times.pop("battery_j"), times.pop("recharge_w"))
    return Availability(**times, traced=traced, hours=hours, battery=battery)


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


def _pad_states(parts: Sequence[_LearnerBlock]) -> list[list[Floats]]:
    """Pad the states of all parts to the same number with states of probability 0."""
    width = max(part.state_arrays[0].shape[1] for part in parts)

    def pad(array: Floats, fill: float) -> Floats:
        missing = ((0, 0), (0, width - array.shape[1]))
        return np.pad(array, missing, constant_values=fill)

    return [
        [pad(array, fill) for array, fill in zip(part.state_arrays, (0.0, 1.0, 1.0), strict=True)]
        for part in parts
    ]


def _set_radio_rates(columns: dict[str, Floats], names: Sequence[str], table: FleetTable) -> None:
    """Fill in radio rates where a rate is missing; raise SettingError if there is no cell."""
    missing = {key: np.isnan(columns[key]) for key in LINKS}
    if table.cell is not None:
        radio_bps = _radio_rates_bps(len(names), table.cell, table.seed)
        for key in LINKS:
            columns[key] = np.where(missing[key], radio_bps, columns[key])
    elif (incomplete := np.flatnonzero(np.logical_or(*missing.values()))).size:
        first = int(incomplete[0])
        keys = [key for key in LINKS if missing[key][first]]
        key, fix = (
            (keys[0], "add it, bandwidth_bps,") if len(keys) == 1 else ("bandwidth_bps", "add it,")
        )
        raise SettingError(
            f"learner {names[first]!r} has no {key}; {fix} a profile, or a [fleet.cell]"
        )


def _apply_traces(parts: Sequence[_LearnerBlock]) -> tuple[BandwidthTrace, ...]:
    """Read the traces of all parts, apply their mean rates, and return those that vary."""
    keys = {part.bandwidth_trace: part.key for part in reversed(parts) if part.bandwidth_trace}
    traces = dict[str, BandwidthTrace]()
    for path in sorted(keys):
        with _naming_key(f"{keys[path]}.bandwidth_trace"):
            traces[path] = read_bandwidth_trace(path)
    varying = [path for path, trace in traces.items() if len(trace.rows) > 1]
    for part in parts:
        if part.bandwidth_trace is not None:
            trace = traces[part.bandwidth_trace]
            part.columns["downlink_bps"] *= trace.mean_bps("downlink")
            part.columns["uplink_bps"] *= trace.mean_bps("uplink")
            if part.bandwidth_trace in varying:
                part.columns["trace_ids"][:] = varying.index(part.bandwidth_trace)
    return tuple(traces[path] for path in varying)


@contextmanager
def _naming_key(key: str) -> Iterator[None]:
    try:
        yield
    except SettingError as error:
        raise TraceError(f"{key}: {error}") from None


def _radio_rates_bps(count: int, cell: CellTable, seed: int) -> Floats:
    channel = Channel(cell.bandwidth_hz, cell.power_dbm, cell.noise_dbm_per_hz, cell.path_loss)
    if cell.placement == "edge":
        distances_m = np.full(count, cell.radius_m)
    else:
        rng = generator(seed, "fleet placement")
        distances_m = random_distances_m(count, cell.radius_m, rng)
    rate_bps = channel.mean_rate_bps if cell.fading == "rayleigh" else channel.rate_bps
    return rate_bps(distances_m)
