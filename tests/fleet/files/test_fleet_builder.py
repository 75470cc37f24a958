import time
from dataclasses import fields, is_dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.backports import tomllib
from melisma.errors import SettingError
from melisma.fleet.channel import Channel
from melisma.fleet.files.fleet_builder import CORE_OPS_PER_S, build_fleet, read_fleet
from melisma.fleet.files.fleet_file import FleetFile
from melisma.fleet.files.profiles import PROFILES
from melisma.fleet.fleet import Fleet

CELL = "[fleet.cell]\nradius_m = 50\nbandwidth_hz = 5e6\npower_dbm = 23\n"
STALENESS_CELL = CELL + 'path_loss = "attenuation"\nfading = "none"\n'


def build(text: str, learners: int | None = None) -> Fleet:
    return build_fleet(msgspec.convert(tomllib.loads(text), FleetFile).fleet, learners)


def build_group(count: int, lines: str = 'profile = "phone"', **settings: Any) -> Fleet:
    top = "".join(f"{key} = {value}\n" for key, value in settings.items())
    return build(f"[fleet]\n{top}[[fleet.group]]\ncount = {count}\n{lines}\n")


def test_single_learners_come_first_in_the_order_of_the_file() -> None:
    fleet = build(
        """
        [[fleet.group]]
        count = 2
        profile = "phone"
        [[fleet.learner]]
        name = "zoe"
        profile = "laptop"
        [[fleet.learner]]
        name = "adam"
        profile = "desktop"
        [[fleet.group]]
        count = 12
        name = "pi"
        profile = "raspberry-pi-4"
        [[fleet.group]]
        count = 1
        train_s = 1.0
        bandwidth_bps = 1e6
        """
    )
    assert fleet.names[:5] == ("zoe", "adam", "phone-1", "phone-2", "pi-01")
    assert fleet.names[-2:] == ("pi-12", "group-3-1")
    assert fleet.learners == 17
    assert fleet.downlink_bps[:5].tolist() == [150e6, 900e6, 15e6, 15e6, 40e6]
    for field in fields(fleet):
        value = getattr(fleet, field.name)
        if isinstance(value, np.ndarray):
            assert len(value) == 17, field.name


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_gives_speed_and_link(name: str) -> None:
    fleet, profile = build_group(1, f'profile = "{name}"'), PROFILES[name]
    assert fleet.ops_per_s.tolist() == [profile.compute * CORE_OPS_PER_S]
    assert fleet.downlink_bps.tolist() == [profile.downlink_bps]
    assert fleet.latency_s.tolist() == [profile.latency_s]
    assert fleet.price.tolist() == [1.0]
    assert fleet.budget == float("inf")


def test_keys_override_the_profile() -> None:
    lines = 'profile = "phone"\nbandwidth_bps = 7e6\nlatency_s = 0'
    fleet = build_group(1, lines + "\ncompute = 2.0", core_ops_per_s=3e9)
    assert fleet.ops_per_s.tolist() == [6e9]
    assert fleet.downlink_bps.tolist() == [7e6]
    assert fleet.latency_s.tolist() == [0]


@pytest.mark.parametrize(
    ("lines", "shard_s", "sample_s", "ops_per_s", "clock_hz"),
    [
        ("compute = 0.5", nan, nan, 0.5 * CORE_OPS_PER_S, nan),
        ("train_s = 3", 3.0, nan, nan, nan),
        ("samples_per_s = 40", nan, 1 / 40, nan, nan),
        ("clock_hz = 2e9", nan, nan, 2e9, 2e9),
        ("clock_hz = 2e9\ncycles_per_sample = 1e6", nan, 5e-4, 2e9, 2e9),
    ],
)
@pytest.mark.parametrize("before", ['profile = "phone"\n', "bandwidth_bps = 1e6\n"])
def test_speed_is_kept_in_the_unit_of_the_file(
    before: str, lines: str, shard_s: float, sample_s: float, ops_per_s: float, clock_hz: float
) -> None:
    fleet = build_group(1, before + lines)
    got = [fleet.shard_s, fleet.sample_s, fleet.ops_per_s, fleet.clock_hz]
    expected = [[shard_s], [sample_s], [ops_per_s], [clock_hz]]
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-15)


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.8])
def test_a_spread_has_the_given_mean_and_deviation(spread: float) -> None:
    lines = f"{{ compute = {spread}, bandwidth_bps = {spread}, latency_s = {spread} }}"
    fleet = build_group(200_000, f'profile = "phone"\nspread = {lines}')
    values_by_key = {
        "ops_per_s": fleet.ops_per_s / (0.3 * CORE_OPS_PER_S),
        "bandwidth_bps": fleet.downlink_bps / 15e6,
        "latency_s": fleet.latency_s / 0.030,
    }
    for values in values_by_key.values():
        assert values.min() > 0
        assert values.mean() == pytest.approx(1, abs=0.01)
        assert values.std() == pytest.approx(spread, rel=0.03, abs=1e-12)
    if spread:
        between = np.corrcoef(list(values_by_key.values())) - np.eye(3)
        assert np.abs(between).max() < 0.01


@pytest.mark.parametrize(
    ("lines", "down_bps", "up_bps"),
    [
        ("bandwidth_bps = 7e6", 7e6, 7e6),
        ("bandwidth_bps = 7e6\nuplink_bps = 2e6", 7e6, 2e6),
        ("bandwidth_bps = 7e6\ndownlink_bps = 9e6", 9e6, 7e6),
        ("downlink_bps = 9e6\nuplink_bps = 2e6", 9e6, 2e6),
        ("uplink_bps = 2e6", 15e6, 2e6),
    ],
)
def test_one_direction_overrides_both_and_both_override_the_profile(
    lines: str, down_bps: float, up_bps: float
) -> None:
    fleet = build_group(2, f'profile = "phone"\n{lines}')
    assert fleet.downlink_bps.tolist() == [down_bps] * 2
    assert fleet.uplink_bps.tolist() == [up_bps] * 2


def test_a_spread_of_one_direction_is_added_to_that_of_both() -> None:
    lines = 'profile = "phone"\nuplink_bps = 5e6\nspread = { bandwidth_bps = 0.3 }'
    both = build_group(1000, lines)
    np.testing.assert_allclose(both.uplink_bps / 5e6, both.downlink_bps / 15e6)
    fleet = build_group(100_000, lines.replace(" }", ", uplink_bps = 0.4 }"))
    up, down = fleet.uplink_bps / 5e6, fleet.downlink_bps / 15e6
    assert [up.mean(), down.mean()] == pytest.approx([1, 1], abs=0.01)
    assert down.std() == pytest.approx(0.3, rel=0.03)
    assert (up / down).std() == pytest.approx(0.4, rel=0.03)


@pytest.mark.parametrize(
    ("lines", "column"),
    [("train_s = 2.0", "shard_s"), ("samples_per_s = 0.5", "sample_s")],
)
def test_a_spread_of_compute_applies_to_speed_in_every_unit(lines: str, column: str) -> None:
    fleet = build_group(100_000, f"bandwidth_bps = 1e6\nspread.compute = 0.3\n{lines}")
    speed = 2.0 / getattr(fleet, column)
    assert speed.mean() == pytest.approx(1, abs=0.01)
    assert speed.std() == pytest.approx(0.3, rel=0.03)


def test_clock_and_cycles_spread_together() -> None:
    fleet = build_group(
        9, "clock_hz = 1e9\ncycles_per_sample = 1e6\nbandwidth_bps = 1\nspread.compute = 1"
    )
    np.testing.assert_allclose(fleet.sample_s * fleet.clock_hz, 1e6)


def equal(first: Any, second: Any) -> bool:
    if is_dataclass(first):
        names = [field.name for field in fields(first)]
        return all(equal(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    return bool(first == second)


DRAWN = """
profile = "phone"
spread = { compute = 0.3, bandwidth_bps = 0.5, latency_s = 0.2 }
price = { mean = 1.0 }
states = { compute = [1.0, 0.4], bandwidth = [1.0, 0.9] }
"""


def test_the_same_seed_gives_the_same_fleet_and_another_seed_another_fleet() -> None:
    first, again, other = (
        build_group(50, DRAWN, seed=3),
        build_group(50, DRAWN, seed=3),
        build_group(50, DRAWN),
    )
    assert equal(first, again)
    for column in (
        "ops_per_s",
        "downlink_bps",
        "uplink_bps",
        "latency_s",
        "price",
        "state_probability",
    ):
        assert not np.array_equal(getattr(first, column), getattr(other, column)), column


def test_a_group_does_not_depend_on_single_learners_in_the_file() -> None:
    alone = build_group(5, DRAWN)
    beside = build(
        f'[[fleet.learner]]\nname = "a"\nprofile = "laptop"\n[[fleet.group]]\ncount = 5\n{DRAWN}'
    )
    assert beside.ops_per_s[1:].tolist() == alone.ops_per_s.tolist()
    assert beside.price[1:].tolist() == alone.price.tolist()


def test_two_groups_are_drawn_independently() -> None:
    both = build("".join(f'[[fleet.group]]\ncount = 5\nname = "{n}"{DRAWN}' for n in "ab"))
    assert not np.any(both.ops_per_s[:5] == both.ops_per_s[5:])


def test_states_are_the_softmax_of_the_study() -> None:
    factors = "compute = [1.0, 0.4, 0.9], bandwidth = [1.0, 0.9, 0.3]"
    fleet = build_group(3000, f'profile = "jetson-nano"\nstates = {{ heat = 0.5, {factors} }}')
    np.testing.assert_allclose(
        np.sort(fleet.state_probability)[:, ::-1], [[0.787, 0.107, 0.107]] * 3000, 1e-2
    )
    np.testing.assert_allclose(fleet.state_probability.sum(axis=1), 1.0)
    assert fleet.state_compute[7].tolist() == [1.0, 0.4, 0.9]
    assert fleet.state_bandwidth[7].tolist() == [1.0, 0.9, 0.3]
    likely = np.bincount(fleet.state_probability.argmax(axis=1)) / 3000
    assert likely.tolist() == pytest.approx([1 / 3] * 3, abs=0.04)


@pytest.mark.parametrize(("heat", "likely"), [("1e-30", 1.0), ("1e-3", 1.0), ("1e30", 0.5)])
def test_the_lower_the_heat_the_more_likely_is_one_state(heat: str, likely: float) -> None:
    lines = f"states = {{ heat = {heat}, compute = [1, 0.5], bandwidth = [1, 1] }}"
    fleet = build_group(20, f'profile = "phone"\n{lines}')
    assert fleet.state_probability.max(axis=1).tolist() == pytest.approx([likely] * 20)


def test_learners_with_fewer_states_are_padded_with_states_of_probability_0() -> None:
    fleet = build(
        """
        [[fleet.learner]]
        name = "a"
        profile = "phone"
        [[fleet.learner]]
        name = "b"
        profile = "phone"
        state = [{ probability = 0.25, compute = 0.5 }, { probability = 0.75, bandwidth = 0.1 }]
        """
    )
    assert fleet.state_probability.tolist() == [[1.0, 0.0], [0.25, 0.75]]
    assert fleet.state_compute.tolist() == [[1.0, 1.0], [0.5, 1.0]]
    assert fleet.state_bandwidth.tolist() == [[1.0, 1.0], [1.0, 0.1]]


def test_prices_are_drawn_and_clipped_to_their_range() -> None:
    lines = "price = { mean = 1.0, sd = 0.5, low = 0.1, high = 1.5 }"
    price = build_group(20_000, f'profile = "phone"\n{lines}').price
    assert (price.min(), price.max()) == (0.1, 1.5)
    assert np.mean(price == 1.5) == pytest.approx(0.159, abs=0.01)
    assert np.median(price) == pytest.approx(1.0, abs=0.02)
    assert build_group(3, 'profile = "phone"\nprice = 2.5').price.tolist() == [2.5] * 3


def test_prices_without_bounds_are_only_kept_from_being_negative() -> None:
    price = build_group(20_000, 'profile = "phone"\nprice = { mean = 1.0, sd = 0.5 }').price
    assert price.min() == 0.0
    assert np.mean(price == 0.0) == pytest.approx(0.0228, abs=0.005)
    assert np.any((price > 0.0) & (price < 0.1))
    assert price.max() > 2.0


def test_own_samples_are_given_or_drawn() -> None:
    given = build_group(3, 'profile = "phone"\nown_samples = 40')
    assert given.own_samples.tolist() == [40.0] * 3
    lines = 'profile = "phone"\nown_samples = { mean = 600, spread = 0.8 }'
    drawn = build_group(20_000, lines).own_samples
    assert np.array_equal(drawn, np.rint(drawn))
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(600, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(0.8, rel=0.1)
    assert np.isnan(build_group(2, 'profile = "phone"').own_samples).all()


def test_learners_at_the_edge_of_the_staleness_papers_cell_have_its_rate() -> None:
    fleet = build(f'[[fleet.group]]\ncount = 3\ncompute = 1\n{STALENESS_CELL}placement = "edge"\n')
    # 5 MHz, 23 dBm, 7 + 2.1 * log10(50) dB, -174 dBm/Hz.
    snr = 10 ** ((23 - 7 - 2.1 * np.log10(50) + 174) / 10) / 5e6
    assert fleet.downlink_bps.tolist() == pytest.approx([5e6 * np.log2(1 + snr)] * 3)
    assert fleet.latency_s.tolist() == [0.0] * 3


def test_learners_spread_over_a_cell_have_better_rates_than_its_edge() -> None:
    lines = f"[[fleet.group]]\ncount = 500\ncompute = 1\n{STALENESS_CELL}"
    fleet = build(lines)
    channel = Channel(5e6, 23, path_loss="attenuation")
    assert len(set(fleet.downlink_bps)) == 500
    assert fleet.downlink_bps.min() >= channel.rate_bps(50.0)
    # Half of the disc's area is within its radius over the square root of two.
    median = float(np.median(fleet.downlink_bps))
    assert median == pytest.approx(float(channel.rate_bps(50 / np.sqrt(2))), rel=0.01)
    assert fleet.downlink_bps.tolist() == build(lines).downlink_bps.tolist()
    assert fleet.downlink_bps.tolist() != build("[fleet]\nseed = 9\n" + lines).downlink_bps.tolist()


def test_fading_lowers_the_rate_as_in_the_channel() -> None:
    text = f'[[fleet.group]]\ncount = 1\ncompute = 1\n{CELL}placement = "edge"\n'
    rates = [build(text + f'fading = "{kind}"\n').downlink_bps[0] for kind in ("rayleigh", "none")]
    channel = Channel(5e6, 23)
    assert rates == [float(channel.mean_rate_bps(50.0)), float(channel.rate_bps(50.0))]
    assert rates[0] < rates[1]


def test_in_a_cell_only_learners_with_bandwidth_bps_keep_it() -> None:
    fleet = build(
        f"""
        [[fleet.learner]]
        name = "wired"
        profile = "laptop"
        bandwidth_bps = 1e9
        [[fleet.learner]]
        name = "radio"
        profile = "laptop"
        [[fleet.learner]]
        name = "wired down"
        profile = "laptop"
        downlink_bps = 2e9
        {STALENESS_CELL}
        placement = "edge"
        """
    )
    rate = float(Channel(5e6, 23, path_loss="attenuation").rate_bps(50.0))
    assert fleet.downlink_bps.tolist() == [1e9, rate, 2e9]
    assert fleet.uplink_bps.tolist() == [1e9, rate, rate]
    assert fleet.latency_s.tolist() == [0.003] * 3


def test_a_spread_has_the_given_distribution() -> None:
    lines = 'profile = "phone"\nspread = {{ compute = 0.3, latency_s = 0.2, distribution = "{}" }}'
    values_by_key = {
        kind: build_group(50_000, lines.format(kind)) for kind in ("normal", "lognormal", "uniform")
    }
    for fleet in values_by_key.values():
        assert fleet.ops_per_s.std() / fleet.ops_per_s.mean() == pytest.approx(0.3, rel=0.02)
        assert fleet.latency_s.std() / fleet.latency_s.mean() == pytest.approx(0.2, rel=0.02)
    speed = {
        kind: fleet.ops_per_s / (0.3 * CORE_OPS_PER_S) for kind, fleet in values_by_key.items()
    }
    reach = np.sqrt(3) * 0.3
    assert 1 - reach < speed["uniform"].min() < speed["uniform"].max() < 1 + reach
    assert speed["normal"].max() < 2 < speed["lognormal"].max()


def test_a_spread_is_lognormal_by_default() -> None:
    lines = 'profile = "phone"\nspread = { compute = 0.3, latency_s = 0.2 }'
    explicit = lines.replace(" }", ', distribution = "lognormal" }')
    assert equal(build_group(9, lines), build_group(9, explicit))


def test_energy_is_read_from_the_table_and_0_by_default() -> None:
    fleet = build(
        """
        [[fleet.learner]]
        name = "a"
        profile = "laptop"
        [[fleet.group]]
        count = 2
        profile = "phone"
        energy = { sample_j = 0.02, byte_j = 1e-7 }
        """
    )
    assert fleet.sample_j.tolist() == [0.0, 0.02, 0.02]
    assert fleet.byte_j.tolist() == [0.0, 1e-7, 1e-7]


def test_learners_are_always_present_by_default() -> None:
    fleet = build_group(3)
    assert fleet.availability.joins_s.tolist() == [0.0] * 3
    assert fleet.availability.leaves_s.tolist() == [inf] * 3
    assert fleet.present_at_start.all()
    assert len(fleet.changes(1e9)) == 0


MIXED = """
[[fleet.learner]]
name = "zoe"
profile = "laptop"
state = [{ probability = 0.25, compute = 0.5 }, { probability = 0.75, bandwidth = 0.1 }]
[[fleet.learner]]
name = "adam"
profile = "desktop"
price = 3.0
[[fleet.group]]
count = 6
profile = "phone"
spread.compute = 0.3
[[fleet.group]]
count = 2
profile = "jetson-nano"
"""


def test_a_fleet_of_another_size_keeps_the_proportions_of_the_file() -> None:
    fleet = build(MIXED, 20)
    assert fleet.names[:5] == ("zoe-1", "zoe-2", "adam-1", "adam-2", "phone-01")
    assert fleet.names[-5:] == ("phone-12", *(f"jetson-nano-{n}" for n in range(1, 5)))
    assert fleet.price[:5].tolist() == [1.0, 1.0, 3.0, 3.0, 1.0]
    assert fleet.state_probability[:3].tolist() == [[0.25, 0.75], [0.25, 0.75], [1.0, 0.0]]
    assert len(set(fleet.ops_per_s[4:16])) == 12


def test_a_fleet_of_the_same_size_equals_that_of_the_file() -> None:
    assert equal(build(MIXED, 10), build(MIXED))


def test_a_smaller_fleet_omits_tables_and_draws_groups_with_their_new_counts() -> None:
    assert build(MIXED, 1).names == ("phone-1",)
    small = build(MIXED, 3)
    assert small.names == ("phone-1", "phone-2", "jetson-nano-1")
    alone = build(MIXED.replace("count = 6", "count = 2"))
    assert small.ops_per_s[:2].tolist() == alone.ops_per_s[2:4].tolist()


def test_a_group_without_a_name_keeps_its_number_when_others_are_omitted() -> None:
    text = "".join(
        f"[[fleet.group]]\ncount = {count}\ncompute = 1\nbandwidth_bps = 1e6\n" for count in (1, 9)
    )
    assert build(text, 2).names == ("group-2-1", "group-2-2")


def test_numbered_copies_of_a_learner_may_not_duplicate_a_name() -> None:
    text = "".join(f'[[fleet.learner]]\nname = "{n}"\nprofile = "phone"\n' for n in ("a", "a-1"))
    assert build(text).names == ("a", "a-1")
    with pytest.raises(SettingError, match="2 learners have the name 'a-1'"):
        build(text, 3)


@pytest.mark.parametrize("learners", [0, -3, 10_000_001])
def test_a_number_of_learners_out_of_range_is_an_error(tmp_path: Path, learners: int) -> None:
    path = tmp_path / "FLEET.toml"
    path.write_text(MIXED)
    with pytest.raises(SettingError, match=f"FLEET.toml: fleet: {learners} learners requested;"):
        read_fleet(path, learners)


def read_traced(folder: Path, lines: str, learners: int | None = None) -> Fleet:
    (folder / "FLEET.toml").write_text('[fleet]\ntrace = "phones.csv"\n' + MIXED)
    (folder / "phones.csv").write_text("learner,at_s,event\n" + lines)
    return read_fleet(folder / "FLEET.toml", learners)


def test_the_path_of_a_trace_is_relative_to_the_fleet_file(tmp_path: Path) -> None:
    fleet = read_traced(tmp_path, "phone-2,30,join\nadam,7,sleep\nadam,9,wake\n")
    assert np.flatnonzero(~fleet.present_at_start).tolist() == [fleet.names.index("phone-2")]
    changes = fleet.changes(100.0)
    assert changes.at_s.tolist() == [7.0, 9.0, 30.0]
    assert [fleet.names[learner] for learner in changes.learners] == ["adam", "adam", "phone-2"]


def test_errors_in_a_trace_name_both_files(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        read_traced(tmp_path, "phone-2,30,wake\n")
    file = f"{tmp_path}/FLEET.toml: fleet.trace: {tmp_path}/phones.csv: line 2"
    assert str(caught.value).startswith(f"{file}: wake is the event of 'phone-2' in its first line")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('[[fleet.learner]]\nname = "pi"', "learner[pi].bandwidth_trace"),
        ('[[fleet.group]]\nname = "phones"\ncount = 2', "group[phones].bandwidth_trace"),
        ("[[fleet.group]]\ncount = 2", "group[0].bandwidth_trace"),
    ],
)
def test_a_missing_bandwidth_trace_is_reported_with_its_key(
    tmp_path: Path, table: str, key: str
) -> None:
    file = tmp_path / "FLEET.toml"
    file.write_text(f'{table}\nprofile = "laptop"\nbandwidth_trace = "none.txt"\n')
    with pytest.raises(SettingError) as caught:
        read_fleet(file)
    missing = f"{tmp_path}/none.txt: no such file or directory"
    assert str(caught.value) == f"{file}: fleet.{key}: {missing}"


def test_a_trace_with_learners_that_a_smaller_fleet_lacks_is_an_error(tmp_path: Path) -> None:
    assert read_traced(tmp_path, "phone-6,30,join\n").learners == 10
    with pytest.raises(SettingError, match=r"line 2: unknown learner 'phone-6'; .* 3 were reque"):
        read_traced(tmp_path, "phone-6,30,join\n", learners=3)


def test_a_million_learners_are_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "FLEET.toml"
    path.write_text(
        f'[[fleet.learner]]\nname = "a"\nprofile = "laptop"\n[[fleet.group]]\ncount = 9\n{DRAWN}'
    )
    began_s = time.process_time()
    fleet = read_fleet(path, 1_000_000)
    assert time.process_time() - began_s < 10
    assert fleet.learners == len(set(fleet.names)) == 1_000_000


def test_sd_of_a_price_is_a_standard_deviation_and_not_a_variance() -> None:
    lines = "price = { mean = 10.0, sd = 0.5, low = 0.0, high = 20.0 }"
    price = build_group(20_000, f'profile = "phone"\n{lines}').price
    assert np.std(price) == pytest.approx(0.5, rel=0.03)
