"""Training of many learners as one batched computation with PyTorch.

Learners that start from the same parameters are stacked along a first axis and take steps together,
one chunk of learners at a time. Two classes compute a stack: hand-written linear layers and
activations, or any model through `vmap`; the first that passes a trial is used. Short batches are
padded with samples of weight 0.

Visits and the order of samples equal those of training one by one. Sums are computed in another
order: after a few passes parameters agree to a relative 1e-4, and to 2e-6 near 0.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from math import ceil
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional

from melisma.fleet.array_types import Ints
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.batched import (
    MAX_STACKED_BYTES,
    SHORT_WORK_FACTOR,
    STACK_LEARNERS,
    BatchedResults,
    TrainingWork,
    train_one,
)
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.pytorch.models import to_model_input
from melisma.learning.pytorch.optimizers import (
    add_proximal_gradient,
    is_plain_sgd,
    optimizer_for,
)
from melisma.learning.pytorch.torch_layers import StackedLayers
from melisma.learning.pytorch.torch_trainer import TorchTrainer


@dataclass(frozen=True, eq=False)
class StackedBatch:
    """Samples, labels and the share of each label in the mean loss; learners on the first axis."""

    x: Tensor
    y: Tensor
    shares: Tensor


class StackedModel(Protocol):
    """Computes the steps of a stack of learners."""

    def set_weights(self, weights: Sequence[Tensor], *, alike: bool = False) -> None:
        """Use these weights, learners on the first axis, in the following steps.

        `alike` states that all learners still have the same weights.
        """

    def step(self, batch: StackedBatch) -> Tensor:
        """Return the loss of each learner; update the weights, or set their gradients."""


StackedModelClass = Callable[[TorchTrainer, OptimizerSettings], StackedModel]
SampleForm = tuple[object, ...]

CHUNK_BYTES = 16 * MAX_STACKED_BYTES  # parameters of the learners of a chunk
FEW_BATCHES = 4  # batches of a learner with short work
IGNORE_INDEX = -100  # the label that PyTorch excludes from the mean
TRIAL_TOLERANCE = 1e-2  # error of a trial, relative to the distance that the weights moved


def train_stacked(
    task: Task,
    trainer: TorchTrainer,
    model_class: StackedModelClass,
    works: Sequence[TrainingWork],
    parameters: Arrays,
) -> Iterator[BatchedResults]:
    """Train like `batched.train_many`, with that class of stacked model."""
    trainer.model.train()
    start = [torch.from_numpy(np.array(parameters[name])) for name in trainer.weights]

    def train(chunk: range) -> BatchedResults:
        stack = _Stack(task, trainer, start, works[chunk.start : chunk.stop])
        results = stack.train(model_class)
        return replace(results, indices=chunk.start + results.indices)

    max_learners = STACK_LEARNERS if model_class is LayerwiseModel else STACK_LEARNERS // 2
    if all(_batch_count(work, task.batch) <= FEW_BATCHES for work in works):
        max_learners *= SHORT_WORK_FACTOR
    yield from map(train, _chunks(len(works), max_learners, _model_bytes(trainer)))


def choose_stacked_model(
    task: Task, trainer: TorchTrainer, works: Sequence[TrainingWork]
) -> StackedModelClass | None:
    """Return the class that computes these learners together; None if no class can."""
    nonempty = [work for work in works if len(work)]
    forms = {_sample_form(work.samples) for work in nonempty}
    if len(forms) != 1 or task.optimizer.keep:
        return None
    chosen = _CHOSEN.setdefault(trainer, {})
    (form,) = forms
    if form not in chosen:
        candidates = STACKED_MODELS if _is_stackable(trainer) else ()
        trial_samples = nonempty[0].own_samples
        chosen[form] = next(
            (each for each in candidates if _passes_trial(each, task, trainer, trial_samples)), None
        )
    return chosen[form]


class LayerwiseModel:
    """Hand-written linear layers and activations; `TypeError` for other layers."""

    def __init__(self, trainer: TorchTrainer, settings: OptimizerSettings) -> None:
        fused = is_plain_sgd(settings) and not trainer.prox
        self._layers = StackedLayers(trainer.model, settings if fused else None)
        self._loss = trainer.loss
        self.set_weights = self._layers.set_weights

    def step(self, batch: StackedBatch) -> Tensor:
        """Run a forward and a backward pass of all learners."""
        with torch.no_grad():
            out = self._layers.forward(batch.x)
            if self._loss is functional.cross_entropy:
                losses, gradient = _cross_entropy_and_gradient(out, batch)
            else:
                losses, gradient = _loss_and_gradient(self._loss, out, batch)
            self._layers.backward(gradient)
        return losses


class VmapModel:
    """Any model that `vmap` supports, such as one without random numbers."""

    def __init__(self, trainer: TorchTrainer, _: OptimizerSettings) -> None:
        # `functional_call` swaps the weights of the model: use a copy of the trainer's model.
        self._model, self._loss = deepcopy(trainer.model), trainer.loss
        self._names, self._weights = [*trainer.weights], tuple[Tensor, ...]()

    def set_weights(self, weights: Sequence[Tensor], *, alike: bool = False) -> None:  # noqa: ARG002
        """Use these weights in the following steps."""
        self._weights = tuple(weights)

    def step(self, batch: StackedBatch) -> Tensor:
        """Set the gradients of all learners' weights."""
        x = to_model_input(batch.x.flatten(0, 1))
        out = vmap(self._out)(self._weights, x.reshape(*batch.x.shape[:2], *x.shape[1:]))
        losses = _mean_losses(self._loss, out, batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    def _out(self, weights: Sequence[Tensor], x: Tensor) -> Any:
        return functional_call(self._model, dict(zip(self._names, weights, strict=True)), (x,))


STACKED_MODELS: tuple[StackedModelClass, ...] = (LayerwiseModel, VmapModel)
_CHOSEN: WeakKeyDictionary[TorchTrainer, dict[SampleForm, StackedModelClass | None]] = (
    WeakKeyDictionary()
)


class _Stack:
    """The learners of one chunk, sorted by descending number of batches."""

    def __init__(
        self,
        task: Task,
        trainer: TorchTrainer,
        start: Sequence[Tensor],
        works: Sequence[TrainingWork],
    ) -> None:
        self._task, self._trainer, self._start = task, trainer, start
        size = max(1, min(task.batch, max(map(len, works))))
        batch_counts = np.array([_batch_count(work, size) for work in works])
        self._order = np.argsort(-batch_counts, kind="stable")
        self._pool, starts = _pool_samples(works)
        # Pool indices of the samples of each learner and batch, and how many of them count.
        indices = np.empty((len(works), batch_counts.max(), size), np.int64)
        counts = np.zeros((len(works), batch_counts.max()), np.int64)
        for row, learner in enumerate(self._order.tolist()):
            _fill_batches(indices[row], counts[row, : batch_counts[learner]], works[learner])
        indices += starts[self._order, None, None]
        # From here on steps are on the first axis and learners on the second.
        self._indices, self._counts = np.ascontiguousarray(indices.swapaxes(0, 1)), counts.T
        self._losses = np.zeros(self._counts.shape)
        self._ignores = task.loss != "mse" and bool((self._pool.labels == IGNORE_INDEX).any())
        self._shares = self._label_shares()
        self._weights = [
            _stack(weight, len(works)).requires_grad_(own.requires_grad)
            for weight, own in zip(start, trainer.weights.values(), strict=True)
        ]

    def train(self, model_class: StackedModelClass) -> BatchedResults:
        """Train all batches of all learners; return the results."""
        model = model_class(self._trainer, self._task.optimizer)
        optimizer, weights = optimizer_for(self._task.optimizer), self._weights
        model.set_weights(weights, alike=True)
        for steps, learners, batch_size in self._equal_steps():
            if learners < len(weights[0]):
                weights = [_narrow(weight, learners) for weight in weights]
                model.set_weights(weights)
                optimizer.keep_first(learners)
            losses = []
            for batch in self._batches(steps, learners, batch_size):
                losses.append(model.step(batch))
                if any(weight.grad is not None for weight in weights):
                    add_proximal_gradient(weights, self._start, self._trainer.prox)
                    optimizer.step(weights)
                    for weight in weights:
                        weight.grad = None
            self._losses[steps, :learners] += torch.stack(losses).numpy()
        return self._results()

    def _equal_steps(self) -> Iterator[tuple[slice, int, int]]:
        """Yield ranges of steps with equal numbers of learners and batch sizes, and these."""
        learners, batch_sizes = np.count_nonzero(self._counts, axis=1), self._counts.max(1)
        forms, start = zip(learners.tolist(), batch_sizes.tolist(), strict=True), 0
        for form, steps in groupby(forms):
            end = start + len([*steps])
            yield slice(start, end), *form
            start = end

    def _label_shares(self) -> Tensor:
        """Return the share of each label in its batch; 0 for padding and ignored labels."""
        counted = np.arange(self._indices.shape[2]) < self._counts[..., None]
        if self._ignores:
            valid = self._pool.labels[self._indices] != IGNORE_INDEX
            counted = np.expand_dims(counted, tuple(range(3, valid.ndim))) & valid
        shares = torch.from_numpy(counted)
        total = shares.sum(tuple(range(2, shares.dim())), keepdim=True)
        # A batch in which all labels are ignored has no gradient and no loss.
        self._losses[(total.numpy().reshape(self._counts.shape) == 0) & (self._counts > 0)] = np.nan
        return shares / total.clamp(min=1)

    def _labels(self, indices: Ints) -> Tensor:
        labels = self._trainer.labels_tensor(self._pool.labels[indices])
        # Any valid label in place of an ignored one: its share is 0.
        return labels.masked_fill_(labels == IGNORE_INDEX, 0) if self._ignores else labels

    def _batches(self, steps: slice, learners: int, batch_size: int) -> Iterator[StackedBatch]:
        """Yield one batch after the other; all reuse the memory of the samples."""
        selection, pool = (steps, slice(learners), slice(batch_size)), self._pool.samples
        buffer = np.empty((learners, batch_size, *pool.shape[1:]), pool.dtype)
        indices, shares = self._indices[selection], self._shares[selection].unbind()
        # Convert all labels at once, unless they may be as large as samples.
        single = self._pool.labels.ndim == 1
        labels = self._labels(indices).unbind() if single else map(self._labels, indices)
        for rows, y, share in zip(indices, labels, shares, strict=True):
            np.take(pool, rows, 0, out=buffer, mode="clip")
            yield StackedBatch(self._trainer.samples_tensor(buffer), y, share)

    def _results(self) -> BatchedResults:
        arrays = [weight.detach().numpy() for weight in self._weights]
        parameters = dict(zip(self._trainer.weights, arrays, strict=True))
        visits, loss = self._counts.sum(0), (self._losses * self._counts).sum(0)
        loss = np.divide(loss, visits, out=np.full(visits.size, np.nan), where=visits > 0)
        return BatchedResults(self._order, parameters, visits, loss)


def _mean_losses(loss: Callable[..., Tensor], out: Tensor, batch: StackedBatch) -> Tensor:
    """Return the mean loss of each learner; outputs are (learners, samples, features)."""
    losses = loss(out.flatten(0, 1), batch.y.flatten(0, 1), reduction="none")
    # The labels of a sample share one weight, unless some are ignored.
    losses = losses.reshape(*batch.shares.shape, -1).mean(-1)
    return (losses * batch.shares).flatten(1).sum(1)


def _loss_and_gradient(
    loss: Callable[..., Tensor], out: Tensor, batch: StackedBatch
) -> tuple[Tensor, Tensor]:
    """Return losses and the gradient of their sum; outputs are (learners, features, samples)."""
    with torch.enable_grad():
        out = out.detach().requires_grad_()
        losses = _mean_losses(loss, out.mT, batch)
        (gradient,) = torch.autograd.grad(losses.sum(), out)
    return losses.detach(), gradient


def _cross_entropy_and_gradient(out: Tensor, batch: StackedBatch) -> tuple[Tensor, Tensor]:
    """Return losses and gradient of the cross entropy, without autograd."""
    y, shares = batch.y.unsqueeze(1), batch.shares.unsqueeze(1)
    log_probs, minus_shares = out.log_softmax(1), -shares
    losses = (log_probs.gather(1, y) * minus_shares).sum((1, 2))
    return losses, log_probs.exp_().mul_(shares).scatter_add_(1, y, minus_shares)


def _batch_count(work: TrainingWork, size: int) -> int:
    """Return the number of batches of that size that a learner trains."""
    return min(work.passes * ceil(len(work) / size), work.batches)


def _fill_batches(indices: Ints, counts: Ints, work: TrainingWork) -> None:
    """Write the sample indices of each batch of a learner, and how many of each batch count.

    Short batches are padded with the first sample. As in `batch_indices`, a pass is shuffled when
    its first batch is requested.
    """
    rows, size = len(work), indices.shape[1]
    flat, pass_batches, rng = indices.ravel(), ceil(rows / size), work.rng()
    flat[:] = 0 if work.rows is None or not rows else work.rows[0]
    for nth in range(min(work.passes, ceil(work.batches / max(pass_batches, 1)))):
        order = rng.permutation(rows)
        target = flat[nth * pass_batches * size :][:rows]
        target[:] = (order if work.rows is None else work.rows[order])[: target.size]
    counts[:] = size
    if pass_batches:
        counts[pass_batches - 1 :: pass_batches] = rows - (pass_batches - 1) * size


def _pool_samples(works: Sequence[TrainingWork]) -> tuple[Split, Ints]:
    """Return the samples of all works as one split, and the first index of each work."""
    splits = {id(work.samples): work.samples for work in works if len(work)}
    if len(splits) < 2:
        return next(iter(splits.values()), works[0].samples), np.zeros(len(works), np.int64)
    starts = dict(zip(splits, accumulate(map(len, splits.values()), initial=0), strict=False))
    pairs = [(split.samples, split.labels) for split in splits.values()]
    pool = Split(*(np.concatenate(parts) for parts in zip(*pairs, strict=True)))
    return pool, np.array([starts.get(id(work.samples), 0) for work in works])


def _stack(weight: Tensor, learners: int) -> Tensor:
    return weight.detach().repeat(learners, *[1] * weight.dim())


def _narrow(weights: Tensor, learners: int) -> Tensor:
    """Return the weights of the first learners, in the same memory."""
    return weights.detach()[:learners].requires_grad_(weights.requires_grad)


def _is_stackable(trainer: TorchTrainer) -> bool:
    """Whether a model is small and holds nothing but parameters, each under one name."""
    no_buffers = next(trainer.model.buffers(), None) is None
    each_once = [*trainer.weights] == [*trainer.model.state_dict()]
    return no_buffers and each_once and _model_bytes(trainer) <= MAX_STACKED_BYTES


def _passes_trial(
    model_class: StackedModelClass, task: Task, trainer: TorchTrainer, split: Split
) -> bool:
    """Whether two learners with unequal batches get the same results as one by one."""
    start = trainer.initial()
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            trainer.load_for_training(start)
            stack = _Stack(task, trainer, [*trainer.weights.values()], _trial_works(split))
            results = stack.train(model_class)
            expected = [train_one(task, trainer, start, work) for work in _trial_works(split)]
        except Exception:  # noqa: BLE001 - The model is the user's; training one by one raises its error.
            return False
    return all(
        _distance({name: array[row] for name, array in results.parameters.items()}, right)
        <= TRIAL_TOLERANCE * _distance(right, start) + 1e-6 * _distance(start, None)
        for row, right in enumerate(expected[index].parameters for index in results.indices)
    )


def _trial_works(split: Split) -> list[TrainingWork]:
    splits = [Split(split.samples[:size], split.labels[:size]) for size in (3, 2)]
    return [
        TrainingWork(samples, 2, partial(np.random.default_rng, 1), 3 - index)
        for index, samples in enumerate(splits)
    ]


def _distance(left: Arrays, right: Arrays | None) -> float:
    """Return the Euclidean distance; the norm of `left` if `right` is missing."""
    gaps = (array if right is None else array - right[name] for name, array in left.items())
    return float(np.sqrt(sum(np.square(gap, dtype=np.float64).sum() for gap in gaps)))


def _sample_form(split: Split) -> SampleForm:
    """Return the dtypes and shapes of a sample and its label."""
    samples, labels = split.samples, split.labels
    return samples.dtype, samples.shape[1:], labels.dtype, labels.shape[1:]


def _model_bytes(trainer: TorchTrainer) -> int:
    return sum(weight.nbytes for weight in trainer.weights.values())


def _chunks(learners: int, max_learners: int, learner_bytes: int) -> list[range]:
    """Return ranges of learners of about equal length."""
    size = min(max_learners, CHUNK_BYTES // max(learner_bytes, 1))
    count = min(ceil(learners / size), learners)
    edges = [learners * chunk // count for chunk in range(count + 1)]
    return [range(*edge_pair) for edge_pair in pairwise(edges)]
