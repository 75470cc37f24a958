"""`melisma bench`: what training and fetching cost here, predicted from a few shards and checked.

Numerical libraries read how many threads they may use when they are loaded. Where a device is
emulated by a share of one core, that is one, so nothing that loads them is imported before.
"""

import os

import click

from melisma.errors import SettingError

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
MOST_SHARDS = 10_000


@click.command("bench")
@click.argument("task_path", metavar="TASK.toml")
@click.option("--fleet", "fleet_path", metavar="FLEET.toml", help="Where --learner is described.")
@click.option("--learner", help="Emulate this device of the fleet.")
@click.option("--profile", help="Emulate a device of this kind.")
@click.option(
    "--shards", default="2,4,8", show_default=True, help="How many to measure with, one by one."
)
@click.option(
    "--others", type=int, default=20, show_default=True, help="Further shards to predict at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    task_path: str,
    fleet_path: str | None,
    learner: str | None,
    profile: str | None,
    shards: str,
    others: int,
    as_json: bool,
) -> None:
    """Predict from a few shards what training and fetching take here, and check it."""
    if (fleet_path is None) != (learner is None):
        raise SettingError("--fleet and --learner go together")
    if learner is not None and profile is not None:
        raise SettingError("--learner and --profile exclude each other")
    if others < 1:
        raise SettingError(f"--others is {others}; expected at least 1")
    counts = _counts(shards)
    if learner is not None or profile is not None:
        os.environ.update(dict.fromkeys(THREADS, "1"))
    from melisma.cli import bench_device, bench_measurement, output
    from melisma.cli.views import bench_view
    from melisma.fleet.task import read_task

    task = read_task(task_path)
    device = bench_device.chosen(task, fleet_path, learner, profile)
    report = bench_measurement.report(task_path, task, device, counts, others)
    output.write(bench_view.as_json(report) if as_json else bench_view.page(report))


def _counts(text: str) -> list[int]:
    """Numbers of shards, the smallest first."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise SettingError(f"--shards is {text!r}; expected numbers such as 2,4,8")
    counts = sorted({int(word) for word in words})
    if not 1 <= counts[0] <= counts[-1] <= MOST_SHARDS:
        raise SettingError(f"--shards is {text!r}; expected numbers from 1 to {MOST_SHARDS}")
    return counts
