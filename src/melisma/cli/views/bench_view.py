"""What `melisma bench` prints: predictions beside what it really took."""

import json
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.bench_measurement import Part, Report
from melisma.cli.views.plan_table import Rows

TITLES = ("from", "a shard", "spread", "setup", "predicted", "took", "error")


def as_json(report: Report) -> str:
    """One line."""
    return json.dumps(asdict(report), allow_nan=False) + "\n"


def page(report: Report) -> RenderableType:
    """A table for training, and one for fetching where data travel."""
    where = "this device"
    if report.device is not None:
        where = f"{report.device}, emulated: {report.share:.3g} of one core of this machine"
    parts: list[RenderableType] = [Text(f"{report.task} on {where}")]
    parts += [Text(f"\nTraining {report.train.shards} other shards"), _table(report, report.train)]
    if report.flops.predicted_s is None:
        rate = report.flops.flops / 1e9
        parts.append(Text(f"FLOPS: {rate:.3g} GFLOPS; no reference device to predict from"))
    if report.download is not None:
        title = f"\nFetching {report.download.shards} other shards"
        parts += [Text(title), _table(report, report.download)]
    if report.share is not None and report.share > 1:
        parts.append(Text("\nThis machine trains on one core here: it is slower than that device."))
    return Group(*parts)


def _table(report: Report, part: Part) -> Rows:
    took = _seconds(part.actual_s)
    rows = [
        (
            f"{guess.shards} shards",
            *map(_seconds, (guess.shard_s, guess.spread_s, guess.setup_s, guess.predicted_s)),
            took,
            f"{guess.error_percent:+.1f} %",
        )
        for guess in part.sb
    ]
    flops = report.flops
    if part is report.train and flops.predicted_s is not None and flops.error_percent is not None:
        rate = f"FLOPS ({flops.flops / 1e9:.3g} GFLOPS)"
        predicted = _seconds(flops.predicted_s)
        rows.append((rate, "", "", "", predicted, took, f"{flops.error_percent:+.1f} %"))
    return Rows(TITLES, rows)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
