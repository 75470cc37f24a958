from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score, TrainingResult, TrainingState
from melisma.learning.trainer_factory import trainer_for
from melisma.testing import FakeTrainer, check_trainer, make_task
from tests.live.learner import counting_task

SAMPLES = Split(np.zeros((25, 3), np.float32), np.zeros(25, np.int64))


def test_the_fake_trainer_passes_and_can_be_named_in_a_task() -> None:
    check_trainer(trainer_for(make_task(model="melisma.testing:FakeTrainer")), SAMPLES)


class Flawed(FakeTrainer):
    """Breaks one rule."""

    def __init__(self, flaw: str) -> None:
        super().__init__(make_task(batch=10))
        self._flaw = flaw

    def initial(self) -> dict[str, Any]:
        return {} if self._flaw == "empty" else super().initial()

    def train(
        self,
        parameters: Any,
        batches: Iterator[Split],
        rng: np.random.Generator,
    ) -> TrainingResult:
        if self._flaw == "hasty":
            batches = islice(batches, 2)
        if self._flaw == "mutates":
            parameters["visits"] += 1
        trained = super().train(parameters, batches, rng)
        if self._flaw == "restless":
            trained.parameters["visits"] += 1
        visits = trained.visits + (self._flaw == "miscounts") * (trained.visits > 0)
        visits += self._flaw == "invents" and not visits
        if self._flaw == "random":
            trained.parameters["visits"] += np.random.default_rng().random()
        return TrainingResult(trained.parameters, visits, trained.loss)

    def score(self, parameters: Any, samples: Split) -> Score:
        score = super().score(parameters, samples)
        return Score(score.samples, np.nan, 0, 0) if self._flaw == "nan" else score


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("empty", "no parameters"),
        ("hasty", "before the batches ended: 32 visits are left"),
        ("invents", "reports 1 visits without a batch"),
        ("restless", "without a batch changes parameters"),
        ("mutates", "changes the parameters that it is given"),
        ("miscounts", "2 passes are 51 visits, not 50"),
        ("random", "the same rng gives another result"),
        ("nan", "a loss of nan"),
    ],
)
def test_a_broken_rule_is_named(flaw: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_trainer(Flawed(flaw), SAMPLES)


def test_a_trainer_with_other_parameters_is_refused() -> None:
    class Old(FakeTrainer):
        def train(self, parameters: Any, samples: Any, passes: int, rng: Any, stop: Any) -> Any: ...  # type: ignore[override]

    with pytest.raises(
        AssertionError, match=r"train takes \(parameters, samples, passes, rng, stop"
    ):
        check_trainer(Old(make_task()), SAMPLES)  # type: ignore[arg-type]


class Careless(counting_task.Counting):
    """Forgets the visits that were made before."""

    def restore(self, state: TrainingState) -> None:
        super().restore(replace(state, visits=0))


def test_a_training_that_is_continued_is_compared_with_one_that_was_not_interrupted() -> None:
    samples = Split(np.zeros((25, 3), np.float32), np.arange(25))
    check_trainer(counting_task.Counting(make_task()), samples)
    with pytest.raises(AssertionError, match=r"continued from checkpoint\(\) gives another"):
        check_trainer(Careless(make_task()), samples)
