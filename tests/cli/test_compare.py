"""`melisma compare` as users call it."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from melisma.cli.compare import command
from melisma.errors import MelismaWarning, SettingError
from melisma.simulation.comparison.compared_run import ComparedRun
from melisma.simulation.comparison.comparison import Comparison
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import parse_faults
from tests.cli.command_line import parse_json
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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a task, a fleet, and the user's model."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def compare(*options: str) -> Result:
    return CliRunner().invoke(command, ["task.toml", "--fleet", "fleet.toml", *options])


def test_a_comparison_prints_a_row_per_scheme_and_whether_one_leads() -> None:
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
    assert re.fullmatch(
        r"no scheme leads: the time to the target accuracy of \w+ and \w+ differs by "
        r"[\d.]+ ± [\d.]+ s on the same seeds, not significant",
        rest[-1].strip(),
    )


@pytest.mark.parametrize("faults", ["crash 1 at 1", "5"])
def test_faults_are_printed(faults: str) -> None:
    options = ("--schemes", "dab", "--seeds", "1", "--work", "timing", "--faults", faults)
    printed = parse_json(compare(*options, "--json").stdout)["faults"]
    # Faults drawn by a number are listed, so that a run can be repeated with them.
    assert parse_faults(printed, FaultTargets(3, ("quick", "slow-1", "slow-2")))
    assert (printed == faults) == (faults != "5")
    text = " ".join(compare(*options).stdout.split())
    assert f"with faults ({printed}) in every run" in text


def test_without_training_there_is_no_column_of_accuracy() -> None:
    result = compare("--schemes", "equal,staleness", "--seeds", "2", "--work", "timing")
    assert result.exit_code == 0, result.output
    assert "no accuracy: nothing is trained" in result.stdout
    assert "to accuracy" not in result.stdout
    # With extension every scheme trains until the deadline, so their rates are compared.
    assert "visits/s" in result.stdout.splitlines()[-1]
    assert "time in cycles" not in result.stdout
    assert {"capacity", "outside"} <= set(result.stdout.split())
    assert "cost" not in result.stdout


def test_one_seed_has_no_confidence_interval() -> None:
    result = compare("--schemes", "dab,equal", "--seeds", "1", "--work", "timing")
    assert "one seed, so no confidence intervals" in result.stdout
    assert " ± ? s" in result.stdout
    assert "one seed shows no significance" in result.stdout


def test_schemes_that_never_reach_the_accuracy_are_marked() -> None:
    result = compare("--schemes", "dab,equal", "--seeds", "2", "--accuracy", "1.0")
    assert result.exit_code == 0
    assert result.stdout.count(" never ") == 2
    assert "no scheme reached 100.00%" in result.stdout


def test_the_same_seeds_give_the_same_json_byte_for_byte() -> None:
    options = ("--schemes", "dab,staleness", "--seeds", "2", "--first-seed", "7", "--json")
    result, again = compare(*options), compare(*options)
    assert result.stdout == again.stdout
    assert result.stderr == ""
    report = parse_json(result.stdout)
    assert report["seeds"] == [7, 8]
    first, second = report["schemes"]
    assert [run["seed"] for run in first["runs"]] == [7, 8]
    assert first["differences"]["training_s"] == {
        "mean": 0,
        "half_width": 0,
        "known": 2,
        "count": 2,
    }
    assert second["figures"]["accuracy_s"]["known"] == 2
    assert report["lead"]["figure"] == "accuracy_s"


def test_if_every_run_fails_it_ends_with_1_and_the_reasons(folder: Path) -> None:
    (folder / "task.toml").write_text(TASK.replace("deadline_s = 2.0", "deadline_s = 0.001"))
    result = compare("--schemes", "dab,staleness", "--seeds", "2", "--work", "timing")
    assert result.exit_code == 1
    assert re.search(r"^staleness: 2 of 2 failed; seed 0: .+", result.stdout, re.MULTILINE)
    assert result.stdout.endswith("every run failed\n")


def test_a_picture_is_drawn(folder: Path) -> None:
    result = compare("--schemes", "dab,equal", "--seeds", "2", "--picture", "comparison.svg")
    assert "picture  comparison.svg" in result.stdout
    assert ET.parse(folder / "comparison.svg").getroot().tag.endswith("svg")


def fail_to_draw(*_: object) -> object:
    raise ZeroDivisionError("a scale without a span")


def test_the_table_is_printed_if_the_picture_cannot_be_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "plot", fail_to_draw)
    with pytest.warns(MelismaWarning, match=r"cannot draw comparison\.svg: ZeroDivisionError"):
        result = compare(
            "--schemes", "dab,equal", "--work", "timing", "--picture", "comparison.svg"
        )
    assert result.exit_code == 0
    assert "dab" in result.stdout
    assert "comparison.svg" not in result.stdout
    assert not (folder / "comparison.svg").exists()


def test_ctrl_c_prints_the_table_of_the_finished_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(run: ComparedRun) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("melisma.cli.compare.run_line", press)
    result = compare("--schemes", "dab,equal", "--seeds", "2", "--work", "timing")
    assert result.exit_code == 130
    assert "interrupted: 1 of 4 runs have finished" in result.stdout
    assert re.search(r"^dab +\d", result.stdout, re.MULTILINE)
    assert result.stdout.endswith("interrupted before every scheme had a run on the same seed\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--schemes", "feel"), "expected one of equal, proportional"),
        (("--schemes", "dab,dab"), "named twice"),
        (("--schemes", "dab,"), "'' is unknown"),
        (("--schemes", "dab", "--accuracy", "2"), "at most 1"),
        (("--schemes", "dab", "--picture", "nowhere/comparison.svg"), "--picture is nowhere"),
        (("--schemes", "dab", "--faults", "nonsense"), "invalid fault"),
    ],
)
def test_mistakes_are_refused_before_any_run(options: tuple[str, ...], message: str) -> None:
    result = compare(*options)
    assert isinstance(result.exception, SettingError)
    assert message in str(result.exception)


def test_missing_passes_name_file_and_key(folder: Path) -> None:
    (folder / "task.toml").write_text(TASK.replace("passes = 2\n", ""))
    result = compare("--schemes", "staleness,dab")
    assert str(result.exception).startswith("task.toml: task: passes is missing; scheme dab")


def test_a_task_without_passes_compares_schemes_that_choose_them(
    folder: Path,
) -> None:
    (folder / "task.toml").write_text(TASK.replace("passes = 2\n", ""))
    schemes = "staleness,equal,proportional,synchronous"
    result = compare("--schemes", schemes, "--seeds", "1", "--work", "timing", "--json")
    assert result.exit_code == 0, result.exception
    assert {scheme["scheme"] for scheme in parse_json(result.stdout)["schemes"]} == set(
        schemes.split(",")
    )


def test_faults_happen_to_every_run() -> None:
    options = ("--schemes", "equal", "--seeds", "2", "--work", "timing", "--json")
    trained, trained_with_faults = (
        parse_json(compare(*options, *faults).stdout)["schemes"][0]["figures"]["visits_counted"]
        for faults in ((), ("--faults", "crash 2 at 0.5"))
    )
    assert trained_with_faults["mean"] < trained["mean"]


def test_without_files_the_default_task_and_fleet_are_compared() -> None:
    options = ("--schemes", "equal,dab", "--seeds", "1", "--work", "timing")
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("digits: 6 cycles of 6 s, seed 0\n")
