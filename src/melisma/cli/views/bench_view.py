"""Tables of `melisma bench`: predictions beside actual times."""

import json
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.bench_report import (
    MAX_ERROR_PERCENT,
    MAX_SPREAD_PERCENT,
    BenchPart,
    BenchReport,
)
from melisma.cli.views.table_view import FigureTable, format_count

TITLES = ("from", "per shard", "spread", "setup", "predicted", "actual", "error")


def as_json_line(report: BenchReport) -> str:
    """Encode the report as one line of JSON."""
    return json.dumps(asdict(report), allow_nan=False) + "\n"


def bench_view(report: BenchReport) -> RenderableType:
    """Return a table of training, and one of fetching if the orchestrator holds the data."""
    device = "this machine"
    if report.device is not None:
        device = f"{report.device}, emulated: {report.share:.3g} of one core of this machine"
    parts: list[RenderableType] = [Text(f"{report.task} on {device}")]
    parts += [Text(f"\nTraining {report.train.shards} other shards"), _table(report, report.train)]
    parts.append(Text(_verdict(report.train)))
    if report.flops.predicted_s is None:
        rate = report.flops.flops / 1e9
        parts.append(Text(f"FLOPS: {rate:.3g} GFLOPS; no reference device to predict from"))
    if report.download is not None:
        title = f"\nFetching {report.download.shards} other shards"
        parts += [Text(title), _table(report, report.download), Text(_verdict(report.download))]
    if report.share is not None and report.share > 1:
        parts.append(
            Text("\nThe emulation uses one core of this machine, which is slower than that device.")
        )
    return Group(*parts)


def _verdict(part: BenchPart) -> str:
    """Say whether the last prediction is good enough to plan with, and what to do if it is not."""
    last = part.predictions[-1]
    found = (
        f"the prediction from {format_count(last.shards, 'shard')} is "
        f"{abs(last.error_percent):.1f} % too {'long' if last.error_percent > 0 else 'short'}, "
        f"and shards differ by {last.spread_percent:.0f} %"
    )
    if part.reliable:
        return f"fine: {found}"
    limits = f"up to {MAX_ERROR_PERCENT:g} % and {MAX_SPREAD_PERCENT:g} % are fine"
    advice = "end other programs, check that the device is not throttled, or try more --shards"
    return f"not reliable: {found} ({limits}); {advice}"


def _table(report: BenchReport, part: BenchPart) -> FigureTable:
    actual = _seconds(part.actual_s)
    rows = [
        (
            format_count(prediction.shards, "shard"),
            *map(
                _seconds,
                (
                    prediction.shard_s,
                    prediction.spread_s,
                    prediction.setup_s,
                    prediction.predicted_s,
                ),
            ),
            actual,
            f"{prediction.error_percent:+.1f} %",
        )
        for prediction in part.predictions
    ]
    flops = report.flops
    if part is report.train and flops.predicted_s is not None and flops.error_percent is not None:
        rate = f"FLOPS ({flops.flops / 1e9:.3g} GFLOPS)"
        predicted = _seconds(flops.predicted_s)
        rows.append((rate, "", "", "", predicted, actual, f"{flops.error_percent:+.1f} %"))
    return FigureTable(TITLES, rows)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
