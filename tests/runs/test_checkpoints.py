"""Models that are kept besides the last one."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from melisma.runs.checkpoints import Checkpoints

Scores = list[tuple[float | None, float | None]]


def keep(folder: Path, rule: str, scores: Scores) -> set[str]:
    """Keep a model for each score, with the number of its cycle, and return all files."""
    checkpoints = Checkpoints(folder, rule)
    for cycle, (accuracy, loss) in enumerate(scores, 1):
        checkpoints.keep(cycle, {"cycle": np.array([cycle])}, accuracy, loss)
    return {str(path.relative_to(folder)) for path in folder.rglob("*.*")}


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(0.1, 2.0), (0.9, 1.0), (0.5, 0.5)], 2),
        ([(0.5, 2.0), (0.5, 1.0), (0.5, 3.0)], 2),
        ([(None, 2.0), (None, 0.5), (None, 1.0)], 2),
        ([(0.5, 1.0), (0.5, 1.0)], 1),
    ],
)
def test_the_best_model_has_the_highest_accuracy_then_the_lowest_loss(
    tmp_path: Path, scores: Scores, best: int
) -> None:
    assert keep(tmp_path, "best", scores) == {"best.safetensors"}
    assert load_file(tmp_path / "best.safetensors")["cycle"].tolist() == [best]


def test_all_keeps_the_model_of_each_cycle_and_the_best(tmp_path: Path) -> None:
    files = keep(tmp_path, "all", [(0.1, 1.0), (0.2, 1.0)])
    cycles = {f"checkpoints/cycle-000{cycle}.safetensors" for cycle in (1, 2)}
    assert files == {"best.safetensors", *cycles}


def test_nothing_is_kept_unless_asked_for_and_no_best_model_without_a_score(
    tmp_path: Path,
) -> None:
    assert keep(tmp_path, "none", [(0.1, 1.0)]) == set()
    assert keep(tmp_path, "best", [(None, None)]) == set()
