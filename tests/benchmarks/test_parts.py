"""Benchmarks of several parts: a part that is measured alone keeps the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import parts
from benchmarks.harness.parts import Benchmark, Part


def _measure(_: bool) -> dict[str, Any]:
    return {"own_s": 0.0, "rows": {"melisma": {"s": 2.0}}}


BENCHMARK = Benchmark(
    "sample",
    {name: Part(name, _measure, ["s"], timed=False) for name in ("first", "second")},
    [],
)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(parts, "RESULTS", tmp_path)
    return tmp_path / "sample.json"


def test_a_part_that_is_measured_alone_keeps_the_parts_of_another_machine(results: Path) -> None:
    old = {"machine": {"cpu": "another"}, "rows": {"melisma": {"s": 1.0}}}
    results.write_text(json.dumps({"parts": {"first": old}}))
    measured = BENCHMARK.run(quick=False, only=("second",))["parts"]
    assert measured["first"] == old
    assert measured["second"]["rows"] == {"melisma": {"s": 2.0}}
    assert measured["second"]["machine"]["cpu"] != "another"


def test_a_run_of_all_parts_forgets_earlier_results(results: Path) -> None:
    results.write_text(json.dumps({"parts": {"third": {}}}))
    assert set(BENCHMARK.run(quick=False, only=())["parts"]) == {"first", "second"}


def test_unknown_parts_are_refused(results: Path) -> None:
    with pytest.raises(SystemExit, match="unknown parts thrid; use first, second"):
        BENCHMARK.run(quick=False, only=("thrid",))
