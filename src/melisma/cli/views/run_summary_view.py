"""The last screen of a run: whether the deadline held, who did what, and how good the model is."""

from math import isnan
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.plan_table import Rows
from melisma.cli.views.run_view import score
from melisma.cycle.events import PHASES
from melisma.runs.report import Report
from melisma.runs.totals import UNCOUNTED_STATUSES, LearnerTotal

SHOWN = 20
TITLES = ("learner", "shards", "samples", "done", "fetch s", "load s", "train s", "upload s")


def screen(report: Report, show: int = SHOWN) -> RenderableType:
    """A run that is over, at most so many learners listed."""
    first = report.learners[:show]
    table = [Rows((*TITLES, "not in"), [_row(each) for each in first])] if report.cycles else []
    return Group(
        Text(report.deadline_summary, style="bold"),
        *map(Text, _ended(report)),
        *table,
        *map(Text, _more(report, show)),
        *map(Text, _figures(report)),
        *map(Text, _saved(report)),
    )


def _ended(report: Report) -> list[str]:
    """How it ended, where not as it should, and who did not take part."""
    ended = [] if report.outcome == "done" else [f"{report.outcome}: {report.reason}"]
    # Of many that went together, one reason for all.
    left = [f"left: {reason}" for reason in list(dict.fromkeys(report.departures))[:SHOWN]]
    idle = np.flatnonzero(report.learners.shards == 0)
    if report.cycles and idle.size:
        some = ", ".join(report.names[one] for one in idle[:5]) + ", ..." * (idle.size > 5)
        left.append(f"no work in any cycle: {some}")
    return [*ended, *left]


def _row(did: LearnerTotal) -> tuple[str, ...]:
    seconds = dict(zip(PHASES, did.phases, strict=True))
    fetch_s = seconds["fetch model"] + seconds["fetch shards"]
    fates = [f"{getattr(did, fate)} {fate}" for fate in UNCOUNTED_STATUSES if getattr(did, fate)]
    return (
        did.name or "-",
        str(did.shards),
        str(did.counted_visits),
        f"{did.counted_visits / did.planned_visits:.0%}" if did.planned_visits else "-",
        *(f"{each:.1f}" for each in (fetch_s, *(seconds[n] for n in ("load", "train", "upload")))),
        ", ".join(fates) or "-",
    )


def _more(report: Report, show: int) -> list[str]:
    rest = report.learners[show:]
    if not rest or not report.cycles:
        return []
    trained, missed = rest.counted_visits.sum(), rest.uncounted.sum()
    return [f"and {len(rest)} more: {trained} samples trained, {missed} updates not in"]


def _figures(report: Report) -> list[str]:
    if not report.cycles:
        return ["nothing was trained"]
    scored = sum(each.evaluate_s >= 0 and not each.empty for each in report.cycles)
    if not scored:
        return ["no update counted: the model is as it was"]
    said = [score(report.accuracy, report.loss) + f" after {_cycles(scored)}"]
    if isnan(report.training_s):
        return said
    stale = report.max_staleness
    busy = np.array([each.occupancy for each in report.ended_cycles])
    occupancy = f", occupancy {np.nanmean(busy):.0%}" if not np.isnan(busy).all() else ""
    time = f"{report.training_s:.1f} s of training, {report.ended_s - report.began_s:.1f} s in all"
    return [
        *said,
        f"{time}; truancy {report.mean_truancy:.1%} on average",
        f"{report.fulfilment:.0%} of planned visits done{occupancy}, staleness up to {stale:.3g}",
    ]


def _saved(report: Report) -> list[str]:
    places = {"model": report.model, "picture": report.picture_path, "trace": report.trace_path}
    return [f"{name:<8} {_near(path)}" for name, path in places.items() if path is not None]


def _near(path: Path) -> Path:
    """As short as it can be said from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _cycles(count: int) -> str:
    return f"{count} cycle" + "s" * (count != 1)
