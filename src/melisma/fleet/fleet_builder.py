"""From the tables of a FLEET.toml to the learners themselves: profiles, groups, radio, states.

A fleet of another size has the proportions of the file: its groups are drawn with other counts,
and a single learner that is wanted several times is numbered, each with the same figures.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from melisma.errors import SettingError
from melisma.fleet.apportionment import headcount
from melisma.fleet.availability import Availability, Changes
from melisma.fleet.channel import Channel, Floats, placed_m
from melisma.fleet.fleet import Fleet
from melisma.fleet.fleet_file import (
    AvailabilityTable,
    Cell,
    Disclosure,
    FleetFile,
    FleetTable,
    Group,
    Hardware,
    Learner,
    Price,
)
from melisma.fleet.profiles import PROFILES, Profile
from melisma.fleet.rng import generator
from melisma.fleet.spread import factors
from melisma.fleet.toml_file import read
from melisma.fleet.trace_file import read_trace

# One core, in operations a second: a small dense model, batches of 32, on a 2.x GHz server core.
CORE_OPS_PER_S = 1e10
NO_PROFILE = Profile(nan, nan, 0.0, "")


@dataclass
class _Part:
    """Learners of one table of the file."""

    names: list[str]
    discloses: Disclosure
    columns: dict[str, Floats]
    states: list[Floats]


def read_fleet(path: str | Path, learners: int | None = None, seed: int | None = None) -> Fleet:
    """The fleet of a FLEET.toml; `SettingError` names file and key.

    With `learners`, a fleet of so many, in the proportions of the file; with `seed`, drawn by it
    instead of the file's.
    """
    table = read(path, FleetFile).fleet
    if seed is not None:
        table = replace(table, seed=seed)
    if table.trace is not None:
        table = replace(table, trace=str(Path(path).parent / table.trace))
    try:
        return muster(table, learners)
    except SettingError as error:
        raise SettingError(f"{path}: fleet: {error}") from None


def muster(table: FleetTable, learners: int | None = None) -> Fleet:
    """All learners of the file, singles first, in its order, or so many in its proportions."""
    parts = _parts(table, learners)
    names = _names(parts)
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    _connect(columns, names, table)
    states = [np.concatenate(rows) for rows in zip(*_of_one_width(parts), strict=True)]
    threshold = columns.pop("threshold").astype(np.int64)
    return Fleet(
        names,
        availability=_availability(columns, names, table.trace, learners),
        **columns,
        threshold=threshold,
        states=states[0],
        compute_left=states[1],
        bandwidth_left=states[2],
        budget=table.budget,
        seed=table.seed,
        core_ops_per_s=table.core_ops_per_s or CORE_OPS_PER_S,
        discloses=tuple(tells for part in parts for tells in [part.discloses] * len(part.names)),
    )


def _parts(table: FleetTable, learners: int | None) -> list[_Part]:
    """The learners of each table that has any."""
    singles = len(table.learner)
    counts = headcount([1] * singles + [group.count for group in table.group], learners)
    parts = [
        _single(learner, count, table)
        for learner, count in zip(table.learner, counts[:singles], strict=True)
        if count
    ]
    return parts + [
        _group(replace(group, count=count), number, table)
        for number, (group, count) in enumerate(zip(table.group, counts[singles:], strict=True))
        if count
    ]


def _names(parts: Sequence[_Part]) -> tuple[str, ...]:
    names = tuple(name for part in parts for name in part.names)
    if len(set(names)) < len(names):
        (name, times), *_ = Counter(names).most_common(1)
        raise SettingError(
            f"{times} learners are called {name!r}; give one, or its group, another name"
        )
    return names


def _numbered(name: str, count: int) -> list[str]:
    digits = len(str(count))
    return [f"{name}-{number:0{digits}d}" for number in range(1, count + 1)]


def _single(learner: Learner, count: int, table: FleetTable) -> _Part:
    names = [learner.name] if count == 1 else _numbered(learner.name, count)
    columns = {name: np.full(count, value) for name, value in _hardware(learner, table).items()}
    columns["price"] = np.full(count, learner.price)
    rows = [(s.probability, s.compute, s.bandwidth) for s in learner.state] or [(1.0, 1.0, 1.0)]
    states = [np.tile(np.array(column), (count, 1)) for column in zip(*rows, strict=True)]
    return _Part(names, learner.discloses, columns, states)


def _group(group: Group, number: int, table: FleetTable) -> _Part:
    """Learners around the group's figures, each drawn from the fleet's seed."""
    name, count = group.name or group.profile or f"group-{number + 1}", group.count
    columns = {key: np.full(count, value) for key, value in _hardware(group, table).items()}

    def drawn(what: str) -> np.random.Generator:
        return generator(table.seed, f"fleet group {number} {what}")

    def spread(what: str) -> Floats:
        relative: float = getattr(group.spread, what)
        return factors(relative, group.spread.distribution, count, drawn(what))

    faster = spread("compute")
    for key in ("shard_s", "sample_s"):
        columns[key] = columns[key] / faster
    for key in ("ops_per_s", "clock_hz"):
        columns[key] = columns[key] * faster
    for key in ("bandwidth_bps", "latency_s"):
        columns[key] = columns[key] * spread(key)
    columns["price"] = _price(group, drawn("price"))
    return _Part(
        _numbered(name, count), group.discloses, columns, _group_states(group, drawn("states"))
    )


def _price(group: Group, rng: np.random.Generator) -> Floats:
    if not isinstance(group.price, Price):
        return np.full(group.count, group.price)
    drawn = rng.normal(group.price.mean, group.price.sd, group.count)
    return np.clip(drawn, group.price.low, group.price.high)


def _hardware(device: Hardware, table: FleetTable) -> dict[str, float]:
    """Figures of one device, the profile's where nothing else is said."""
    profile = PROFILES[device.profile] if device.profile else NO_PROFILE
    speed = _speed(device, profile, table.core_ops_per_s or CORE_OPS_PER_S)
    link = device.bandwidth_bps
    # Within a cell the radio decides, not what such a device has elsewhere.
    usual = nan if table.cell else profile.bandwidth_bps
    return speed | {
        "bandwidth_bps": usual if link is None else link,
        "latency_s": profile.latency_s if device.latency_s is None else device.latency_s,
        "base_s": device.base_s,
        "threshold": float(device.threshold),
        "sample_j": device.energy.sample_j,
        "byte_j": device.energy.byte_j,
        **_times(device.availability),
    }


def _times(said: AvailabilityTable) -> dict[str, float]:
    """When a device is there; it never leaves and never sleeps unless that is said."""
    return {
        "joins_s": said.joins_s,
        "leaves_s": inf if said.leaves_s is None else said.leaves_s,
        "awake_s": inf if said.awake_s is None else said.awake_s,
        "asleep_s": 0.0 if said.asleep_s is None else said.asleep_s,
    }


def _availability(
    columns: dict[str, Floats], names: tuple[str, ...], trace: str | None, asked: int | None
) -> Availability:
    """Takes its columns out of the others; what is traced stands instead of what they say."""
    times = {key: columns.pop(key) for key in _times(AvailabilityTable())}
    traced = read_trace(trace, names, asked) if trace is not None else Changes.joined([])
    for key, usual in _times(AvailabilityTable()).items():
        times[key][traced.learners] = usual
    return Availability(**times, traced=traced)


def _speed(device: Hardware, profile: Profile, core_ops_per_s: float) -> dict[str, float]:
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


def _group_states(group: Group, rng: np.random.Generator) -> list[Floats]:
    if group.states is None:
        return [np.ones((group.count, 1))] * 3
    kinds = len(group.states.compute)
    # softmax(one-hot / heat), the one drawn uniformly (section 4.3.1 of Mays' thesis); less 1,
    # so that a low heat makes the others unlikely rather than the one too large.
    unlikely = np.eye(kinds)[rng.integers(0, kinds, group.count)] - 1
    weight = np.exp(unlikely / group.states.heat)
    factors = (group.states.compute, group.states.bandwidth)
    left = [np.tile(np.array(factor), (group.count, 1)) for factor in factors]
    return [weight / weight.sum(axis=1, keepdims=True), *left]


def _of_one_width(parts: Sequence[_Part]) -> list[list[Floats]]:
    """States of all parts, filled up with states that never happen."""
    width = max(part.states[0].shape[1] for part in parts)

    def wider(array: Floats, fill: float) -> Floats:
        missing = ((0, 0), (0, width - array.shape[1]))
        return np.pad(array, missing, constant_values=fill)

    return [
        [wider(array, fill) for array, fill in zip(part.states, (0.0, 1.0, 1.0), strict=True)]
        for part in parts
    ]


def _connect(columns: dict[str, Floats], names: Sequence[str], table: FleetTable) -> None:
    """Radio rates for whoever has no bandwidth of its own; somebody without both is refused."""
    if table.cell is not None:
        named = columns["bandwidth_bps"]
        rates = _radio_bps(named.size, table.cell, table.seed)
        columns["bandwidth_bps"] = np.where(np.isnan(named), rates, named)
    unreachable = np.flatnonzero(np.isnan(columns["bandwidth_bps"]))
    if unreachable.size:
        raise SettingError(
            f"learner {names[int(unreachable[0])]!r} has no bandwidth_bps; "
            f"say it, or a profile, or a [fleet.cell]"
        )


def _radio_bps(count: int, cell: Cell, seed: int) -> Floats:
    channel = Channel(cell.bandwidth_hz, cell.power_dbm, cell.noise_dbm_per_hz, cell.path_loss)
    if cell.placement == "edge":
        away_m = np.full(count, cell.radius_m)
    else:
        away_m = placed_m(count, cell.radius_m, generator(seed, "fleet placement"))
    return (channel.mean_rate_bps if cell.fading == "rayleigh" else channel.rate_bps)(away_m)
