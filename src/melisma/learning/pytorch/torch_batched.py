"""Training of many learners as one batched computation with PyTorch.

Learners that begin from the same parameters are stacked along a first axis and step together, a
chunk at a time. Of the ways to compute a stack the first is taken that a trial shows to be right:
linear layers and activations by hand, or any model through `vmap`. Batches shorter than their
neighbours' are filled up with samples that weigh nothing.

Visits and the order of samples are those of training one by one. Numbers are summed in another
order: after a few passes parameters agree to a part in 10^4, and 2e-6 where they are near 0.
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

from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.batched import (
    SHORT_WORK_FACTOR,
    STACK_LEARNERS,
    BatchedResults,
    Ints,
    TrainingWork,
    train_one,
)
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.pytorch.models import to_model_input
from melisma.learning.pytorch.optimizers import optimizer_for
from melisma.learning.pytorch.torch_layers import StackedLayers
from melisma.learning.pytorch.torch_trainer import TorchTrainer


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples, labels and what these weigh in their learner's mean; learners come first."""

    x: Tensor
    y: Tensor
    shares: Tensor


class StackedModel(Protocol):
    """Takes the steps of a stack."""

    def set_weights(self, weights: Sequence[Tensor], *, alike: bool = False) -> None:
        """Step with these weights, learners on the first axis, from now on.

        They are told to be alike where learners have not moved yet.
        """

    def step(self, batch: Batch) -> Tensor:
        """Each learner's loss; weights have moved then, or have gradients."""


StackedModelClass = Callable[[TorchTrainer, OptimizerSettings], StackedModel]
SampleForm = tuple[object, ...]

# Measured: a few learners with large models are faster one by one.
CHUNK_BYTES = 40 << 20  # of their parameters
MAX_MODEL_BYTES = CHUNK_BYTES // 16  # of one learner's
FEW_BATCHES = 4  # batches
IGNORE_INDEX = -100  # a label that PyTorch leaves out of the mean
TRIAL_TOLERANCE = 1e-2  # of a trial, for the distance to what is right by the distance moved


def train_stacked(
    task: Task,
    trainer: TorchTrainer,
    way: StackedModelClass,
    works: Sequence[TrainingWork],
    parameters: Arrays,
) -> Iterator[BatchedResults]:
    """As `batched.train_many`, in that way."""
    trainer.model.train()
    start = [torch.from_numpy(np.array(parameters[name])) for name in trainer.weights]

    def train(chunk: range) -> BatchedResults:
        done = _train_chunk(task, trainer, way, start, works[chunk.start : chunk.stop])
        return replace(done, indices=chunk.start + done.indices)

    # A few large products, each on all cores; MKL takes fewer unless it is told.
    torch.set_num_threads(torch.get_num_threads())
    most = STACK_LEARNERS if way is LayerwiseModel else STACK_LEARNERS // 2
    if all(_batch_count(work, task.batch) <= FEW_BATCHES for work in works):
        most *= SHORT_WORK_FACTOR
    yield from map(train, _chunks(len(works), most, _model_bytes(trainer)))


def stacked_model_for(
    task: Task, trainer: TorchTrainer, works: Sequence[TrainingWork]
) -> StackedModelClass | None:
    """How to compute a stack of these learners; none where they have to train one by one."""
    some = [work for work in works if len(work)]
    forms = {_sample_form(work.samples) for work in some}
    if len(forms) != 1 or task.optimizer.keep:
        return None
    known = _CHOSEN.setdefault(trainer, {})
    (form,) = forms
    if form not in known:
        ways = STACKED_MODELS if _is_stackable(trainer) else ()
        known[form] = next(
            (way for way in ways if _passes_trial(way, task, trainer, some[0].own_samples)), None
        )
    return known[form]


class LayerwiseModel:
    """Linear layers and activations by hand; `TypeError` for others."""

    def __init__(self, trainer: TorchTrainer, said: OptimizerSettings) -> None:
        self._layers, self._loss = StackedLayers(trainer.model, said), trainer.loss
        self.set_weights = self._layers.set_weights

    def step(self, batch: Batch) -> Tensor:
        """As `Steps` says."""
        with torch.no_grad():
            out = self._layers.forward(batch.x)
            if self._loss is functional.cross_entropy:
                losses, slope = _cross_entropy_and_gradient(out, batch)
            else:
                losses, slope = _loss_and_gradient(self._loss, out, batch)
            self._layers.backward(slope)
        return losses


class VmapModel:
    """Any model that `vmap` can take, one without chance for example."""

    def __init__(self, trainer: TorchTrainer, _: OptimizerSettings) -> None:
        # While it is called a model holds the weights of its caller; the trainer's stays as it is.
        self._model, self._loss = deepcopy(trainer.model), trainer.loss
        self._names, self._weights = [*trainer.weights], tuple[Tensor, ...]()

    def set_weights(self, weights: Sequence[Tensor], *, alike: bool = False) -> None:  # noqa: ARG002
        """As `Steps` says."""
        self._weights = tuple(weights)

    def step(self, batch: Batch) -> Tensor:
        """As `Steps` says."""
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


def _train_chunk(
    task: Task,
    trainer: TorchTrainer,
    way: StackedModelClass,
    start: Sequence[Tensor],
    works: Sequence[TrainingWork],
) -> BatchedResults:
    return _Stack(task, trainer, start, works).train(way)


class _Stack:
    """The learners of one chunk, those with the most batches first."""

    def __init__(
        self,
        task: Task,
        trainer: TorchTrainer,
        start: Sequence[Tensor],
        works: Sequence[TrainingWork],
    ) -> None:
        self._task, self._trainer = task, trainer
        size = max(1, min(task.batch, max(map(len, works))))
        turns = np.array([_batch_count(work, size) for work in works])
        self._order = np.argsort(-turns, kind="stable")
        self._pool, starts = _pool_samples(works)
        # Where the samples of each learner and batch are, and how many of them count.
        places = np.empty((len(works), turns.max(), size), np.int64)
        counts = np.zeros((len(works), turns.max()), np.int64)
        for row, learner in enumerate(self._order.tolist()):
            _fill_batches(places[row], counts[row, : turns[learner]], works[learner])
        places += starts[self._order, None, None]
        # Turn by turn from here on.
        self._places, self._counts = np.ascontiguousarray(places.swapaxes(0, 1)), counts.T
        self._losses = np.zeros(self._counts.shape)
        self._ignores = task.loss != "mse" and bool((self._pool.labels == IGNORE_INDEX).any())
        self._shares = self._weighed()
        self._weights = [
            _stack(each, len(works)).requires_grad_(own.requires_grad)
            for each, own in zip(start, trainer.weights.values(), strict=True)
        ]

    def train(self, way: StackedModelClass) -> BatchedResults:
        """Every batch of every learner, and what has come of it."""
        steps = way(self._trainer, self._task.optimizer)
        optimizer, weights = optimizer_for(self._task.optimizer), self._weights
        steps.set_weights(weights, alike=True)
        for turns, learners, longest in self._stretches():
            if learners < len(weights[0]):
                weights = [_narrow(each, learners) for each in weights]
                steps.set_weights(weights)
                optimizer.keep_first(learners)
            losses = []
            for batch in self._batches(turns, learners, longest):
                losses.append(steps.step(batch))
                if any(each.grad is not None for each in weights):
                    optimizer.step(weights)
                    for each in weights:
                        each.grad = None
            self._losses[turns, :learners] += torch.stack(losses).numpy()
        return self._results()

    def _stretches(self) -> Iterator[tuple[slice, int, int]]:
        """Turns of the same form: with so many learners, and so many samples in a batch."""
        learners, longest = np.count_nonzero(self._counts, axis=1), self._counts.max(1)
        forms, first = zip(learners.tolist(), longest.tolist(), strict=True), 0
        for form, alike in groupby(forms):
            last = first + len([*alike])
            yield slice(first, last), *form
            first = last

    def _weighed(self) -> Tensor:
        """What labels weigh: nothing where a batch is filled up, or they are ignored."""
        counted = np.arange(self._places.shape[2]) < self._counts[..., None]
        if self._ignores:
            kept = self._pool.labels[self._places] != IGNORE_INDEX
            counted = np.expand_dims(counted, tuple(range(3, kept.ndim))) & kept
        shares = torch.from_numpy(counted)
        total = shares.sum(tuple(range(2, shares.dim())), keepdim=True)
        # Where all labels are ignored nobody learns, and there is no loss.
        self._losses[(total.numpy().reshape(self._counts.shape) == 0) & (self._counts > 0)] = np.nan
        return shares / total.clamp(min=1)

    def _labels(self, places: Ints) -> Tensor:
        labels = self._trainer.labels_tensor(self._pool.labels[places])
        # Any label that there is instead of one that is ignored: it weighs nothing.
        return labels.masked_fill_(labels == IGNORE_INDEX, 0) if self._ignores else labels

    def _batches(self, turns: slice, learners: int, longest: int) -> Iterator[Batch]:
        """One after the other, their samples in the same memory."""
        some, pool = (turns, slice(learners), slice(longest)), self._pool.samples
        room = np.empty((learners, longest, *pool.shape[1:]), pool.dtype)
        places, shares = self._places[some], self._shares[some].unbind()
        # All at once, unless they may be as large as samples.
        single = self._pool.labels.ndim == 1
        labels = self._labels(places).unbind() if single else map(self._labels, places)
        for rows, y, share in zip(places, labels, shares, strict=True):
            np.take(pool, rows, 0, out=room, mode="clip")
            yield Batch(self._trainer.samples_tensor(room), y, share)

    def _results(self) -> BatchedResults:
        arrays = [weight.detach().numpy() for weight in self._weights]
        parameters = dict(zip(self._trainer.weights, arrays, strict=True))
        visits, loss = self._counts.sum(0), (self._losses * self._counts).sum(0)
        loss = np.divide(loss, visits, out=np.full(visits.size, np.nan), where=visits > 0)
        return BatchedResults(self._order, parameters, visits, loss)


def _mean_losses(loss: Callable[..., Tensor], out: Tensor, batch: Batch) -> Tensor:
    """The mean loss of every learner's batch; outputs are (learners, samples, numbers)."""
    each = loss(out.flatten(0, 1), batch.y.flatten(0, 1), reduction="none")
    # The labels of a sample have one share, unless some are ignored.
    each = each.reshape(*batch.shares.shape, -1).mean(-1)
    return (each * batch.shares).flatten(1).sum(1)


def _loss_and_gradient(
    loss: Callable[..., Tensor], out: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """The losses and the slope of their sum; outputs are (learners, numbers, samples)."""
    with torch.enable_grad():
        out = out.detach().requires_grad_()
        losses = _mean_losses(loss, out.mT, batch)
        (slope,) = torch.autograd.grad(losses.sum(), out)
    return losses.detach(), slope


def _cross_entropy_and_gradient(out: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The same of the cross entropy, by hand."""
    y, shares = batch.y.unsqueeze(1), batch.shares.unsqueeze(1)
    logs, minus = out.log_softmax(1), -shares
    losses = (logs.gather(1, y) * minus).sum((1, 2))
    return losses, logs.exp_().mul_(shares).scatter_add_(1, y, minus)


def _batch_count(work: TrainingWork, size: int) -> int:
    """Batches of that size that a learner trains."""
    return min(work.passes * ceil(len(work) / size), work.batches)


def _fill_batches(places: Ints, counts: Ints, work: TrainingWork) -> None:
    """Say which samples of a learner are in each batch, and how many of each batch count.

    Short batches are filled up with its first sample. As in training a batch is drawn before it is
    asked whether to stop.
    """
    rows, size = len(work), places.shape[1]
    flat, pass_batches, rng = places.ravel(), ceil(rows / size), work.rng()
    flat[:] = 0 if work.rows is None or not rows else work.rows[0]
    for nth in range(min(work.passes, ceil((work.batches + 1) / max(pass_batches, 1)))):
        order = rng.permutation(rows)
        some = flat[nth * pass_batches * size :][:rows]
        some[:] = (order if work.rows is None else work.rows[order])[: some.size]
    counts[:] = size
    if pass_batches:
        counts[pass_batches - 1 :: pass_batches] = rows - (pass_batches - 1) * size


def _pool_samples(works: Sequence[TrainingWork]) -> tuple[Split, Ints]:
    """The samples of all works in one, and where those of each begin."""
    splits = {id(work.samples): work.samples for work in works if len(work)}
    if len(splits) < 2:
        return next(iter(splits.values()), works[0].samples), np.zeros(len(works), np.int64)
    starts = dict(zip(splits, accumulate(map(len, splits.values()), initial=0), strict=False))
    both = [(each.samples, each.labels) for each in splits.values()]
    pool = Split(*(np.concatenate(parts) for parts in zip(*both, strict=True)))
    return pool, np.array([starts.get(id(work.samples), 0) for work in works])


def _stack(weight: Tensor, learners: int) -> Tensor:
    return weight.detach().repeat(learners, *[1] * weight.dim())


def _narrow(weights: Tensor, learners: int) -> Tensor:
    """Those of the first learners, in the same memory."""
    return weights.detach()[:learners].requires_grad_(weights.requires_grad)


def _is_stackable(trainer: TorchTrainer) -> bool:
    """Whether all that a model holds are parameters, each under one name, and not too many."""
    no_buffers = next(trainer.model.buffers(), None) is None
    each_once = [*trainer.weights] == [*trainer.model.state_dict()]
    return no_buffers and each_once and _model_bytes(trainer) <= MAX_MODEL_BYTES


def _passes_trial(way: StackedModelClass, task: Task, trainer: TorchTrainer, split: Split) -> bool:
    """Whether two learners with batches of unequal length train in this way as one by one."""
    start = trainer.initial()
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            trainer.load_for_training(start)
            found = _train_chunk(
                task, trainer, way, [*trainer.weights.values()], _trial_works(split)
            )
            expected = [train_one(trainer, start, work) for work in _trial_works(split)]
        except Exception:  # noqa: BLE001 - The model is the user's; one by one it tells what is wrong.
            return False
    return all(
        _distance({name: array[row] for name, array in found.parameters.items()}, right)
        <= TRIAL_TOLERANCE * _distance(right, start) + 1e-6 * _distance(start, None)
        for row, right in enumerate(expected[place].parameters for place in found.indices)
    )


def _trial_works(split: Split) -> list[TrainingWork]:
    few = [Split(split.samples[:size], split.labels[:size]) for size in (3, 2)]
    return [
        TrainingWork(some, 2, partial(np.random.default_rng, 1), 3 - place)
        for place, some in enumerate(few)
    ]


def _distance(one: Arrays, other: Arrays | None) -> float:
    gaps = (array if other is None else array - other[name] for name, array in one.items())
    return float(np.sqrt(sum(np.square(gap, dtype=np.float64).sum() for gap in gaps)))


def _sample_form(split: Split) -> SampleForm:
    """Types and shapes of a sample and its label."""
    samples, labels = split.samples, split.labels
    return samples.dtype, samples.shape[1:], labels.dtype, labels.shape[1:]


def _model_bytes(trainer: TorchTrainer) -> int:
    return sum(each.nbytes for each in trainer.weights.values())


def _chunks(learners: int, most: int, learner_bytes: int) -> list[range]:
    """Of about equal length."""
    size = min(most, CHUNK_BYTES // max(learner_bytes, 1))
    count = min(ceil(learners / size), learners)
    edges = [learners * place // count for place in range(count + 1)]
    return [range(*both) for both in pairwise(edges)]
