"""`melisma plan`: exit codes, and output to narrow terminals, files, pipes and ASCII."""

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
from melisma.errors import InfeasibleError
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.task_file import read_task
from melisma.simulation.plans import plan_report
from tests.cli.command_line import MELISMA, parse_json
from tests.cli.test_plan import (
    CELL,
    CLUSTER,
    EVERY_EXAMPLE,
    EXAMPLES,
    MED,
    NODES,
    arguments,
    edit_example,
    plan,
    write_group,
)

pytestmark = pytest.mark.usefixtures("shared_forecasts")
PAGE = EXAMPLES.parent / "docs" / "allocation" / "plan.md"


def plan_process(*options: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run `melisma plan` in a process of its own, with `variables` in its environment."""
    environment = {**os.environ, **settings.pop("variables", {})}
    main = settings.pop("main", MELISMA[-1])
    command = [sys.executable, "-W", "error", "-c", main, "plan", *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.run(
        command, text=True, env=environment, check=False, timeout=60, encoding="utf-8", **streams
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_plan_that_is_late_is_exit_code_1(options: list[str]) -> None:
    assert plan(*arguments(*CLUSTER), "--scheme", "equal", *options)[0] == 1
    assert plan(*arguments(*CLUSTER), "--scheme", "proportional", *options)[0] == 0
    assert plan(*arguments(*CLUSTER), "--all", *options)[0] == 0


def test_a_plan_on_one_state_that_is_late_when_expected_is_exit_code_1(tmp_path: Path) -> None:
    fashion = edit_example(tmp_path / "fashion.toml", MED[0], deadline_s="14.0")
    files = arguments(fashion, *MED[1:])
    assert plan(*files, "--scheme", "med")[0] == 0
    code, out, _ = plan(*files, "--scheme", "mmtt")
    assert code == 1
    assert re.search(
        r"^\w+ is expected to finish after \d+.\d\d s, past its deadline of", out, re.MULTILINE
    )
    assert parse_json(plan(*files, "--scheme", "mmtt", "--json")[1])["keeps_deadline"] is False
    assert re.search(
        r"^mmtt: \w+ is expected to finish after", plan(*files, "--all")[1], re.MULTILINE
    )


def test_a_cell_without_a_round_by_the_deadline_is_exit_code_1(tmp_path: Path) -> None:
    task = edit_example(tmp_path / "TASK.toml", CELL[0], deadline_s="2.0")
    code, out, _ = plan(*arguments(task, CELL[1]))
    assert code == 1
    assert out.endswith("no round finishes by 2 s\n")
    code, out, _ = plan(*arguments(task, CELL[1]), "--all")
    assert code == 0  # `online` has one
    assert "feel: no round finishes by 2 s" in out


def test_a_cost_over_the_budget_is_printed_and_exit_code_1(tmp_path: Path) -> None:
    fleet = write_group(tmp_path / "FLEET.toml", 4, "price = 2.5")
    fleet.write_text("fleet.budget = 299\n" + fleet.read_text())
    code, out, _ = plan(*arguments(CLUSTER[0], fleet), "--scheme", "proportional")
    assert code == 1
    assert "cost 300.0 is over the budget of 299" in out
    _, out, _ = plan(*arguments(CLUSTER[0], fleet), "--all")
    assert "synchronous: cost 300.0 is over the budget of 299" in out
    report = parse_json(plan(*arguments(CLUSTER[0], fleet), "--scheme", "equal", "--json")[1])
    assert (report["cost"], report["budget"], report["keeps_budget"]) == (300, 299, False)


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_an_ascii_terminal_gets_ascii(tmp_path: Path, options: list[str]) -> None:
    fleet = tmp_path / "FLEET.toml"
    fleet.write_text('[[fleet.learner]]\nname = "küche"\nprofile = "phone"\n', encoding="utf-8")
    result = plan_process(
        *arguments(CLUSTER[0], fleet), *options, variables={"PYTHONIOENCODING": "ascii"}
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    if not options:
        assert "k\\xfcche" in result.stdout
        assert "=====|" in result.stdout


@pytest.mark.parametrize("options", [[], ["--all"], ["--json"]])
def test_a_full_disk_is_one_line_and_exit_code_1(options: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = plan_process(*arguments(*CLUSTER), *options, stdout=full)
    assert result.returncode == 1
    assert result.stderr == "melisma: standard output: No space left on device\n"


@pytest.mark.parametrize("options", [[], ["--all"], ["--json"]])
def test_a_pipe_that_is_closed_is_no_error(options: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = plan_process(*arguments(*CLUSTER), *options, stdout=writer)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


@EVERY_EXAMPLE
@pytest.mark.parametrize("columns", ["0", "1", "20", "39", "nonsense"])
def test_no_text_is_cut_off_in_narrow_terminals(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for options in ([], ["--all"]):
        code, out, _ = plan(*arguments(*files), *options)
        assert code == 0
        assert "…" not in out


def test_output_to_a_pipe_is_not_wrapped(tmp_path: Path) -> None:
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], deadline_s="0.2")
    _, out, _ = plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous")
    assert len(out.splitlines()) == 1
    _, out, _ = plan(*arguments(task, CLUSTER[1]), "--all")
    assert sum(line.startswith("synchronous: ") for line in out.splitlines()) == 1
    assert all(re.match(r"scheme |[\w-]+(:| )", line) for line in out.splitlines())


def test_a_setting_that_med_does_not_support_is_named_with_its_file(tmp_path: Path) -> None:
    task = tmp_path / "fashion.toml"
    bounded = (EXAMPLES / MED[0]).read_text().replace("passes", "max_shards = 7\npasses", 1)
    task.write_text(bounded)
    for options in ([], ["--all"]):
        code, _, err = plan(*arguments(task, *MED[1:]), *options)
        assert code == 2
        assert err.startswith(f"melisma: {task}: task.max_shards: scheme med does not support it")


def test_without_scipy_a_comparison_goes_on(tmp_path: Path) -> None:
    main = f"import sys; sys.modules['scipy'] = None; {MELISMA[-1]}"
    result = plan_process(*arguments(*CLUSTER), "--all", main=main)
    assert (result.returncode, result.stderr) == (0, "")
    last = result.stdout.splitlines()[-1]
    assert last.startswith("staleness-numerical: ")
    assert "needs the solve extra" in last


def test_a_scheme_added_to_the_table_can_be_used_and_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_takes_all(problem: CycleProblem, given: PlanInputs) -> CyclePlan:
        shares = np.where(np.arange(problem.learners) == 0, problem.shards, 0)
        return CyclePlan.from_shards(problem, shares, given.passes)

    scheme = Scheme(
        "first-only", "cycle", first_takes_all, "the first takes all", "no paper", needs="nothing"
    )
    monkeypatch.setitem(SCHEMES, scheme.name, scheme)
    code, out, _ = plan(*arguments(*CLUSTER), "--scheme", "first-only")
    assert code == 1
    assert "120 shards handed out, 120 available; 3 learners idle" in out
    _, out, _ = plan(*arguments(*CLUSTER), "--all")
    assert out.splitlines()[-1].split()[:2] == ["first-only", "120"]


def test_an_error_names_learners_and_tasks_instead_of_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    report = parse_json(plan(*arguments(*MED), "--json")[1])
    assert report["blocking_learners"] == ["nano-04"]
    assert report["blocking_tasks"] == ["mnist-cn"]


def test_data_that_stays_on_devices_is_trained_where_it_is(tmp_path: Path) -> None:
    text = (EXAMPLES / CLUSTER[0]).read_text()
    task = tmp_path / "TASK.toml"
    task.write_text(text.replace("[task]", '[task]\nmode = "federated"', 1))
    for scheme in ("equal", "synchronous", "proportional"):
        _, out, _ = plan(*arguments(task, CLUSTER[1]), "--scheme", scheme, "--json")
        assert [row["shards"] for row in parse_json(out)["learners"]] == [30] * 4
    _, out, _ = plan(*arguments(task, CLUSTER[1]), "--json")
    assert max(row["shards"] for row in parse_json(out)["learners"]) == 30
    fleet = write_group(tmp_path / "FLEET.toml", 500)
    code, _, err = plan(*arguments(task, fleet), "--all")
    assert code == 2
    assert err.startswith(f"melisma: {task}: task digits: 120 shards on 500 devices")


def documented_fields(heading: str) -> tuple[set[str], set[str]]:
    """Return the fields that the page lists below a heading: of a plan, and of a learner."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {heading}\n")[1].split("\n#")[0]
    parts = [*section.split("\nFor each learner:\n"), ""]
    fields = [set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) for part in parts]
    return fields[0], fields[1]


@pytest.mark.parametrize(
    ("heading", "files"), [("One task", CLUSTER), ("Several tasks", MED), ("A radio cell", CELL)]
)
def test_the_page_lists_the_fields_of_a_plan(heading: str, files: tuple[str, ...]) -> None:
    report = parse_json(plan(*arguments(*files), "--json")[1])
    plan_fields, learner_fields = documented_fields(heading)
    common = documented_fields("Every plan")[0] | documented_fields("With a plan")[0]
    assert report.keys() == common | plan_fields
    assert all(learner.keys() == learner_fields for learner in report["learners"])


def test_the_page_lists_the_fields_of_a_refusal(tmp_path: Path) -> None:
    expected = documented_fields("Every plan")[0] | documented_fields("Without a plan")[0]
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], deadline_s="0.2")
    refused = parse_json(plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous", "--json")[1])
    assert refused.keys() == expected
    skipped = parse_json(plan(*arguments(*NODES), "--all", "--json")[1])["plans"][-1]
    assert skipped.keys() == expected


def test_rows_of_learners_are_built_on_access() -> None:
    task, fleet = read_task(EXAMPLES / CLUSTER[0]), read_fleet(EXAMPLES / CLUSTER[1])
    rows = plan_report.build_plan_report(SCHEMES["dab"], [task], fleet, 1.0)["learners"]
    assert len(rows) == 4
    assert [row["name"] for row in rows.first(2)] == ["pi-1", "pi-2"]
    assert len(list(rows.first(9))) == 4


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
    result = plan(*paths, "--fleet", fleet, "--json")
    report = parse_json(result.stdout)
    assert result.code == 1
    assert (report["constraint"], report["nearest"]) == ("deadline_s", {})
    assert report["miss"] > 0


def test_a_closed_output_is_one_line_and_exit_code_1() -> None:
    task, fleet = (EXAMPLES / name for name in CLUSTER)
    run = f"{sys.executable} -c 'from melisma.cli import main; main()'"
    done = subprocess.run(
        ["bash", "-c", f"{run} plan {task} --fleet {fleet} >&-"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "melisma: standard output is closed\n")


def test_an_idle_learner_that_is_too_slow_is_named_with_a_deadline_that_suffices(
    tmp_path: Path,
) -> None:
    fleet = tmp_path / "slow.toml"
    fleet.write_text(
        '[[fleet.learner]]\nname = "pi"\nsamples_per_s = 100\nbandwidth_bps = 20.0\n'
        '[[fleet.learner]]\nname = "hare"\nsamples_per_s = 10000\nbandwidth_bps = 1e8\n'
    )
    task = tmp_path / "task.toml"
    out = plan(edit_example(task, CLUSTER[0], deadline_s="15.0"), "--fleet", fleet).stdout
    found = re.search(r"pi is idle: one shard takes (\d+) s; use deadline_s > \1 or", out)
    assert found, out
    assert "all learners with shards finish by 15 s" in out
    edit_example(task, CLUSTER[0], deadline_s=f"{found[1]}.1")
    out = plan(task, "--fleet", fleet).stdout
    assert re.search(r"^pi +1 ", out, re.MULTILINE), out
    assert "idle" not in out


def test_without_files_the_default_task_and_fleet_are_planned() -> None:
    code, out, _ = plan()
    assert code == 0
    assert out.startswith("digits: dab, 4 learners\n")
    assert "pi-kitchen" in out


def test_a_sample_of_learners_is_planned_and_the_others_are_not_idle(tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    task.write_text(
        '[task]\nname = "t"\nmodel = "twonn"\ndata = "mnist"\npasses = 1\ndeadline_s = 6.0\n'
        "sample = 0.25\n"
    )
    fleet = write_group(tmp_path / "fleet.toml", 8)
    code, out, _ = plan(str(task), "--fleet", str(fleet))
    assert code == 0
    assert "each cycle draws 2 of 8 learners; these are the first cycle's" in out
    report = parse_json(plan(str(task), "--fleet", str(fleet), "--json")[1])
    assert (len(report["learners"]), report["not_drawn"], report["idle"]) == (2, 6, 0)
    code, _, problem = plan(str(task), "--fleet", str(fleet), "--scheme", "med")
    assert (code, "task.sample: scheme med does not support it" in problem) == (2, True)
