"""`melisma evaluate`: print the score of a model on the test samples of a task."""

import sys
from contextlib import redirect_stdout
from math import isfinite
from pathlib import Path

import click
import msgspec

from melisma.cli.options import DEFAULT_TASK, FILE, default_task_argument, json_option
from melisma.cli.output import write
from melisma.cli.views.run_view import format_score
from melisma.learning.evaluation import evaluate


@click.command("evaluate", short_help="Print accuracy and loss of a model on test samples.")
@click.argument("model", metavar="MODEL", type=FILE)
@default_task_argument
@json_option
def command(*, model: Path, task: Path | None, as_json: bool) -> None:
    """Print accuracy and loss of MODEL, a .safetensors file, on the test samples of TASK.toml.

    Without a task: handwritten digits, as in `melisma run`.
    """
    # Output of the user's modules must not mix with the score.
    with redirect_stdout(sys.stderr):
        score = evaluate(model, task or DEFAULT_TASK)
    if not as_json:
        write(f"{format_score(score.accuracy, score.loss)} on {score.samples:,} test samples\n")
        return
    figures = {"accuracy": score.accuracy, "loss": score.loss}
    known = {key: value if isfinite(value) else None for key, value in figures.items()}
    write(msgspec.json.encode({**known, "samples": score.samples}).decode() + "\n")
