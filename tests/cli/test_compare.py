"""`melisma compare` as its user calls it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from melisma.cli.compare import command
from melisma.errors import MelismaWarning, SettingError
from melisma.simulation.faults import parse_faults
from tests.live import tiny_task

TASK = """
[task]
name = "blobs"
model = "tiny_task:Linear"
data = "tiny_task:blobs"
passes = 2
deadline_s = 2.0
cycles = 3
shard_samples = 50
optimizer = { name = "sgd", lr = 0.003 }
simulation = { work = "train" }
"""
FLEET = """
[[fleet.group]]
name = "slow"
count = 2
samples_per_s = 200.0
bandwidth_bps = 1e6
spread = { compute = 0.5 }

[[fleet.learner]]
name = "quick"
samples_per_s = 800.0
bandwidth_bps = 1e6
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task, a fleet, and a model of one's own beside them."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def compare(*options: str) -> Result:
    return CliRunner().invoke(command, ["task.toml", "--fleet", "fleet.toml", *options])


def parsed(text: str) -> dict[str, Any]:
    """One JSON object, without the NaN and Infinity that JSON does not know."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(text, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def test_it_prints_a_row_a_scheme_and_who_was_first(place: Path) -> None:
    result = compare("--schemes", "dab, equal,staleness", "--seeds", "2")
    assert result.exit_code == 0, result.output
    assert len(result.stderr.splitlines()) == 6
    assert re.match(r"dab, seed 0: [\d.]+ s, accuracy [\d.]+%\n", result.stderr)
    head, titles, *rest = result.stdout.splitlines()
    assert head == "blobs: 3 cycles of 2 s, seeds 0 to 1"
    assert titles.split()[:3] == ["scheme", "to", "accuracy"]
    assert [line.split()[0] for line in rest[:3]] == ["dab", "equal", "staleness"]
    assert re.search(
        r"target accuracy [\d.]+%: the lowest final accuracy of all runs", result.stdout
    )
    assert re.search(r"\w+ reached [\d.]+% first, after [\d.]+ s on average; \w+", rest[-1])


@pytest.mark.parametrize("faults", ["crash 1 at 1", "5"])
def test_faults_are_told(place: Path, faults: str) -> None:
    asked = ("--schemes", "dab", "--seeds", "1", "--work", "timing", "--faults", faults)
    words = parsed(compare(*asked, "--json").stdout)["faults"]
    # Those that a number draws are told one by one, so that they can be had again.
    assert parse_faults(words, learners=3)
    assert (words == faults) == (faults != "5")
    text = " ".join(compare(*asked).stdout.split())
    assert f"with faults ({words}) in every run" in text


def test_without_training_no_column_is_about_accuracy(place: Path) -> None:
    result = compare("--schemes", "equal,staleness", "--seeds", "2", "--work", "timing")
    assert result.exit_code == 0, result.output
    assert "no accuracy: nothing is trained" in result.stdout
    assert "to accuracy" not in result.stdout
    assert re.search(r"\w+ finished first", result.stdout)


def test_one_seed_has_no_interval_and_says_so(place: Path) -> None:
    result = compare("--schemes", "dab,equal", "--seeds", "1", "--work", "timing")
    assert "one seed, so no confidence intervals" in result.stdout
    assert " ± ? s" in result.stdout
    assert "one seed shows no significance" in result.stdout


def test_who_never_gets_there_is_told(place: Path) -> None:
    result = compare("--schemes", "dab,equal", "--seeds", "2", "--accuracy", "1.0")
    assert result.exit_code == 0
    assert result.stdout.count(" never ") == 2
    assert "no scheme reached 100.00%" in result.stdout


def test_json_is_the_same_byte_for_byte(place: Path) -> None:
    options = ("--schemes", "dab,staleness", "--seeds", "2", "--first-seed", "7", "--json")
    one, other = compare(*options), compare(*options)
    assert one.stdout == other.stdout
    assert one.stderr == ""
    found = parsed(one.stdout)
    assert found["seeds"] == [7, 8]
    first, second = found["schemes"]
    assert [run["seed"] for run in first["runs"]] == [7, 8]
    assert first["differences"]["training_s"] == {
        "mean": 0,
        "half_width": 0,
        "known": 2,
        "count": 2,
    }
    assert second["figures"]["accuracy_s"]["known"] == 2
    assert found["lead"]["figure"] == "accuracy_s"


def test_if_every_run_fails_it_ends_with_1_and_the_reasons(place: Path) -> None:
    (place / "task.toml").write_text(TASK.replace("deadline_s = 2.0", "deadline_s = 0.001"))
    result = compare("--schemes", "dab,staleness", "--seeds", "2", "--work", "timing")
    assert result.exit_code == 1
    assert re.search(r"^staleness: 2 of 2 failed; seed 0: .+", result.stdout, re.MULTILINE)
    assert result.stdout.endswith("every run failed\n")


def test_a_picture_is_drawn(place: Path) -> None:
    result = compare("--schemes", "dab,equal", "--seeds", "2", "--picture", "found.svg")
    assert "picture  found.svg" in result.stdout
    assert ET.parse(place / "found.svg").getroot().tag.endswith("svg")


def no_picture(*_: object) -> object:
    raise ZeroDivisionError("a scale without a span")


def test_a_picture_that_cannot_be_drawn_does_not_cost_the_table(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("melisma.cli.compare.draw_comparison", no_picture)
    with pytest.warns(MelismaWarning, match=r"cannot draw found\.svg: ZeroDivisionError"):
        result = compare("--schemes", "dab,equal", "--work", "timing", "--picture", "found.svg")
    assert result.exit_code == 0
    assert "dab" in result.stdout
    assert "found.svg" not in result.stdout
    assert not (place / "found.svg").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--schemes", "feel"), "expected one of equal, proportional"),
        (("--schemes", "dab,dab"), "named twice"),
        (("--schemes", "dab,"), "'' is unknown"),
        (("--schemes", "dab", "--accuracy", "2"), "at most 1"),
        (("--schemes", "dab", "--picture", "nowhere/found.svg"), "--picture is nowhere"),
        (("--schemes", "dab", "--faults", "nonsense"), "invalid fault"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    place: Path, options: tuple[str, ...], said: str
) -> None:
    result = compare(*options)
    assert isinstance(result.exception, SettingError)
    assert said in str(result.exception)


def test_missing_passes_name_file_and_key(place: Path) -> None:
    (place / "task.toml").write_text(TASK.replace("passes = 2\n", ""))
    result = compare("--schemes", "staleness,dab")
    assert str(result.exception).startswith("task.toml: task: passes is missing; scheme dab")


def test_schemes_that_choose_passes_are_compared_with_those_that_let_speed_choose(
    place: Path,
) -> None:
    (place / "task.toml").write_text(TASK.replace("passes = 2\n", ""))
    schemes = "staleness,equal,proportional,synchronous"
    result = compare("--schemes", schemes, "--seeds", "1", "--work", "timing", "--json")
    assert result.exit_code == 0, result.exception
    assert {each["scheme"] for each in parsed(result.stdout)["schemes"]} == set(schemes.split(","))


def test_faults_happen_to_every_run(place: Path) -> None:
    options = ("--schemes", "equal", "--seeds", "2", "--work", "timing", "--json")
    well, ill = (
        parsed(compare(*options, *more).stdout) for more in ((), ("--faults", "crash 2 at 0.5"))
    )
    trained = [each["schemes"][0]["figures"]["samples_trained"]["mean"] for each in (well, ill)]
    assert trained[1] < trained[0]
