import time
import tomllib
from dataclasses import fields, is_dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.fleet.channel import Channel
from melisma.fleet.files.fleet_builder import CORE_OPS_PER_S, build_fleet, read_fleet
from melisma.fleet.files.fleet_file import FleetFile
from melisma.fleet.files.profiles import PROFILES
from melisma.fleet.fleet import Fleet

CELL = "[fleet.cell]\nradius_m = 50\nbandwidth_hz = 5e6\npower_dbm = 23\n"
STALENESS_CELL = CELL + 'path_loss = "attenuation"\nfading = "none"\n'


def fleet(text: str, learners: int | None = None) -> Fleet:
    return build_fleet(msgspec.convert(tomllib.loads(text), FleetFile).fleet, learners)


def group(count: int, lines: str = 'profile = "phone"', **settings: Any) -> Fleet:
    top = "".join(f"{key} = {value}\n" for key, value in settings.items())
    return fleet(f"[fleet]\n{top}[[fleet.group]]\ncount = {count}\n{lines}\n")


def test_singles_come_first_and_keep_their_order() -> None:
    found = fleet(
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
    assert found.names[:5] == ("zoe", "adam", "phone-1", "phone-2", "pi-01")
    assert found.names[-2:] == ("pi-12", "group-3-1")
    assert found.learners == 17
    assert found.bandwidth_bps[:5].tolist() == [150e6, 900e6, 15e6, 15e6, 40e6]
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, np.ndarray):
            assert len(value) == 17, field.name


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_what_a_device_of_that_name_can_do(name: str) -> None:
    found, profile = group(1, f'profile = "{name}"'), PROFILES[name]
    assert found.ops_per_s.tolist() == [profile.compute * CORE_OPS_PER_S]
    assert found.bandwidth_bps.tolist() == [profile.bandwidth_bps]
    assert found.latency_s.tolist() == [profile.latency_s]
    assert found.price.tolist() == [1.0]
    assert found.budget == float("inf")


def test_what_is_said_goes_before_the_profile() -> None:
    said = 'profile = "phone"\nbandwidth_bps = 7e6\nlatency_s = 0'
    found = group(1, said + "\ncompute = 2.0", core_ops_per_s=3e9)
    assert found.ops_per_s.tolist() == [6e9]
    assert found.bandwidth_bps.tolist() == [7e6]
    assert found.latency_s.tolist() == [0]


@pytest.mark.parametrize(
    ("said", "shard_s", "sample_s", "ops_per_s", "clock_hz"),
    [
        ("compute = 0.5", nan, nan, 0.5 * CORE_OPS_PER_S, nan),
        ("train_s = 3", 3.0, nan, nan, nan),
        ("samples_per_s = 40", nan, 1 / 40, nan, nan),
        ("clock_hz = 2e9", nan, nan, 2e9, 2e9),
        ("clock_hz = 2e9\ncycles_per_sample = 1e6", nan, 5e-4, 2e9, 2e9),
    ],
)
@pytest.mark.parametrize("before", ['profile = "phone"\n', "bandwidth_bps = 1e6\n"])
def test_speed_is_kept_as_it_was_said(
    before: str, said: str, shard_s: float, sample_s: float, ops_per_s: float, clock_hz: float
) -> None:
    found = group(1, before + said)
    got = [found.shard_s, found.sample_s, found.ops_per_s, found.clock_hz]
    expected = [[shard_s], [sample_s], [ops_per_s], [clock_hz]]
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-15)


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.8])
def test_a_spread_has_the_mean_and_the_deviation_asked_for(spread: float) -> None:
    said = f"{{ compute = {spread}, bandwidth_bps = {spread}, latency_s = {spread} }}"
    found = group(200_000, f'profile = "phone"\nspread = {said}')
    drawn = {
        "ops_per_s": found.ops_per_s / (0.3 * CORE_OPS_PER_S),
        "bandwidth_bps": found.bandwidth_bps / 15e6,
        "latency_s": found.latency_s / 0.030,
    }
    for values in drawn.values():
        assert values.min() > 0
        assert values.mean() == pytest.approx(1, abs=0.01)
        assert values.std() == pytest.approx(spread, rel=0.03, abs=1e-12)
    if spread:
        between = np.corrcoef(list(drawn.values())) - np.eye(3)
        assert np.abs(between).max() < 0.01


@pytest.mark.parametrize(
    ("said", "column"),
    [("train_s = 2.0", "shard_s"), ("samples_per_s = 0.5", "sample_s")],
)
def test_a_spread_of_compute_is_one_of_speed_however_speed_is_said(said: str, column: str) -> None:
    found = group(100_000, f"bandwidth_bps = 1e6\nspread.compute = 0.3\n{said}")
    speed = 2.0 / getattr(found, column)
    assert speed.mean() == pytest.approx(1, abs=0.01)
    assert speed.std() == pytest.approx(0.3, rel=0.03)


def test_clock_and_cycles_spread_together() -> None:
    found = group(
        9, "clock_hz = 1e9\ncycles_per_sample = 1e6\nbandwidth_bps = 1\nspread.compute = 1"
    )
    np.testing.assert_allclose(found.sample_s * found.clock_hz, 1e6)


def same(one: Any, other: Any) -> bool:
    if is_dataclass(one):
        names = [each.name for each in fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


DRAWN = """
profile = "phone"
spread = { compute = 0.3, bandwidth_bps = 0.5, latency_s = 0.2 }
price = { mean = 1.0 }
states = { compute = [1.0, 0.4], bandwidth = [1.0, 0.9] }
"""


def test_the_same_seed_gives_the_same_fleet_and_another_another_one() -> None:
    first, again, other = group(50, DRAWN, seed=3), group(50, DRAWN, seed=3), group(50, DRAWN)
    assert same(first, again)
    for column in ("ops_per_s", "bandwidth_bps", "latency_s", "price", "state_probability"):
        assert not np.array_equal(getattr(first, column), getattr(other, column)), column


def test_a_group_is_drawn_alike_whatever_singles_stand_beside_it() -> None:
    alone = group(5, DRAWN)
    beside = fleet(
        f'[[fleet.learner]]\nname = "a"\nprofile = "laptop"\n[[fleet.group]]\ncount = 5\n{DRAWN}'
    )
    assert beside.ops_per_s[1:].tolist() == alone.ops_per_s.tolist()
    assert beside.price[1:].tolist() == alone.price.tolist()


def test_two_groups_are_drawn_apart() -> None:
    both = fleet("".join(f'[[fleet.group]]\ncount = 5\nname = "{n}"{DRAWN}' for n in "ab"))
    assert not np.any(both.ops_per_s[:5] == both.ops_per_s[5:])


def test_states_are_the_softmax_of_the_study() -> None:
    factors = "compute = [1.0, 0.4, 0.9], bandwidth = [1.0, 0.9, 0.3]"
    found = group(3000, f'profile = "jetson-nano"\nstates = {{ heat = 0.5, {factors} }}')
    np.testing.assert_allclose(
        np.sort(found.state_probability)[:, ::-1], [[0.787, 0.107, 0.107]] * 3000, 1e-2
    )
    np.testing.assert_allclose(found.state_probability.sum(axis=1), 1.0)
    assert found.state_compute[7].tolist() == [1.0, 0.4, 0.9]
    assert found.state_bandwidth[7].tolist() == [1.0, 0.9, 0.3]
    likely = np.bincount(found.state_probability.argmax(axis=1)) / 3000
    assert likely.tolist() == pytest.approx([1 / 3] * 3, abs=0.04)


@pytest.mark.parametrize(("heat", "likely"), [("1e-30", 1.0), ("1e-3", 1.0), ("1e30", 0.5)])
def test_the_lower_the_heat_the_more_likely_is_one_state(heat: str, likely: float) -> None:
    said = f"states = {{ heat = {heat}, compute = [1, 0.5], bandwidth = [1, 1] }}"
    found = group(20, f'profile = "phone"\n{said}')
    assert found.state_probability.max(axis=1).tolist() == pytest.approx([likely] * 20)


def test_learners_with_fewer_states_have_others_that_never_happen() -> None:
    found = fleet(
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
    assert found.state_probability.tolist() == [[1.0, 0.0], [0.25, 0.75]]
    assert found.state_compute.tolist() == [[1.0, 1.0], [0.5, 1.0]]
    assert found.state_bandwidth.tolist() == [[1.0, 1.0], [1.0, 0.1]]


def test_prices_are_drawn_and_cut_to_their_range() -> None:
    said = "price = { mean = 1.0, sd = 0.5, low = 0.1, high = 1.5 }"
    price = group(20_000, f'profile = "phone"\n{said}').price
    assert (price.min(), price.max()) == (0.1, 1.5)
    assert np.mean(price == 1.5) == pytest.approx(0.159, abs=0.01)
    assert np.median(price) == pytest.approx(1.0, abs=0.02)
    assert group(3, 'profile = "phone"\nprice = 2.5').price.tolist() == [2.5] * 3


def test_at_the_edge_of_the_staleness_papers_cell_is_the_papers_rate() -> None:
    found = fleet(f'[[fleet.group]]\ncount = 3\ncompute = 1\n{STALENESS_CELL}placement = "edge"\n')
    # 5 MHz, 23 dBm, 7 + 2.1 * log10(50) dB, -174 dBm/Hz.
    snr = 10 ** ((23 - 7 - 2.1 * np.log10(50) + 174) / 10) / 5e6
    assert found.bandwidth_bps.tolist() == pytest.approx([5e6 * np.log2(1 + snr)] * 3)
    assert found.latency_s.tolist() == [0.0] * 3


def test_learners_spread_over_a_cell_have_better_rates_than_its_edge() -> None:
    lines = f"[[fleet.group]]\ncount = 500\ncompute = 1\n{STALENESS_CELL}"
    found = fleet(lines)
    channel = Channel(5e6, 23, path_loss="attenuation")
    assert len(set(found.bandwidth_bps)) == 500
    assert found.bandwidth_bps.min() >= channel.rate_bps(50.0)
    # Half of the disc's area is within its radius over the square root of two.
    median = float(np.median(found.bandwidth_bps))
    assert median == pytest.approx(float(channel.rate_bps(50 / np.sqrt(2))), rel=0.01)
    assert found.bandwidth_bps.tolist() == fleet(lines).bandwidth_bps.tolist()
    assert (
        found.bandwidth_bps.tolist() != fleet("[fleet]\nseed = 9\n" + lines).bandwidth_bps.tolist()
    )


def test_fading_costs_as_the_channel_says() -> None:
    text = f'[[fleet.group]]\ncount = 1\ncompute = 1\n{CELL}placement = "edge"\n'
    rates = [fleet(text + f'fading = "{kind}"\n').bandwidth_bps[0] for kind in ("rayleigh", "none")]
    channel = Channel(5e6, 23)
    assert rates == [float(channel.mean_rate_bps(50.0)), float(channel.rate_bps(50.0))]
    assert rates[0] < rates[1]


def test_in_a_cell_the_radio_decides_but_for_who_names_a_bandwidth() -> None:
    found = fleet(
        f"""
        [[fleet.learner]]
        name = "wired"
        profile = "laptop"
        bandwidth_bps = 1e9
        [[fleet.learner]]
        name = "radio"
        profile = "laptop"
        {STALENESS_CELL}
        placement = "edge"
        """
    )
    rate = float(Channel(5e6, 23, path_loss="attenuation").rate_bps(50.0))
    assert found.bandwidth_bps.tolist() == [1e9, rate]
    assert found.latency_s.tolist() == [0.003] * 2


def test_a_spread_is_of_the_distribution_asked_for() -> None:
    said = 'profile = "phone"\nspread = {{ compute = 0.3, latency_s = 0.2, distribution = "{}" }}'
    drawn = {kind: group(50_000, said.format(kind)) for kind in ("normal", "lognormal", "uniform")}
    for found in drawn.values():
        assert found.ops_per_s.std() / found.ops_per_s.mean() == pytest.approx(0.3, rel=0.02)
        assert found.latency_s.std() / found.latency_s.mean() == pytest.approx(0.2, rel=0.02)
    speed = {kind: found.ops_per_s / (0.3 * CORE_OPS_PER_S) for kind, found in drawn.items()}
    reach = np.sqrt(3) * 0.3
    assert 1 - reach < speed["uniform"].min() < speed["uniform"].max() < 1 + reach
    assert speed["normal"].max() < 2 < speed["lognormal"].max()


def test_a_spread_is_log_normal_unless_said() -> None:
    said = 'profile = "phone"\nspread = { compute = 0.3, latency_s = 0.2 }'
    explicit = said.replace(" }", ', distribution = "lognormal" }')
    assert same(group(9, said), group(9, explicit))


def test_energy_is_that_of_the_table_and_else_nothing() -> None:
    found = fleet(
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
    assert found.sample_j.tolist() == [0.0, 0.02, 0.02]
    assert found.byte_j.tolist() == [0.0, 1e-7, 1e-7]


def test_who_says_nothing_of_it_is_always_there() -> None:
    found = group(3)
    assert found.availability.joins_s.tolist() == [0.0] * 3
    assert found.availability.leaves_s.tolist() == [inf] * 3
    assert found.present_at_start.all()
    assert len(found.changes(1e9)) == 0


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


def test_a_fleet_of_another_size_has_the_proportions_of_the_file() -> None:
    found = fleet(MIXED, 20)
    assert found.names[:5] == ("zoe-1", "zoe-2", "adam-1", "adam-2", "phone-01")
    assert found.names[-5:] == ("phone-12", *(f"jetson-nano-{n}" for n in range(1, 5)))
    assert found.price[:5].tolist() == [1.0, 1.0, 3.0, 3.0, 1.0]
    assert found.state_probability[:3].tolist() == [[0.25, 0.75], [0.25, 0.75], [1.0, 0.0]]
    assert len(set(found.ops_per_s[4:16])) == 12


def test_a_fleet_of_the_size_of_the_file_is_that_of_the_file() -> None:
    assert same(fleet(MIXED, 10), fleet(MIXED))


def test_a_smaller_fleet_leaves_some_out_and_draws_its_groups_as_if_they_were_all() -> None:
    assert fleet(MIXED, 1).names == ("phone-1",)
    small = fleet(MIXED, 3)
    assert small.names == ("phone-1", "phone-2", "jetson-nano-1")
    alone = fleet(MIXED.replace("count = 6", "count = 2"))
    assert small.ops_per_s[:2].tolist() == alone.ops_per_s[2:4].tolist()


def test_a_group_without_a_name_keeps_its_number_when_others_are_left_out() -> None:
    text = "".join(
        f"[[fleet.group]]\ncount = {count}\ncompute = 1\nbandwidth_bps = 1e6\n" for count in (1, 9)
    )
    assert fleet(text, 2).names == ("group-2-1", "group-2-2")


def test_a_single_that_is_numbered_may_not_meet_another_of_that_name() -> None:
    text = "".join(f'[[fleet.learner]]\nname = "{n}"\nprofile = "phone"\n' for n in ("a", "a-1"))
    assert fleet(text).names == ("a", "a-1")
    with pytest.raises(SettingError, match="2 learners are called 'a-1'"):
        fleet(text, 3)


@pytest.mark.parametrize("learners", [0, -3, 10_000_001])
def test_a_fleet_of_nobody_is_refused(tmp_path: Path, learners: int) -> None:
    path = tmp_path / "FLEET.toml"
    path.write_text(MIXED)
    with pytest.raises(SettingError, match=f"FLEET.toml: fleet: {learners} learners requested;"):
        read_fleet(path, learners)


def traced(folder: Path, lines: str, learners: int | None = None) -> Fleet:
    (folder / "FLEET.toml").write_text('[fleet]\ntrace = "phones.csv"\n' + MIXED)
    (folder / "phones.csv").write_text("learner,at_s,event\n" + lines)
    return read_fleet(folder / "FLEET.toml", learners)


def test_a_trace_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    found = traced(tmp_path, "phone-2,30,join\nadam,7,sleep\nadam,9,wake\n")
    assert np.flatnonzero(~found.present_at_start).tolist() == [found.names.index("phone-2")]
    changes = found.changes(100.0)
    assert changes.at_s.tolist() == [7.0, 9.0, 30.0]
    assert [found.names[learner] for learner in changes.learners] == ["adam", "adam", "phone-2"]


def test_what_is_wrong_with_a_trace_is_said_with_both_files(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        traced(tmp_path, "phone-2,30,wake\n")
    said = f"{tmp_path}/FLEET.toml: fleet: {tmp_path}/phones.csv: line 2: 'phone-2' has wake first"
    assert str(caught.value).startswith(said)


def test_a_trace_of_learners_that_another_size_does_not_have_is_refused(tmp_path: Path) -> None:
    assert traced(tmp_path, "phone-6,30,join\n").learners == 10
    with pytest.raises(
        SettingError, match=r"line 2: no learner is called 'phone-6'; .* 3 were ask"
    ):
        traced(tmp_path, "phone-6,30,join\n", learners=3)


def test_a_million_learners_are_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "FLEET.toml"
    path.write_text(
        f'[[fleet.learner]]\nname = "a"\nprofile = "laptop"\n[[fleet.group]]\ncount = 9\n{DRAWN}'
    )
    began_s = time.process_time()
    found = read_fleet(path, 1_000_000)
    assert time.process_time() - began_s < 10
    assert found.learners == len(set(found.names)) == 1_000_000


def test_sd_of_a_price_is_a_standard_deviation_and_not_a_variance() -> None:
    said = "price = { mean = 10.0, sd = 0.5, low = 0.0, high = 20.0 }"
    price = group(20_000, f'profile = "phone"\n{said}').price
    assert np.std(price) == pytest.approx(0.5, rel=0.03)
