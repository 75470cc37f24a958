from pathlib import Path

import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.fleet import read_fleet
from melisma.fleet.files.bandwidth_trace import read_bandwidth_trace

FLEET = """
[[fleet.learner]]
name = "a"
compute = 1
bandwidth_trace = "links/a.txt"
[[fleet.learner]]
name = "steady"
profile = "phone"
bandwidth_trace = "links/steady.txt"
[[fleet.group]]
name = "b"
count = 3
profile = "phone"
bandwidth_trace = "links/a.txt"
spread.bandwidth_bps = 0.5
"""


@pytest.fixture
def links(tmp_path: Path) -> Path:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.txt").write_text("# a walk\n0, 8, 2\n\n10,4,1  # a tunnel\n20 0 0\n")
    (tmp_path / "links" / "steady.txt").write_text("0 5")
    (tmp_path / "FLEET.toml").write_text(FLEET)
    return tmp_path


def test_a_trace_has_two_or_three_columns_and_comments(links: Path) -> None:
    trace = read_bandwidth_trace(links / "links" / "a.txt")
    assert trace.rows == ((0.0, 8e6, 2e6), (10.0, 4e6, 1e6), (20.0, 0.0, 0.0))
    assert trace.period_s == 30.0
    assert read_bandwidth_trace(links / "links" / "steady.txt").rows == ((0.0, 5e6, 5e6),)


def test_a_learner_with_a_trace_has_its_mean_rates(links: Path) -> None:
    fleet = read_fleet(links / "FLEET.toml")
    assert fleet.downlink_bps[:2].tolist() == [4e6, 5e6]
    assert fleet.uplink_bps[:2].tolist() == [1e6, 5e6]
    assert fleet.trace_ids.tolist() == [0, -1, 0, 0, 0]
    assert len(fleet.traces) == 1
    # The members of a group follow the same trace, each at its own scale.
    assert len(set(fleet.downlink_bps[2:])) == 3
    np.testing.assert_allclose(fleet.downlink_bps[2:] / fleet.uplink_bps[2:], 4.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no rates; expected lines of seconds, Mbit/s"),
        ("# empty\n", "no rates"),
        ("0 1\n5 x", "line 2: 'x'; expected a number of at least 0"),
        ("0 1\n5 -3", "line 2: '-3'; expected a number of at least 0"),
        ("0 nan", "line 1: 'nan'; expected a number"),
        ("0 inf", "line 1: 'inf'; expected a number"),
        ("seconds,mbps\n0,1", "line 1: 'seconds'; expected a number"),
        ("\n\n0", "line 3: 1 column; expected seconds, Mbit/s or seconds, downlink and uplink"),
        (
            "0;20",
            (
                "line 1: 1 column; expected seconds, Mbit/s or seconds, downlink and uplink in "
                "Mbit/s, separated by a comma or spaces"
            ),
        ),
        ("0 2e7", "line 1: 2e+07 Mbit/s; expected at most 100000; divide rates in bit/s by 1e6"),
        ("0 1 2 3", "line 1: 4 columns; expected"),
        ("0 1\n1 2 3", "line 2: 3 columns; expected seconds, Mbit/s"),
        ("0,,1", "line 1: ''; expected a number"),
        ("5 1", "line 1: the first line is at 5 s; expected 0"),
        ("0 1\n7 2\n7 3", "line 3: seconds are 7; expected more than 7"),
        ("0 0\n1 0", "the downlink is always 0; expected a rate above 0"),
        ("0 1 0\n1 2 0", "the uplink is always 0; expected a rate above 0"),
    ],
)
def test_an_invalid_file_is_reported_with_its_line(links: Path, content: str, message: str) -> None:
    path = links / "links" / "a.txt"
    path.write_text(content)
    with pytest.raises(SettingError) as error:
        read_bandwidth_trace(path)
    assert str(error.value).startswith(f"{path}: {message}")
    with pytest.raises(SettingError, match=r"FLEET\.toml: fleet\..*trace: .*a\.txt: "):
        read_fleet(links / "FLEET.toml")


def test_a_missing_file_is_an_error(links: Path) -> None:
    (links / "links" / "a.txt").unlink()
    with pytest.raises(SettingError, match=r"a\.txt: no such file"):
        read_fleet(links / "FLEET.toml")


@pytest.mark.parametrize("key", ["bandwidth_bps", "downlink_bps", "uplink_bps"])
def test_a_trace_and_a_rate_exclude_each_other(links: Path, key: str) -> None:
    path = links / "FLEET.toml"
    path.write_text(f'[[fleet.learner]]\nname = "a"\ncompute = 1\n{key} = 1\nbandwidth_trace = "x"')
    message = rf"fleet\.learner\[a\]: {key} has no effect beside bandwidth_trace; remove one"
    with pytest.raises(SettingError, match=message):
        read_fleet(path)
