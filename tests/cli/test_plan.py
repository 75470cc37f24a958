import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from melisma.allocation.schemes import SCHEMES
from tests.cli.command_line import MELISMA, Result, melisma, parse_json

pytestmark = pytest.mark.usefixtures("shared_forecasts")
EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = ("mays-cluster/TASK.toml", "mays-cluster/FLEET.toml")
NODES = ("twenty-nodes/TASK.toml", "twenty-nodes/FLEET.toml")
CELL = ("lte-cell/TASK.toml", "lte-cell/FLEET.toml")
MED = ("med/fashion.toml", "med/mnist-cn.toml", "med/mnist-ff.toml", "med/FLEET.toml")
EVERY_EXAMPLE = pytest.mark.parametrize(
    "files", [CLUSTER, NODES, CELL, MED], ids=lambda files: files[0]
)


def arguments(*files: str | Path) -> list[str]:
    """Return the arguments for examples: tasks, and the fleet as the last file."""
    *tasks, fleet = (str(EXAMPLES / file) for file in files)
    return [*tasks, "--fleet", fleet]


def plan(*options: str | Path) -> Result:
    return melisma("plan", *options)


def edit_example(path: Path, example: str, **changes: str) -> Path:
    """Write a copy of an example with other values of the keys in `changes`."""
    text = (EXAMPLES / example).read_text()
    for key, value in changes.items():
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert count == 1, key
    path.write_text(text)
    return path


def test_a_process_of_its_own_prints_the_plan() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", *MELISMA[1:], "plan", *arguments(*CLUSTER)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert result.stderr == ""
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == "digits: dab, 4 learners"
    assert lines[2] == "pi-1         20       5     14.8  " + "━" * 26 + "│"
    assert lines[5] == "jetson      120       5     13.5  " + "━" * 23 + "   │"
    assert lines[6:] == [
        "237 shards requested, 120 available",
        "staleness 0, average 0.00",
        "all learners finish by 15 s",
    ]


@EVERY_EXAMPLE
def test_every_example_has_a_plan(monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = plan(*arguments(*files))
    assert (code, err) == (0, "")
    assert "…" not in out
    assert all(len(line) <= 80 for line in out.splitlines())


@EVERY_EXAMPLE
def test_all_lists_every_scheme_of_the_problem(files: tuple[str, ...]) -> None:
    code, out, err = plan(*arguments(*files), "--all")
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in out.splitlines()[1:] if ":" not in line]
    kind = {"mays-cluster": "cycle", "twenty-nodes": "cycle", "lte-cell": "radio", "med": "shared"}
    expected = [r.name for r in SCHEMES.values() if r.problem == kind[files[0].split("/")[0]]]
    assert listed == expected


def test_a_scheme_that_cannot_be_compared_is_listed_with_the_reason() -> None:
    _, out, _ = plan(*arguments(*NODES), "--all")
    assert out.splitlines()[-1] == "dab: scheme dab needs passes, for example passes = 1"


@pytest.mark.parametrize("scheme", [r.name for r in SCHEMES.values() if r.problem == "cycle"])
def test_the_totals_of_one_task_add_up(scheme: str) -> None:
    code, out, _ = plan(*arguments(*CLUSTER), "--scheme", scheme, "--json")
    report = parse_json(out)
    rows = report["learners"]
    assert code == (1 if report["late"] else 0)
    assert report["feasible"] is True
    assert report["keeps_deadline"] is (report["late"] == 0)
    assert (report["scheme"], report["tasks"], report["shards"]) == (scheme, ["digits"], [120])
    assert [row["name"] for row in rows] == ["pi-1", "pi-2", "pi-3", "jetson"]
    assert sum(row["shards"] for row in rows) == report["handed_out"]
    if SCHEMES[scheme].hands_out_all:
        assert report["handed_out"] == 120
    assert max(row["seconds"] for row in rows) == report["ends_s"]
    assert [row["late"] for row in rows] == [row["seconds"] > 15 for row in rows]
    assert sum(row["late"] for row in rows) == report["late"]
    passes = [row["passes"] for row in rows]
    assert report["max_staleness"] == max(passes) - min(passes)
    assert (report["least_passes"], report["most_passes"]) == (min(passes), max(passes))
    assert report["idle"] == 0
    assert report["cost"] is None


@pytest.mark.parametrize("scheme", ["med", "mmtt"])
def test_the_totals_of_several_tasks_add_up(scheme: str) -> None:
    code, out, _ = plan(*arguments(*MED), "--scheme", scheme, "--json")
    report = parse_json(out)
    rows = report["learners"]
    assert code == 0
    for name, shards, ends_s in zip(
        report["tasks"], report["shards"], report["expected_s"], strict=True
    ):
        task_rows = [row for row in rows if row["task"] == name]
        assert sum(row["shards"] for row in task_rows) == shards
        assert max(row["seconds"] for row in task_rows) == ends_s
    assert report["total_s"] == pytest.approx(sum(report["task_s"]))
    assert report["bound_s"] <= report["total_s"]
    assert report["gap"] == pytest.approx(1 - report["bound_s"] / report["total_s"])
    assert report["cost"] <= report["budget"] == 300
    if scheme == "med":
        assert report["expected_s"] == report["task_s"]


def test_expected_costs_are_no_worse_than_those_of_one_state() -> None:
    _, out, _ = plan(*arguments(*MED), "--all", "--json")
    med, *others = parse_json(out)["plans"]
    assert {"mmtt", "mmtt-ideal"} <= {other["scheme"] for other in others}
    for other in others:
        assert sum(med["expected_s"]) <= sum(other["expected_s"]) + 1e-9


@pytest.mark.parametrize("scheme", ["feel", "online", "full", "random"])
def test_the_totals_of_a_cell_add_up(scheme: str) -> None:
    code, out, _ = plan(*arguments(*CELL), "--scheme", scheme, "--json")
    report = parse_json(out)
    rows = report["learners"]
    assert code == 0
    assert sum(row["batch"] for row in rows) == report["batch"]
    for slot in ("uplink_slot_s", "downlink_slot_s"):
        assert sum(row[slot] for row in rows) <= report["frame_s"] * (1 + 1e-9)
    assert report["efficiency"] == pytest.approx(report["batch"] ** 0.5 / report["round_s"])
    assert report["rounds_by_deadline"] == int(60 / report["round_s"])
    assert out == plan(*arguments(*CELL), "--scheme", scheme, "--json")[1]


def test_a_comparison_is_one_json_object() -> None:
    _, out, _ = plan(*arguments(*NODES), "--all", "--json")
    plans = {report["scheme"]: report for report in parse_json(out)["plans"]}
    assert plans["equal"]["max_staleness"] == 4
    assert plans["equal"]["average_staleness"] == pytest.approx(2.11, abs=0.005)
    assert plans["staleness"]["max_staleness"] == 0
    assert plans["dab"]["feasible"] is False


def test_the_scheme_of_the_command_line_overrides_the_tasks() -> None:
    _, out, _ = plan(*arguments(*CLUSTER), "--scheme", "equal")
    assert out.startswith("digits: equal, 4 learners\n")
    assert "1 late: pi-1\n" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time-limit", "0"], "--time-limit is 0; expected seconds, more than 0"),
        (["--time-limit", "-1"], "--time-limit is -1; expected seconds, more than 0"),
        (["--time-limit", "nan"], "--time-limit is nan; expected seconds, more than 0"),
        (["--time-limit", "inf"], "--time-limit is inf; expected seconds, more than 0"),
        (["--scheme", "nonsense"], "no scheme is called 'nonsense'; expected one of equal, "),
        (["--scheme", ""], "no scheme is called ''; expected one of equal, "),
        (["--scheme", "dab", "--all"], "--scheme and --all exclude each other; use one of them"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(options: list[str], message: str) -> None:
    code, out, err = plan(*arguments(*CLUSTER), *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"melisma: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        *(["--fleet", "x"], ["x"], ["x", "--nonsense"]),
        *(["x", "--fleet", "x", "--show", show] for show in ("many", "-1")),
    ],
)
def test_wrong_usage_is_exit_code_2(options: list[str]) -> None:
    code, out, err = plan(*options)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("TASK.toml", None, "no such file or directory"),
        ("FLEET.toml", None, "no such file or directory"),
        ("TASK.toml", "", "top level: task is missing"),
        ("FLEET.toml", "[fleet]", "fleet: has no learners"),
        ("FLEET.toml", "[[fleet.learner]]\nname = 'a'\ncompute = inf", "fleet.learner[a].compute:"),
        ("TASK.toml", "[task]\nname = 'a'\nmodel = 'b'\ndata = 'c'", "task: deadline_s is missing"),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_code_2(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    files: dict[str, str | Path] = dict(zip(("TASK.toml", "FLEET.toml"), CLUSTER, strict=True))
    files[name] = path
    code, out, err = plan(*arguments(*files.values()))
    assert (code, out) == (2, "")
    assert err.startswith(f"melisma: {path}: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": '"fedavg"'}, "task: no scheme is called 'fedavg'; expected one of equal"),
        ({"scheme": '"staleness"'}, "task.passes: scheme staleness chooses the passes; remove"),
    ],
)
def test_a_scheme_that_does_not_fit_the_file_is_named(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    path = edit_example(tmp_path / "TASK.toml", CLUSTER[0], **changes)
    code, _, err = plan(*arguments(path, CLUSTER[1]))
    assert code == 2
    assert err.startswith(f"melisma: {path}: {message}")


def test_a_scheme_that_needs_passes_names_the_file_without_them() -> None:
    code, _, err = plan(*arguments(*NODES), "--scheme", "dab")
    assert code == 2
    assert err.endswith(
        "TASK.toml: task: passes is missing; scheme dab needs it, such as passes = 1\n"
    )


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (MED, ["--scheme", "dab"], "scheme dab plans one task, found 3; use --scheme med or mmtt"),
        (MED, ["--scheme", "feel"], "scheme feel plans one task, found 3; use"),
        ((MED[0], MED[0], MED[-1]), [], "two tasks have the same name in "),
    ],
)
def test_several_tasks_need_a_scheme_for_several(
    files: tuple[str, ...], options: list[str], message: str
) -> None:
    code, out, err = plan(*arguments(*files), *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"melisma: {message}")
    assert err.count("\n") == 1


def test_several_tasks_are_planned_by_med_whatever_scheme_each_names(tmp_path: Path) -> None:
    other = edit_example(tmp_path / "TASK.toml", CLUSTER[0], name='"other"', deadline_s="30.0")
    code, out, _ = plan(*arguments(CLUSTER[0], other, CLUSTER[1]), "--json")
    assert code == 0
    assert json.loads(out)["scheme"] == "med"


def test_tasks_that_all_name_mmtt_are_planned_by_mmtt(tmp_path: Path) -> None:
    tasks = [edit_example(tmp_path / Path(name).name, name, scheme='"mmtt"') for name in MED[:-1]]
    _, out, _ = plan(*arguments(*tasks, MED[-1]))
    assert out.startswith("fashion, mnist-cn, mnist-ff: mmtt, 10 learners\n")


def test_a_deadline_that_cannot_be_met_names_learners_and_a_deadline(tmp_path: Path) -> None:
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], deadline_s="0.2")
    code, out, err = plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous")
    assert (code, err) == (1, "")
    text = " ".join(out.split())
    assert text.startswith("digits: no plan by synchronous: 2 of 4 learners")
    assert text.count(", and ") == 1
    assert "use deadline_s >= 2.4079" in text
    assert "2 of 4 learners (pi-1, pi-3) cannot train one shard once by 0.2 s" in text
    code, out, err = plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous", "--json")
    report = parse_json(out)
    assert (code, err) == (1, "")
    assert report["feasible"] is False
    assert report["blocking_learners"] == ["pi-1", "pi-3"]
    assert report["constraint"] == "deadline_s"
    # The suggested deadline can be met.
    longer = edit_example(
        tmp_path / "LONGER.toml", CLUSTER[0], deadline_s=repr(report["nearest"]["deadline_s"])
    )
    assert plan(*arguments(longer, CLUSTER[1]), "--scheme", "synchronous")[0] == 0


def test_too_many_shards_suggest_a_number_of_samples_that_can_be_planned(tmp_path: Path) -> None:
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], deadline_s="2.0")
    _, out, _ = plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous")
    code, json_out, _ = plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous", "--json")
    nearest = parse_json(json_out)["nearest"]
    assert code == 1
    assert "shards" not in nearest
    assert f"samples <= {nearest['samples']} in [task.sizes]" in " ".join(out.split())
    sizes = f"[task.sizes]\nsamples = {nearest['samples']}\n"
    task.write_text(f"{task.read_text()}\n{sizes}")
    assert plan(*arguments(task, CLUSTER[1]), "--scheme", "synchronous")[0] == 0


def test_too_few_shards_suggest_a_size_of_shards_that_can_be_planned(tmp_path: Path) -> None:
    fleet = write_group(tmp_path / "FLEET.toml", 500)
    _, out, _ = plan(*arguments(CLUSTER[0], fleet), "--scheme", "synchronous")
    assert "shard_samples <= 120" in " ".join(out.split())
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], shard_samples="120")
    assert plan(*arguments(task, fleet), "--scheme", "synchronous")[0] == 0


def test_a_shard_that_is_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], shard_samples="60001")
    code, _, err = plan(*arguments(task, CLUSTER[1]))
    assert code == 2
    assert err.startswith(f"melisma: {task}: task: shard_samples = 60001 is more than the 60000")


def test_a_budget_that_is_too_small_is_refused_with_one_that_suffices(tmp_path: Path) -> None:
    fleet = edit_example(tmp_path / "FLEET.toml", MED[-1], budget="50")
    code, out, _ = plan(*arguments(*MED[:-1], fleet), "--json")
    report = parse_json(out)
    assert code == 1
    assert (report["feasible"], report["constraint"]) == (False, "budget")
    assert report["nearest"]["budget"] == pytest.approx(50 + report["miss"])
    code, out, _ = plan(*arguments(*MED[:-1], fleet))
    assert code == 1
    assert "no plan by med: budget is 50" in out


def test_a_comparison_without_any_plan_is_exit_code_1(tmp_path: Path) -> None:
    fleet = edit_example(tmp_path / "FLEET.toml", MED[-1], budget="50")
    code, out, _ = plan(*arguments(*MED[:-1], fleet), "--all")
    assert code == 1
    assert out.count("budget is 50") == sum(row.problem == "shared" for row in SCHEMES.values())


def write_group(path: Path, count: int, keys: str = "") -> Path:
    """Write a fleet of `count` phones of unequal speed."""
    spread = "spread = { compute = 0.3, bandwidth_bps = 0.5 }"
    path.write_text(f'[[fleet.group]]\ncount = {count}\nprofile = "phone"\n{spread}\n{keys}\n')
    return path


def test_of_many_learners_the_first_are_shown(tmp_path: Path) -> None:
    fleet = write_group(tmp_path / "FLEET.toml", 500)
    for options, shown in (([], 20), (["--show", "3"], 3), (["--show", "0"], 0)):
        code, out, _ = plan(*arguments(CLUSTER[0], fleet), *options)
        lines = out.splitlines()
        assert code == 0
        assert len(lines) == 2 + shown + 1 + 3
        assert lines[2 + shown].startswith(f"and {500 - shown} more (--show)")
    _, out, _ = plan(*arguments(CLUSTER[0], fleet), "--show", "1000")
    assert "phone-500" in out
    assert "more (--show)" not in out


def test_late_learners_beyond_ten_are_counted_not_listed(tmp_path: Path) -> None:
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], deadline_s="0.4", shard_samples="60")
    _, out, _ = plan(
        *arguments(task, write_group(tmp_path / "FLEET.toml", 500)),
        "--scheme",
        "equal",
        "--show",
        "0",
    )
    last = " ".join(out.split("taleness", 1)[1].split())
    assert " late: phone-" in last
    assert last.count("phone-") == 10
    assert last.endswith(" ...")


def test_dab_plans_for_more_learners_than_shards(tmp_path: Path) -> None:
    # A learner may get no shard from dab, so shards cannot run out.
    fleet = write_group(tmp_path / "FLEET.toml", 500)
    code, out, _ = plan(*arguments(CLUSTER[0], fleet), "--show", "0")
    assert code == 0
    assert "shards requested, 120 available" in out
    code, out, _ = plan(*arguments(CLUSTER[0], fleet), "--scheme", "synchronous")
    assert code == 1
    assert "min_shards of all learners sum to 500" in out


@pytest.mark.parametrize("scheme", ["equal", "proportional", "synchronous", "staleness", "dab"])
def test_a_hundred_thousand_phones_are_planned_in_seconds(tmp_path: Path, scheme: str) -> None:
    fleet = write_group(tmp_path / "FLEET.toml", 100_000)
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0])
    task.write_text(task.read_text() + "\n[task.sizes]\nsamples = 200_000_000\n")
    code, out, _ = plan(*arguments(task, fleet), "--scheme", scheme)
    assert code == (1 if " late: " in out else 0)
    assert len(out.splitlines()) == 26
    assert "400,000 available" in out


def test_a_comparison_skips_schemes_that_would_take_too_long(tmp_path: Path) -> None:
    fleet = write_group(tmp_path / "FLEET.toml", 201)
    task = edit_example(tmp_path / "TASK.toml", CLUSTER[0], shard_samples="50")
    code, out, _ = plan(*arguments(task, fleet), "--all")
    assert code == 0
    assert "staleness-numerical: skipped: more than 200 learners" in out


@EVERY_EXAMPLE
@pytest.mark.parametrize("options", [[], ["--all"]], ids=["one", "all"])
def test_sixty_columns_are_enough(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], options: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = plan(*arguments(*files), *options)
    lines = [line.rstrip() for line in out.splitlines()]
    assert code == 0
    assert all(len(line) <= 60 for line in lines)
    # No text is cut off, and no bar is on a line of its own.
    assert "…" not in out
    assert not any(line.strip(" ━│") == "" for line in lines)
    if options and files[0] in {CLUSTER[0], NODES[0]}:
        assert "staleness-numerical: shards " in out


def test_prices_are_summed_into_the_cost(tmp_path: Path) -> None:
    fleet = write_group(tmp_path / "FLEET.toml", 4, "price = 2.5")
    _, out, _ = plan(*arguments(CLUSTER[0], fleet), "--scheme", "equal")
    assert "staleness 0, average 0.00; cost 300.0" in out
    _, out, _ = plan(*arguments(CLUSTER[0], fleet), "--scheme", "equal", "--json")
    assert parse_json(out)["cost"] == 300.0


def test_the_budget_is_printed_with_the_cost(tmp_path: Path) -> None:
    _, out, _ = plan(*arguments(*MED))
    cost, budget = out.splitlines()[-1].strip().split(", ")
    assert cost.startswith("cost ")
    assert budget == "budget 300"
    fleet = edit_example(tmp_path / "FLEET.toml", MED[-1], budget="inf")
    _, out, _ = plan(*arguments(*MED[:-1], fleet), "--json")
    assert parse_json(out)["budget"] is None
    assert plan(*arguments(*MED[:-1], fleet))[1].rstrip().endswith(", no budget")


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    fleet = tmp_path / "FLEET.toml"
    names = ["pi [kitchen]", "[/red]", ":smile:", "[bold]x", "küche 厨房", "a\\[b"]
    tables = [f'[[fleet.learner]]\nname = {json.dumps(n)}\nprofile = "phone"\n' for n in names]
    fleet.write_text("".join(tables))
    code, out, _ = plan(*arguments(CLUSTER[0], fleet))
    assert code == 0
    shown = [line.rsplit(maxsplit=4)[0].strip() for line in out.splitlines()[2:8]]
    assert [line.startswith(name) for line, name in zip(shown, names, strict=True)] == [True] * 6


def test_the_same_files_give_the_same_output() -> None:
    assert plan(*arguments(*MED), "--all", "--json") == plan(*arguments(*MED), "--all", "--json")


ANNOUNCING = """
import signal
import sys
from melisma import cli
from melisma.simulation.plans import plan_request

signal.signal(signal.SIGINT, signal.default_int_handler)
build_plan_report = plan_request.build_plan_report

def announce_and_build(*args):
    print("searching", flush=True)
    return build_plan_report(*args)

plan_request.build_plan_report = announce_and_build
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_long_search_with_exit_code_130(tmp_path: Path, number: int) -> None:
    fleet = edit_example(tmp_path / "FLEET.toml", MED[-1], count="60", budget="90")
    process = subprocess.Popen(
        [sys.executable, "-c", ANNOUNCING, "plan", *arguments(*MED[:-1], fleet)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "melisma: interrupted"


SMALL_TASK = """
[task]
name = "{name}"
model = "twonn"
data = "mnist"
scheme = "med"
passes = 1
cycles = 2
deadline_s = {deadline_s}
shard_samples = 100
extension = false
sizes = {{ samples = 1000, model_bytes = 100000, sample_ops = 1e6 }}
"""
SMALL_FLEET = """
[[fleet.learner]]
name = "slow"
samples_per_s = 100
bandwidth_bps = 1e8
price = 0.5

[[fleet.learner]]
name = "fast"
samples_per_s = 400
bandwidth_bps = 1e8
price = 2.0
"""


def small_files(folder: Path, deadline_s: float = 20.0) -> list[str]:
    """Write two tasks and a fleet; return the arguments for them."""
    for name in ("first", "second"):
        text = SMALL_TASK.format(name=name, deadline_s=deadline_s)
        (folder / f"{name}.toml").write_text(text)
    (folder / "fleet.toml").write_text(SMALL_FLEET)
    return [str(folder / f"{name}.toml") for name in ("first", "second")] + [
        "--fleet",
        str(folder / "fleet.toml"),
    ]


def test_candidates_show_when_tasks_end_and_what_they_cost(tmp_path: Path) -> None:
    code, out, _ = plan(*small_files(tmp_path), "--candidates")
    assert code == 0
    lines = out.splitlines()
    title = next(n for n, line in enumerate(lines) if line.startswith("candidate"))
    assert "first ends" in lines[title]
    assert lines[title + 1].startswith("as submitted")
    _, out, _ = plan(*small_files(tmp_path), "--candidates", "--json")
    candidates = parse_json(out)["candidates"]
    assert candidates[0]["feasible"]
    assert [task["name"] for task in candidates[0]["tasks"]] == ["first", "second"]


def test_candidates_of_an_infeasible_deadline_name_the_nearest_one(tmp_path: Path) -> None:
    code, out, _ = plan(*small_files(tmp_path, deadline_s=0.5), "--candidates")
    assert code == 1
    assert "as submitted: no plan: deadline_s cannot be met" in out
    assert "deadline_s of first >= " in out


def test_candidates_are_for_tasks_that_share_learners() -> None:
    code, _, err = plan(*arguments(*CLUSTER), "--candidates")
    assert code == 2
    assert "--candidates is for tasks that share learners" in err


def test_a_budget_of_a_task_is_refused_in_the_plan_of_one_task(tmp_path: Path) -> None:
    task, _, *fleet = small_files(tmp_path)
    text = Path(task).read_text().replace('scheme = "med"', 'scheme = "dab"\nbudget = 5.0')
    Path(task).write_text(text)
    code, _, err = plan(task, *fleet)
    assert code == 2
    assert "task first has budget = 5" in err
