from io import StringIO

import pytest
from rich.console import Console

from melisma.cli.bench_report import BenchPart, BenchReport, FlopsPrediction, Prediction
from melisma.cli.views.bench_view import bench_view


def part(error_percent: float, spread_percent: float) -> BenchPart:
    """Return a poor prediction from two shards, and one with these figures from eight."""
    poor = Prediction(2, 30.0, 50.0, 1.0, 0.9)
    last = Prediction(8, 20.0, error_percent, 1.0, spread_percent / 100)
    return BenchPart.from_predictions(20, 20.0, [poor, last])


def lines(train: BenchPart, download: BenchPart | None = None) -> list[str]:
    report = BenchReport("digits", None, None, train, FlopsPrediction(1e9), download)
    stream = StringIO()
    Console(file=stream, width=250).print(bench_view(report))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_last_prediction_is_judged() -> None:
    expected = "fine: the prediction from 8 shards is 3.2 % too short, and shards differ by 4 %"
    assert expected in lines(part(-3.2, 4.0))
    assert part(-3.2, 4.0).reliable


@pytest.mark.parametrize(("error_percent", "spread_percent"), [(10.1, 4.0), (-3.0, 26.0)])
def test_a_prediction_that_is_not_reliable_comes_with_advice(
    error_percent: float, spread_percent: float
) -> None:
    judged = part(error_percent, spread_percent)
    assert not judged.reliable
    (line,) = [line for line in lines(part(0.0, 0.0), judged) if line.startswith("not reliable")]
    assert f"and shards differ by {spread_percent:.0f} % (up to 10 % and 25 % are fine); " in line
    assert line.endswith("throttled, or try more --shards")


def test_training_and_fetching_are_judged_separately() -> None:
    verdicts = [line.partition(":")[0] for line in lines(part(1.0, 1.0), part(90.0, 1.0))]
    assert [verdict for verdict in verdicts if verdict in ("fine", "not reliable")] == [
        "fine",
        "not reliable",
    ]
