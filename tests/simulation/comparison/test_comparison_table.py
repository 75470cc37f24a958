"""A comparison as a table."""

from math import nan

import pytest

from melisma.simulation.comparison.comparison_picture import draw_comparison
from tests.simulation.comparison.compared_runs import runs_of, summarize


def test_a_comparison_is_a_table_of_text_and_of_html(monkeypatch: pytest.MonkeyPatch) -> None:
    both = summarize(runs_of("dab", 1, 2, nan), runs_of("equal", 3, 4, 5))
    table = both.table()
    assert table.titles[0] == "scheme"
    assert [row[0] for row in table.rows] == ["dab", "equal"]
    lines = str(table).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert repr(table) == str(table)
    assert table._repr_html_().count("<tr>") == 3
    assert "<th>scheme</th>" in table._repr_html_()
    assert both.plot().svg == draw_comparison(both).svg
