"""Models of a run that are kept besides the last one: the best, and one for each cycle.

The best model has the highest accuracy, and among equals the lowest loss; without accuracy, as in
regression, it has the lowest loss.
"""

from math import inf
from pathlib import Path

from safetensors.numpy import save

from melisma.atomic import write_atomic
from melisma.learning.parameters import Arrays
from melisma.runs.folder import BEST_MODEL_FILE, CHECKPOINTS_FOLDER


class Checkpoints:
    """Keeps models in a run folder by `rule` (`checkpoints` of the task): none, best or all.

    `best` is the quality of the best model so far: its accuracy, and its loss with a minus.
    """

    def __init__(self, folder: Path, rule: str) -> None:
        self._folder, self._rule = folder, rule
        self.best = -inf, -inf

    def keep(
        self, cycle: int, parameters: Arrays, accuracy: float | None, loss: float | None
    ) -> None:
        """Write the model after a cycle, as far as the rule asks for it; None if not evaluated."""
        quality = -inf if accuracy is None else accuracy, -inf if loss is None else -loss
        is_best = self._rule != "none" and quality > self.best
        if not is_best and self._rule != "all":
            return
        content = save(dict(parameters))
        if self._rule == "all":
            path = self._folder / CHECKPOINTS_FOLDER / f"cycle-{cycle:04}.safetensors"
            write_atomic(path, content, mode=0o600)
        if is_best:
            self.best = quality
            write_atomic(self._folder / BEST_MODEL_FILE, content, mode=0o600)
