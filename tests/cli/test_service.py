"""`melisma simulate` and `melisma compare` of several tasks, as users call them."""

import json
import re
from pathlib import Path

import pytest

from melisma.runs.report import Report
from melisma.runs.trace import read_trace
from tests.cli.command_line import Result, melisma

MED = Path(__file__).parents[2] / "examples" / "med"
TASKS = [str(MED / f"{name}.toml") for name in ("mnist-ff", "mnist-cn", "fashion")]
ARGUMENTS = [*TASKS, "--fleet", str(MED / "FLEET.toml"), "--work", "timing"]


def simulate(*options: str) -> Result:
    return melisma("simulate", *ARGUMENTS, *options)


def test_a_line_for_each_cycle_and_one_summary_of_all_tasks() -> None:
    code, out, _ = simulate()
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "mnist-ff, mnist-cn, fashion: med, 10 learners"
    for name in ("mnist-ff", "mnist-cn", "fashion"):
        assert sum(line.startswith(f"{name}, cycle ") for line in lines) == 5
    assert any(line.startswith("all tasks") for line in lines)
    assert "5 rounds, the most expensive for 161.8 of 300" in out
    assert re.search(r"^capacity used \d+%, lost: \w+", out, re.MULTILINE)
    assert "s simulated in" in lines[-1]


def test_json_has_the_figures_of_all_tasks_and_the_report_of_each() -> None:
    code, out, err = simulate("--json", "--scheme", "mmtt-ideal")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["scheme"] == "mmtt-ideal"
    assert [each["task"]["name"] for each in report["tasks"]] == ["mnist-ff", "mnist-cn", "fashion"]
    cycles = [cycle for each in report["tasks"] for cycle in each["cycles"]]
    for figure in ("cycle_s", "met_deadline", "fulfilment", "drop_rate", "occupancy"):
        assert all(figure in cycle for cycle in cycles)
    assert len(report["rounds"]) == 5


def test_out_has_a_run_folder_for_each_task(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert simulate("--out", str(out)).code == 0
    for folder in ("1-mnist-ff", "2-mnist-cn", "3-fashion"):
        report = Report.from_trace(read_trace(out / folder / "trace.jsonl"))
        assert report.outcome == "finished"
        assert (out / folder / "picture.svg").is_file()
    assert len((out / "service.jsonl").read_bytes().splitlines()) > 10


def test_a_task_that_has_no_plan_is_exit_code_1_and_named_with_what_would_be_enough(
    tmp_path: Path,
) -> None:
    hasty = tmp_path / "hasty.toml"
    hasty.write_text((MED / "fashion.toml").read_text().replace("40.0", "0.5"))
    code, out, _ = melisma(
        "simulate", *TASKS[:2], str(hasty), "--fleet", str(MED / "FLEET.toml"), "--work", "timing"
    )
    assert code == 1
    assert "fashion: failed: deadline_s cannot be met" in out
    assert "round 1: fashion waited: deadline_s cannot be met" in out
    assert "mnist-ff, cycle 5" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheme", "dab"], "scheme dab plans one task at a time"),
        (["--show", "3"], "--show lists the learners"),
        (["--deadline", "5"], "deadline_s = 5.0 is for one task"),
        (["--search-faults", "3", "--work", "timing"], "--search-faults is for one task"),
    ],
)
def test_options_of_one_task_are_wrong_usage(options: list[str], message: str) -> None:
    code, _, err = simulate(*options)
    assert code == 2
    assert message in err


def test_schemes_are_compared_by_the_five_metrics() -> None:
    names = ["--schemes", "med,mmtt,fifo", "--repetitions", "2", "--first-seed", "5"]
    code, out, err = melisma("compare", *ARGUMENTS, *names)
    assert code == 0
    assert out.startswith("mnist-ff, mnist-cn, fashion: seeds 5 to 6\n")
    for title in ("training", "satisfaction", "fulfilment", "dropped", "occupancy"):
        assert title in out
    for scheme in ("med", "mmtt", "fifo"):
        assert re.search(rf"^{scheme}: capacity used \d+%, lost: \w+", out, re.MULTILINE)
    assert err.count("seed 5") == 3
    values = json.loads(melisma("compare", *ARGUMENTS, *names, "--json").stdout)
    assert [each["scheme"] for each in values["schemes"]] == ["med", "mmtt", "fifo"]
    interval = values["schemes"][0]["figures"]["mean_cycle_s"]
    assert interval["half_width"] > 0


@pytest.mark.parametrize("option", [["--accuracy", "0.9"], ["--picture", "p.svg"]])
def test_options_that_compare_one_task_are_wrong_usage(option: list[str]) -> None:
    code, _, err = melisma("compare", *ARGUMENTS, "--schemes", "med", *option)
    assert code == 2
    assert f"{option[0]} is for one task, found 3" in err
