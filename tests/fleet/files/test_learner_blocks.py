"""The learners of a table: profiles, spreads, states, prices, and what a group draws."""

from math import inf, nan

import numpy as np
import pytest

from melisma.fleet.files.learner_blocks import CORE_OPS_PER_S
from melisma.fleet.files.profiles import PROFILES
from tests.fleet.files.built_fleets import DRAWN, build, build_group, equal


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


def test_stressors_belong_to_the_states_of_each_learner() -> None:
    fleet = build(
        """
        [[fleet.learner]]
        name = "first"
        profile = "phone"
        state = [{ probability = 1.0, stress = "training" }]
        [[fleet.group]]
        count = 2
        profile = "phone"
        states = { compute = [1, 1, 1], bandwidth = [1, 1, 1], stress = ["", "own:f", "training"] }
        [[fleet.learner]]
        name = "last"
        profile = "phone"
        """
    )
    names = (*fleet.stressors, "")
    assert [[names[n] for n in row] for row in fleet.state_stress.tolist()] == [
        ["training", "", ""],
        ["", "", ""],
        *[["", "own:f", "training"]] * 2,
    ]
    assert names == ("own:f", "training", "")
    assert fleet.state_probabilities == "given"


@pytest.mark.parametrize(("heat", "likely"), [("1e-30", 1.0), ("1e-3", 1.0), ("1e30", 0.5)])
def test_the_lower_the_heat_the_more_likely_is_one_state(heat: str, likely: float) -> None:
    lines = f"states = {{ heat = {heat}, compute = [1, 0.5], bandwidth = [1, 1] }}"
    fleet = build_group(20, f'profile = "phone"\n{lines}')
    assert fleet.state_probability.max(axis=1).tolist() == pytest.approx([likely] * 20)


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


def test_sd_of_a_price_is_a_standard_deviation_and_not_a_variance() -> None:
    lines = "price = { mean = 10.0, sd = 0.5, low = 0.0, high = 20.0 }"
    price = build_group(20_000, f'profile = "phone"\n{lines}').price
    assert np.std(price) == pytest.approx(0.5, rel=0.03)
