"""`melisma bench`: predict the cost of training and fetching from a few shards, and check it.

Numerical libraries read the number of threads when they are loaded. An emulated device is a share
of one core, so that number is set to one before anything that loads these libraries is imported.
"""

import os

import click

from melisma.errors import SettingError

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
MAX_SHARDS = 10_000


@click.command("bench", short_help="Measure training and fetching, and check predictions.")
@click.argument("task_path", metavar="TASK.toml")
@click.option("--fleet", "fleet_path", metavar="FLEET.toml", help="Fleet file with --learner.")
@click.option("--learner", help="Emulate this learner of the fleet.")
@click.option("--profile", help="Emulate a device with this profile.")
@click.option(
    "--shards", default="2,4,8", show_default=True, help="Numbers of shards to predict from."
)
@click.option(
    "--others",
    type=int,
    default=20,
    show_default=True,
    help="Maximum number of other shards to predict.",
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
    """Predict the cost of training and fetching from a few shards, and check it."""
    if (fleet_path is None) != (learner is None):
        raise SettingError("--fleet and --learner go together")
    if learner is not None and profile is not None:
        raise SettingError("--learner and --profile exclude each other")
    if others < 1:
        raise SettingError(f"--others is {others}; expected at least 1")
    counts = _parse_counts(shards)
    if learner is not None or profile is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    from melisma.cli import output
    from melisma.cli.bench_device import select_device
    from melisma.cli.bench_report import run_bench
    from melisma.cli.views.bench_view import as_json_line, bench_view
    from melisma.fleet.files.task_file import read_task

    task = read_task(task_path)
    device = select_device(task, fleet_path, learner, profile)
    report = run_bench(task_path, task, device, counts, others)
    output.write(as_json_line(report) if as_json else bench_view(report))


def _parse_counts(text: str) -> list[int]:
    """Return the numbers of shards, the smallest first."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise SettingError(f"--shards is {text!r}; expected numbers such as 2,4,8")
    counts = sorted({int(word) for word in words})
    if not 1 <= counts[0] <= counts[-1] <= MAX_SHARDS:
        raise SettingError(f"--shards is {text!r}; expected numbers from 1 to {MAX_SHARDS}")
    return counts
