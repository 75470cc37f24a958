"""Building of a fleet from the tables of a FLEET.toml, with its radio cell and its traces.

A fleet of another size keeps the proportions of the file: groups are drawn with other counts, and
copies of a single learner are numbered and have the same values.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from math import inf
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.availability import Availability, BatteryLimits, Changes
from melisma.fleet.channel import Channel, random_distances_m
from melisma.fleet.day_hours import DayHours, parse_clock
from melisma.fleet.files.apportionment import apportion
from melisma.fleet.files.bandwidth_trace import read_bandwidth_trace
from melisma.fleet.files.fleet_file import (
    AvailabilityTable,
    CellTable,
    FleetFile,
    FleetTable,
    NoiseTable,
    OrchestratorTable,
)
from melisma.fleet.files.learner_blocks import (
    CORE_OPS_PER_S,
    LINKS,
    NOISE_PREFIX,
    LearnerBlock,
    availability_columns,
    build_group,
    build_single,
)
from melisma.fleet.files.toml_file import read_toml
from melisma.fleet.files.trace_file import read_trace
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.shared_link import SharedLink
from melisma.fleet.variation import BandwidthTrace, Noise


class TraceError(SettingError):
    """A trace cannot be read; the message begins with the key of its path."""


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
    stressors = tuple(sorted({name for part in parts for name in part.stress if name}))
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
        state_stress=_index_stressors(parts, stressors),
        stressors=stressors,
        state_probabilities=table.state_probabilities,
        budget=table.budget,
        seed=table.seed,
        core_ops_per_s=table.core_ops_per_s or CORE_OPS_PER_S,
        discloses=tuple(chain.from_iterable([part.discloses] * len(part.names) for part in parts)),
    )


def _build_blocks(table: FleetTable, learners: int | None) -> list[LearnerBlock]:
    """Build the learners of each table that has any."""
    singles = len(table.learner)
    counts = apportion([1] * singles + [group.count for group in table.group], learners)
    parts = [
        build_single(learner, count, table)
        for learner, count in zip(table.learner, counts[:singles], strict=True)
        if count
    ]
    return parts + [
        build_group(replace(group, count=count), number, table)
        for number, (group, count) in enumerate(zip(table.group, counts[singles:], strict=True))
        if count
    ]


def _unique_names(parts: Sequence[LearnerBlock]) -> tuple[str, ...]:
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


def _group_learners(parts: Sequence[LearnerBlock]) -> dict[str, range]:
    """Return the learners of each table by its name; equal names stand for the first."""
    ends = list(accumulate(len(part.names) for part in parts))
    groups = dict[str, range]()
    for part, end in zip(parts, ends, strict=True):
        groups.setdefault(part.group, range(end - len(part.names), end))
    return groups


def _build_availability(
    columns: dict[str, Floats], names: tuple[str, ...], table: FleetTable, learners: int | None
) -> Availability:
    """Take the availability out of `columns`; traced learners follow the trace only."""
    defaults = availability_columns(AvailabilityTable())
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


def _pad_states(parts: Sequence[LearnerBlock]) -> list[list[Floats]]:
    """Pad the states of all parts to the same number with states of probability 0."""
    width = max(part.state_arrays[0].shape[1] for part in parts)

    def pad(array: Floats, fill: float) -> Floats:
        missing = ((0, 0), (0, width - array.shape[1]))
        return np.pad(array, missing, constant_values=fill)

    return [
        [pad(array, fill) for array, fill in zip(part.state_arrays, (0.0, 1.0, 1.0), strict=True)]
        for part in parts
    ]


def _index_stressors(parts: Sequence[LearnerBlock], stressors: Sequence[str]) -> Ints:
    """Return the index of the stressor of each state, -1 without one: learners by states."""
    width = max(len(part.stress) for part in parts)
    rows = []
    for part in parts:
        row = np.full(width, -1, np.int64)
        row[: len(part.stress)] = [stressors.index(n) if n else -1 for n in part.stress]
        rows.append(np.tile(row, (len(part.names), 1)))
    return np.concatenate(rows)


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


def _apply_traces(parts: Sequence[LearnerBlock]) -> tuple[BandwidthTrace, ...]:
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
