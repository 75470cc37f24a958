"""From the tables of a FLEET.toml to the learners themselves: profiles, groups, radio, states."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np

from melisma.errors import SettingError
from melisma.fleet.chance import generator
from melisma.fleet.channel import Channel, Floats, placed_m
from melisma.fleet.fleet import Fleet
from melisma.fleet.fleet_file import (
    Cell,
    FleetFile,
    FleetTable,
    Group,
    Hardware,
    Learner,
    Price,
    Tells,
)
from melisma.fleet.profiles import PROFILES, Profile
from melisma.fleet.toml_file import read

# One core, in operations a second: a small dense model, batches of 32, on a 2.x GHz server core.
CORE_OPS_PER_S = 1e10
NO_PROFILE = Profile(nan, nan, 0.0, "")


@dataclass
class _Part:
    """Learners of one table of the file."""

    names: list[str]
    tells: Tells
    columns: dict[str, Floats]
    states: list[Floats]


def read_fleet(path: str | Path) -> Fleet:
    """The fleet of a FLEET.toml; `SettingError` names file and key."""
    table = read(path, FleetFile).fleet
    try:
        return muster(table)
    except SettingError as error:
        raise SettingError(f"{path}: fleet: {error}") from None


def muster(table: FleetTable) -> Fleet:
    """All learners of the file, singles first, in its order."""
    parts = [_single(learner, table) for learner in table.learner]
    parts += [_group(group, number, table) for number, group in enumerate(table.group)]
    names = tuple(name for part in parts for name in part.names)
    (name, times), *_ = Counter(names).most_common(1)
    if times > 1:
        raise SettingError(
            f"{times} learners are called {name!r}; give one, or its group, another name"
        )
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    if table.cell is not None:
        _connect(columns, table.cell, table.seed)
    unreachable = np.flatnonzero(np.isnan(columns["bandwidth_bps"]))
    if unreachable.size:
        raise SettingError(
            f"learner {names[int(unreachable[0])]!r} has no bandwidth_bps; "
            f"say it, or a profile, or a [fleet.cell]"
        )
    states = [np.concatenate(rows) for rows in zip(*_of_one_width(parts), strict=True)]
    threshold = columns.pop("threshold").astype(np.int64)
    return Fleet(
        names,
        **columns,
        threshold=threshold,
        states=states[0],
        compute_left=states[1],
        bandwidth_left=states[2],
        budget=table.budget,
        seed=table.seed,
        core_ops_per_s=table.core_ops_per_s or CORE_OPS_PER_S,
        tells=tuple(part.tells for part in parts for _ in part.names),
    )


def _single(learner: Learner, table: FleetTable) -> _Part:
    columns = {name: np.array([value]) for name, value in _hardware(learner, table).items()}
    columns["price"] = np.array([learner.price])
    rows = [(s.probability, s.compute, s.bandwidth) for s in learner.state] or [(1.0, 1.0, 1.0)]
    return _Part(
        [learner.name],
        learner.tells,
        columns,
        [np.array([column]) for column in zip(*rows, strict=True)],
    )


def _group(group: Group, number: int, table: FleetTable) -> _Part:
    """Learners around the group's figures, each drawn from the fleet's seed."""
    name, count = group.name or group.profile or f"group-{number + 1}", group.count
    digits = len(str(count))
    columns = {key: np.full(count, value) for key, value in _hardware(group, table).items()}

    def drawn(what: str) -> np.random.Generator:
        return generator(table.seed, f"fleet group {number} {what}")

    faster = _spread(group.spread.compute, count, drawn("compute"))
    for key in ("shard_s", "sample_s"):
        columns[key] = columns[key] / faster
    for key in ("ops_per_s", "clock_hz"):
        columns[key] = columns[key] * faster
    for key in ("bandwidth_bps", "latency_s"):
        columns[key] = columns[key] * _spread(getattr(group.spread, key), count, drawn(key))
    if isinstance(group.price, Price):
        price = drawn("price").normal(group.price.mean, group.price.sd, count)
        columns["price"] = np.clip(price, group.price.low, group.price.high)
    else:
        columns["price"] = np.full(count, group.price)
    names = [f"{name}-{i:0{digits}d}" for i in range(1, count + 1)]
    return _Part(names, group.tells, columns, _group_states(group, drawn("states")))


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
    }


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


def _spread(relative: float, count: int, rng: np.random.Generator) -> Floats:
    """Log-normal factors of mean 1 with that relative standard deviation."""
    sigma = np.sqrt(np.log1p(relative**2))
    drawn: Floats = np.exp(rng.normal(0.0, 1.0, count) * sigma - sigma**2 / 2)
    return drawn


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


def _connect(columns: dict[str, Floats], cell: Cell, seed: int) -> None:
    """Radio rates for whoever has no bandwidth of its own."""
    channel = Channel(cell.bandwidth_hz, cell.power_dbm, cell.noise_dbm_per_hz, cell.path_loss)
    count = columns["bandwidth_bps"].size
    if cell.placement == "edge":
        away_m = np.full(count, cell.radius_m)
    else:
        away_m = placed_m(count, cell.radius_m, generator(seed, "fleet placement"))
    rate = channel.mean_rate_bps if cell.fading == "rayleigh" else channel.rate_bps
    named = columns["bandwidth_bps"]
    columns["bandwidth_bps"] = np.where(np.isnan(named), rate(away_m), named)
