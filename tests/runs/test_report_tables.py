"""A report as tables: frames of pandas, and HTML in which text is escaped."""

import sys
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_fields

from melisma.errors import SettingError
from melisma.runs.notebook_view import NotebookView, find_notebook_view
from melisma.runs.report import Report
from melisma.simulation import SimulationOptions, simulate
from tests.simulation.scenarios import make_fleet, make_task


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(make_task(), make_fleet(), SimulationOptions(work="timing"))


def test_frames_have_a_row_for_each_cycle_and_each_learner(report: Report) -> None:
    cycles, learners = report.to_pandas(), report.to_pandas("learners")
    assert cycles.index.tolist() == [cycle.number for cycle in report.cycles]
    assert cycles["seconds"].tolist() == [cycle.cycle_s for cycle in report.cycles]
    assert cycles["met_deadline"].dtype == bool
    assert learners.index.tolist() == list(report.names)
    assert learners["counted_visits"].sum() == report.visits_counted
    for figure in ("bytes", "joules", "cost"):
        assert learners[figure].sum() == pytest.approx(getattr(report, figure))


def test_a_cost_is_a_column_only_if_the_fleet_sets_prices(report: Report) -> None:
    fleet = make_fleet()
    priced = simulate(
        make_task(), replace(fleet, price=fleet.price * 3), SimulationOptions(work="timing")
    )
    assert "cost" not in report.to_pandas()
    assert priced.to_pandas()["cost"].sum() == priced.cost > 0
    unpriced, values = report.as_dict(), priced.as_dict()
    found = [unpriced["cost"], unpriced["cycles"][0]["cost"], unpriced["learners"][0]["cost"]]
    assert found == [None, None, None]
    assert values["cost"] == sum(learner["cost"] for learner in values["learners"]) == priced.cost


def test_an_unknown_table_is_refused(report: Report) -> None:
    with pytest.raises(SettingError, match="table is 'learner'; did you mean learners"):
        report.to_pandas("learner")  # type: ignore[arg-type]


def test_without_pandas_the_error_says_what_to_install(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingError, match="pip install pandas"):
        report.to_pandas()


def test_html_has_both_tables_and_the_picture_and_escapes_text(report: Report) -> None:
    attack = "<script>x</script>"
    names = (attack, *report.names[1:])
    task = replace_fields(report.task, name=attack)
    html = replace(report, task=task, names=names, reason=attack)._repr_html_()
    assert "<script>" not in html
    assert html.count("&lt;script&gt;") >= 3
    assert html.count("<table>") == 2
    assert "<svg" in html


def test_a_view_is_shown_once_then_updated_and_not_too_often(report: Report) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            shown.append(content["text/html"])

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append("first")
        return Handle()

    view = NotebookView(display)
    for _ in range(20):
        view.show(replace(report, outcome="running"))
    view.show(report)
    assert shown[0] == "first"
    assert "finished" in shown[-1]
    assert len(shown) < 20


def test_outside_of_a_notebook_there_is_no_view() -> None:
    assert find_notebook_view() is None
