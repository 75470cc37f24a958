"""Options and answers read the same durations."""

import json
from pathlib import Path

import pytest

from melisma.cli.durations import parse_duration
from melisma.cli.starter_files import parse_time
from tests.cli.command_line import melisma


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("0.5", 0.5),
        ("90 s", 90.0),
        ("10min", 600.0),
        ("10 minutes", 600.0),
        ("1.5 h", 5400.0),
        ("soon", None),
        ("10 m s", None),
        ("", None),
    ],
)
def test_a_duration_is_in_seconds_or_has_a_unit(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds
    if seconds is not None:
        assert parse_time(text).total_s == seconds


def test_the_total_time_of_a_run_may_have_a_unit() -> None:
    in_minutes = melisma("plan", "--json", "--total", "2 min")
    assert in_minutes.code == 0, in_minutes.stderr
    assert json.loads(in_minutes.stdout)["total_s"] == 120.0


@pytest.mark.parametrize("option", ["--total", "--deadline"])
def test_a_wrong_duration_is_named_with_examples(option: str) -> None:
    refused = melisma("plan", option, "10 days")
    expected = f"melisma: {option}: invalid duration '10 days'; expected seconds, 10min or 2h\n"
    assert refused == (2, "", expected)


def test_the_wait_for_devices_may_have_a_unit(tmp_path: Path) -> None:
    refused = melisma("orchestrate", str(tmp_path / "no.toml"), "--until-ready", "10 min")
    assert "no.toml" in refused.stderr


def test_options_of_axon_and_peers_take_the_same_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AXON_TOKEN", "sesame")
    assert melisma("axon", "token", "pi", "--lifetime", "2 h").code == 0
    for lifetime, problem in (("0", "--lifetime: 0 is too short"), ("inf", "lifetime_s is inf")):
        assert problem in melisma("axon", "token", "pi", "--lifetime", lifetime).stderr
    called = melisma("axon", "call", "127.0.0.1:1", "hello", "--deadline", "2min")
    assert "127.0.0.1:1" in called.stderr
    refused = melisma("peers", "simulate", "--patience", "1 ms")
    expected = "melisma: --patience: invalid duration '1 ms'; expected seconds, 10min or 2h\n"
    assert refused == (2, "", expected)
    refused = melisma("peers", "simulate", "--patience", "0")
    expected = "melisma: --patience: 0 is too short; expected at least 0.01 s\n"
    assert refused == (2, "", expected)
