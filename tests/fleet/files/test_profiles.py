"""Test that the fleet page lists every profile with its values."""

import re
from pathlib import Path

from melisma.fleet.files.profiles import PROFILES

PAGE = Path(__file__).parents[3] / "docs" / "fleet" / "index.md"


def test_the_documented_table_of_profiles_matches_the_code() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (\d.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name: row for name, row in rows if row.count("|") == 3} == {
        name: f"{p.compute:g} | {p.downlink_bps / 1e6:g} | {1000 * p.latency_s:g} | {p.description}"
        for name, p in PROFILES.items()
    }
    assert all(profile.uplink_bps == profile.downlink_bps for profile in PROFILES.values())
