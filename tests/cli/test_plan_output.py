"""Exit codes, and output that is no terminal of eighty columns in UTF-8."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.schemes import SCHEMES, PlanInputs, Scheme
from melisma.cli import plan_report
from melisma.errors import InfeasibleError
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.task import read_task
from tests.cli.test_plan import (
    CELL,
    CLUSTER,
    EXAMPLES,
    MED,
    NODES,
    Plan,
    arguments,
    edited,
    group,
    parsed,
    plan,
)

__all__ = ["plan"]
MAIN = "from melisma.cli import main; main()"
PAGE = EXAMPLES.parent / "docs" / "allocation" / "plan.md"


def process(*options: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """`melisma plan` in a process of its own, with other variables in its environment."""
    environment = {**os.environ, **settings.pop("variables", {})}
    main = settings.pop("main", MAIN)
    command = [sys.executable, "-W", "error", "-c", main, "plan", *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.run(
        command, text=True, env=environment, check=False, timeout=60, encoding="utf-8", **streams
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_plan_that_is_late_is_exit_code_1(plan: Plan, options: list[str]) -> None:
    assert plan(*arguments(*CLUSTER), "--scheme", "equal", *options)[0] == 1
    assert plan(*arguments(*CLUSTER), "--scheme", "proportional", *options)[0] == 0
    assert plan(*arguments(*CLUSTER), "--all", *options)[0] == 0


def test_a_plan_on_one_state_that_is_late_when_expected_is_exit_code_1(
    plan: Plan, tmp_path: Path
) -> None:
    fashion = edited(tmp_path / "fashion.toml", MED[0], deadline_s="14.0")
    files = arguments(fashion, *MED[1:])
    assert plan(*files, "--scheme", "med")[0] == 0
    code, out, _ = plan(*files, "--scheme", "mmtt")
    assert code == 1
    assert re.search(
        r"^\w+ is expected to finish after \d+.\d\d s, past its deadline of", out, re.MULTILINE
    )
    assert parsed(plan(*files, "--scheme", "mmtt", "--json")[1])["keeps_deadline"] is False
    assert re.search(
        r"^mmtt: \w+ is expected to finish after", plan(*files, "--all")[1], re.MULTILINE
    )


def test_a_cell_without_a_round_by_the_deadline_is_exit_code_1(plan: Plan, tmp_path: Path) -> None:
    task = edited(tmp_path / "TASK.toml", CELL[0], deadline_s="2.0")
    code, out, _ = plan(*arguments(task, CELL[1]))
    assert code == 1
    assert out.endswith("no round finishes by 2 s\n")
    code, out, _ = plan(*arguments(task, CELL[1]), "--all")
    assert code == 0  # `online` has one
    assert "feel: no round finishes by 2 s" in out


def test_a_cost_over_the_budget_is_said_and_exit_code_1(plan: Plan, tmp_path: Path) -> None:
    fleet = group(tmp_path / "FLEET.toml", 4, "price = 2.5")
    fleet.write_text("fleet.budget = 299\n" + fleet.read_text())
    code, out, _ = plan(*arguments(CLUSTER[0], fleet), "--scheme", "proportional")
    assert code == 1
    assert "cost 300.0 is over the budget of 299" in out
    _, out, _ = plan(*arguments(CLUSTER[0], fleet), "--all")
    assert "synchronous: cost 300.0 is over the budget of 299" in out
    report = parsed(plan(*arguments(CLUSTER[0], fleet), "--scheme", "equal", "--json")[1])
    assert (report["cost"], report["budget"], report["keeps_budget"]) == (300, 299, False)


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_an_ascii_terminal_gets_ascii(tmp_path: Path, options: list[str]) -> None:
    fleet = tmp_path / "FLEET.toml"
    fleet.write_text('[[fleet.learner]]\nname = "küche"\nprofile = "phone"\n', encoding="utf-8")
    found = process(
        *arguments(CLUSTER[0], fleet), *options, variables={"PYTHONIOENCODING": "ascii"}
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.isascii()
    if not options:
        assert "k\\xfcche" in found.stdout
        assert "==== |" in found.stdout


@pytest.mark.parametrize("options", [[], ["--all"], ["--json"]])
def test_a_full_disk_is_one_line_and_exit_code_1(options: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        found = process(*arguments(*CLUSTER), *options, stdout=full)
    assert found.returncode == 1
    assert found.stderr == "melisma: standard output: No space left on device\n"


@pytest.mark.parametrize("options", [[], ["--all"], ["--json"]])
def test_a_pipe_that_is_closed_is_no_error(options: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    found = process(*arguments(*CLUSTER), *options, stdout=writer)
    os.close(writer)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("files", [CLUSTER, NODES, CELL, MED], ids=lambda files: files[0])
@pytest.mark.parametrize("columns", ["0", "1", "20", "39", "nonsense"])
def test_no_terminal_is_too_narrow(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for options in ([], ["--all"]):
        code, out, _ = plan(*arguments(*files), *options)
        assert code == 0
        assert "…" not in out


def test_what_is_piped_is_not_wrapped(plan: Plan, tmp_path: Path) -> None:
    task = edited(tmp_path / "TASK.toml", CLUSTER[0], deadline_s="0.2")
    _, out, _ = plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous")
    assert len(out.splitlines()) == 1
    _, out, _ = plan(*arguments(task, CLUSTER[1]), "--all")
    assert sum(line.startswith("synchronous: ") for line in out.splitlines()) == 1
    assert all(re.match(r"scheme |[\w-]+(:| )", line) for line in out.splitlines())


def test_several_tasks_without_room_for_a_setting_name_its_file(plan: Plan, tmp_path: Path) -> None:
    task = tmp_path / "fashion.toml"
    bounded = (EXAMPLES / MED[0]).read_text().replace("passes", "max_shards = 7\npasses", 1)
    task.write_text(bounded)
    for options in ([], ["--all"]):
        code, _, err = plan(*arguments(task, *MED[1:]), *options)
        assert code == 2
        assert err.startswith(f"melisma: {task}: task.max_shards: scheme med does not support it")


def test_without_scipy_a_comparison_goes_on(tmp_path: Path) -> None:
    main = f"import sys; sys.modules['scipy'] = None; {MAIN}"
    found = process(*arguments(*CLUSTER), "--all", main=main)
    assert (found.returncode, found.stderr) == (0, "")
    last = found.stdout.splitlines()[-1]
    assert last.startswith("staleness-numerical: ")
    assert "needs the solve extra" in last


def test_a_scheme_more_is_a_row_more(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_takes_all(problem: CycleProblem, given: PlanInputs) -> CyclePlan:
        shares = np.where(np.arange(problem.learners) == 0, problem.shards, 0)
        return CyclePlan.from_shards(problem, shares, given.passes)

    mine = Scheme(
        "mine", "cycle", first_takes_all, "the first takes all", "nobody", needs="nothing"
    )
    monkeypatch.setitem(SCHEMES, mine.name, mine)
    code, out, _ = plan(*arguments(*CLUSTER), "--scheme", "mine")
    assert code == 1
    assert "120 shards handed out, 120 available; 3 learners idle" in out
    _, out, _ = plan(*arguments(*CLUSTER), "--all")
    assert out.splitlines()[-1].split()[:2] == ["mine", "120"]


def test_numbers_of_an_error_become_names(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InfeasibleError(
            "{learner[3]} and {task[1]}",
            constraint="x",
            miss=1,
            nearest={},
            learners=[3],
            tasks=[1],
        )

    monkeypatch.setattr(plan_report, "build_shared_problem", refuse)
    code, out, _ = plan(*arguments(*MED))
    assert code == 1
    assert "no plan by med: nano-04 and task mnist-cn\n" in out
    report = parsed(plan(*arguments(*MED), "--json")[1])
    assert report["blocking_learners"] == ["nano-04"]
    assert report["blocking_tasks"] == ["mnist-cn"]


def test_data_that_stays_on_devices_is_trained_where_it_is(plan: Plan, tmp_path: Path) -> None:
    text = (EXAMPLES / CLUSTER[0]).read_text()
    task = tmp_path / "TASK.toml"
    task.write_text(text.replace("[task]", '[task]\nmode = "federated"', 1))
    for scheme in ("equal", "synchronous", "proportional"):
        _, out, _ = plan(*arguments(task, CLUSTER[1]), "--scheme", scheme, "--json")
        assert [row["shards"] for row in parsed(out)["learners"]] == [30] * 4
    _, out, _ = plan(*arguments(task, CLUSTER[1]), "--json")
    assert max(row["shards"] for row in parsed(out)["learners"]) == 30
    fleet = group(tmp_path / "FLEET.toml", 500)
    code, _, err = plan(*arguments(task, fleet), "--all")
    assert code == 2
    assert err.startswith(f"melisma: {task}: task digits: 120 shards on 500 devices")


def documented(heading: str) -> tuple[set[str], set[str]]:
    """The names in the first columns below a heading of the page: of a plan, and of a learner."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {heading}\n")[1].split("\n#")[0]
    parts = [*section.split("\nFor each learner:\n"), ""]
    fields = [set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) for part in parts]
    return fields[0], fields[1]


@pytest.mark.parametrize(
    ("heading", "files"), [("One task", CLUSTER), ("Several tasks", MED), ("A radio cell", CELL)]
)
def test_the_page_lists_the_fields_of_a_plan(
    plan: Plan, heading: str, files: tuple[str, ...]
) -> None:
    report = parsed(plan(*arguments(*files), "--json")[1])
    whole, row = documented(heading)
    common = documented("Every plan")[0] | documented("With a plan")[0]
    assert report.keys() == common | whole
    assert all(learner.keys() == row for learner in report["learners"])


def test_the_page_lists_the_fields_of_a_refusal(plan: Plan, tmp_path: Path) -> None:
    expected = documented("Every plan")[0] | documented("Without a plan")[0]
    hasty = edited(tmp_path / "TASK.toml", CLUSTER[0], deadline_s="0.2")
    refused = parsed(plan(*arguments(hasty, CLUSTER[1]), "--scheme", "synchronous", "--json")[1])
    assert refused.keys() == expected
    skipped = parsed(plan(*arguments(*NODES), "--all", "--json")[1])["plans"][-1]
    assert skipped.keys() == expected


def test_rows_of_learners_are_made_when_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    task, fleet = read_task(EXAMPLES / CLUSTER[0]), read_fleet(EXAMPLES / CLUSTER[1])
    found = plan_report.build_plan_report(SCHEMES["dab"], [task], fleet, 1.0)["learners"]
    assert len(found) == 4
    assert [row["name"] for row in found.first(2)] == ["pi-1", "pi-2"]
    assert len(list(found.first(9))) == 4


def test_a_refusal_of_deadlines_and_budget_together_is_json(tmp_path: Path) -> None:
    paths = []
    for name in ("one", "two"):
        paths.append(tmp_path / f"{name}.toml")
        paths[-1].write_text(
            f'[task]\nname = "{name}"\nmodel = "twonn"\ndata = "mnist"\nscheme = "med"\n'
            "passes = 1\ndeadline_s = 0.01\n"
        )
    fleet = tmp_path / "fleet.toml"
    learner = '[[fleet.learner]]\nname = "{}"\nprofile = "laptop"\nprice = 1\n'
    fleet.write_text("[fleet]\nbudget = 1\n" + learner.format("a") + learner.format("b"))
    command = [sys.executable, "-c", "from melisma.cli import main; main()", "plan"]
    done = subprocess.run(
        [*command, *map(str, paths), "--fleet", str(fleet), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["constraint"], found["nearest"]) == ("deadline_s", {})
    assert found["miss"] > 0


def test_a_closed_output_is_said_in_one_line() -> None:
    task, fleet = (EXAMPLES / name for name in CLUSTER)
    run = f"{sys.executable} -c 'from melisma.cli import main; main()'"
    done = subprocess.run(
        ["bash", "-c", f"{run} plan {task} --fleet {fleet} >&-"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "melisma: standard output is closed\n")
