"""A fleet: its order, its radio cell, its traces, and its size."""

import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.fleet.channel import Channel
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.fleet import Fleet
from tests.fleet.files.built_fleets import DRAWN, build, equal

CELL = "[fleet.cell]\nradius_m = 50\nbandwidth_hz = 5e6\npower_dbm = 23\n"


STALENESS_CELL = CELL + 'path_loss = "attenuation"\nfading = "none"\n'


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
