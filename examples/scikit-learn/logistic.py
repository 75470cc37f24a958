"""A trainer for Melisma with scikit-learn: one-vs-rest logistic regression."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from melisma.errors import DataError
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score, TrainingResult

Arrays = Mapping[str, Any]


class Logistic:
    """A linear classifier for each class, trained in batches with `partial_fit`."""

    def __init__(self, task: Task, features: int, classes: int) -> None:
        if classes < 3:
            raise ValueError(f"classes is {classes}; this example has one row each, from 3 on")
        self._task, self._features, self._classes = task, features, classes

    def initial(self) -> dict[str, Any]:
        """Return zeros: the loss is convex, so the start does not matter."""
        return {
            "coef": np.zeros((self._classes, self._features)),
            "intercept": np.zeros(self._classes),
        }

    def train(
        self,
        parameters: Arrays,
        batches: Iterator[Split],
        rng: np.random.Generator,
    ) -> TrainingResult:
        """Train each batch once; this model needs no random numbers."""
        del rng
        model = self._load_model(parameters)
        visits, loss_sum = 0, 0.0
        for batch in batches:
            x, y = self._flatten(batch), batch.labels
            loss_sum += self._score(model, x, y).loss_sum
            model.partial_fit(x, y, classes=np.arange(self._classes))
            visits += len(batch)
        return self._result(model, visits, loss_sum)

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Return the summed loss and the number of correct predictions."""
        return self._score(self._load_model(parameters), self._flatten(samples), samples.labels)

    def _load_model(self, parameters: Arrays) -> SGDClassifier:
        model = SGDClassifier(
            loss="log_loss",
            learning_rate="constant",
            eta0=self._task.optimizer.lr,
            alpha=self._task.optimizer.weight_decay,
            random_state=self._task.seed,
        )
        model.coef_ = np.array(parameters["coef"])
        model.intercept_ = np.array(parameters["intercept"])
        model.classes_ = np.arange(self._classes)
        return model

    def _result(self, model: SGDClassifier, visits: int, loss_sum: float) -> TrainingResult:
        parameters = {"coef": model.coef_, "intercept": model.intercept_}
        return TrainingResult(parameters, visits, loss_sum / visits if visits else float("nan"))

    def _score(self, model: SGDClassifier, x: Any, y: Any) -> Score:
        if y.max() >= self._classes:
            raise DataError(f"a label is {y.max()}; there are {self._classes} classes")
        margins = x @ model.coef_.T + model.intercept_
        wanted = np.where(np.arange(self._classes) == y[:, None], 1.0, -1.0)
        loss_sum = float(np.logaddexp(0.0, -wanted * margins).sum())
        return Score(len(y), loss_sum, int((margins.argmax(axis=1) == y).sum()))

    def _flatten(self, samples: Split) -> Any:
        flat = samples.samples.reshape(len(samples), -1)
        if flat.shape[1] != self._features:
            raise DataError(f"samples of {flat.shape[1]} numbers; expected {self._features}")
        return flat / 255.0 if flat.dtype == np.uint8 else flat.astype(np.float64)
