"""Training of many learners as one batched computation with PyTorch.

Learners that begin from the same parameters are stacked along a first axis and step together, a
chunk at a time, each chunk on a thread of its own. Of the ways to compute a stack the first is
taken that a trial shows to be right: linear layers and activations by hand, where a plain step is
one with the product that makes the gradient, or any model through `vmap`. Batches shorter than
their neighbours' are filled up with samples that weigh nothing.

Visits and the order of samples are those of training one by one. Numbers are summed in another
order: after a few passes parameters agree to a part in 10^4, and 2e-6 where they are near 0.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from itertools import accumulate, islice, pairwise
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from melisma.fleet.task import Optimizer, Task
from melisma.learning.batched import Work, train_one
from melisma.learning.data import Split
from melisma.learning.models import shaped
from melisma.learning.optimizers import is_plain, optimizer_for
from melisma.learning.parameters import Arrays
from melisma.learning.torch_trainer import TorchTrainer, batches, trained
from melisma.learning.trainer import Trained
from melisma.learning.trainers import one_thread

# From weights and samples of all learners to what comes out, learners on the first axis of each.
Forward = Callable[[Sequence[Tensor], Tensor], Tensor]
Way = Callable[[nn.Module, Optimizer], Forward]
Form = tuple[object, ...]

# Measured: calls are paid off by some fifty learners, also where these leave the cache; a few
# learners with large models are faster one by one.
MOST = 64  # learners at a time
CHUNK_BYTES = 40 << 20  # of their parameters
LARGEST_BYTES = CHUNK_BYTES // 16  # of one learner's
IGNORED = -100  # a label that PyTorch leaves out of the mean
TOLERANCE = 1e-2  # of a trial, for the distance to what is right by the distance moved
LAYERS = (nn.Flatten, nn.Linear, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh)


def train_together(
    task: Task, trainer: TorchTrainer, way: Way, works: Sequence[Work], parameters: Arrays
) -> Iterator[Trained]:
    """As `batched.train_many`, in that way."""
    trainer.begin(parameters)
    # A copy: whoever takes results may use the trainer for something else in between.
    start = [each.detach().clone() for each in trainer.model.parameters()]
    train = partial(_train, task, trainer, way, start)
    threads = torch.get_num_threads()
    chunks = _chunks(works, _chunk_learners(trainer.model), threads)
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        # Each thread has the next chunk before whoever takes the results has done with the last.
        ahead = deque(pool.submit(train, chunk) for chunk in chunks[: threads + 1])
        for chunk in [*chunks[threads + 1 :], *[()] * len(ahead)]:
            done = ahead.popleft().result()
            if chunk:
                ahead.append(pool.submit(train, chunk))
            yield from done


def way_for(task: Task, trainer: TorchTrainer, works: Sequence[Work]) -> Way | None:
    """How to compute a stack of these learners; none where they have to train one by one."""
    splits = [work.samples for work in works if len(work.samples)]
    forms = {_form(split) for split in splits}
    if len(forms) != 1 or task.optimizer.keep or not _stackable(trainer.model):
        return None
    known = _KNOWN.setdefault(trainer, {})
    (form,) = forms
    if form not in known:
        known[form] = next((way for way in WAYS if _is_right(way, task, trainer, splits[0])), None)
    return known[form]


def layered(model: nn.Module, said: Optimizer) -> Forward:
    """Linear layers and activations by hand; `TypeError` for others."""
    layers = [*model] if isinstance(model, nn.Sequential) else [model]
    for layer in layers:
        if type(layer) not in LAYERS:
            raise TypeError(f"{type(layer).__name__} is not for many learners")

    def forward(weights: Sequence[Tensor], x: Tensor) -> Tensor:
        left = iter(weights)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                biased = len([*layer.parameters()]) == 2
                own = next(left), next(left) if biased else None
                x = _Linear.apply(x, *own, said)  # type: ignore[no-untyped-call]
            else:
                x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
        return x

    return forward


def mapped(model: nn.Module, _: Optimizer) -> Forward:
    """Any model that `vmap` can take, one without chance for example."""
    # While it is called a model holds the weights of its caller, so every thread has its own.
    own = deepcopy(model)
    names = [name for name, _ in own.named_parameters()]

    def one(weights: Sequence[Tensor], x: Tensor) -> Any:
        return functional_call(own, dict(zip(names, weights, strict=True)), (x,))

    return lambda weights, x: vmap(one)(tuple(weights), x)


WAYS: tuple[Way, ...] = (layered, mapped)
_KNOWN: WeakKeyDictionary[TorchTrainer, dict[Form, Way | None]] = WeakKeyDictionary()


class _Linear(torch.autograd.Function):
    """A linear layer of every learner; going backward it makes a plain step at once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, said: Optimizer
    ) -> Tensor:
        ctx.layer = x, weight, bias, said
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, said = ctx.layer
        before = torch.bmm(slope, weight) if ctx.needs_input_grad[0] else None
        bias_slope = None if bias is None else slope.sum(1)
        if not is_plain(said):
            return before, torch.bmm(slope.mT, x), bias_slope, None
        with torch.no_grad():
            kept = 1 - said.lr * said.weight_decay
            if ctx.needs_input_grad[1]:
                weight.baddbmm_(slope.mT, x, beta=kept, alpha=-said.lr)
            if bias is not None and ctx.needs_input_grad[2]:
                bias.mul_(kept).sub_(bias_slope, alpha=said.lr)
        return before, None, None, None


def _train(
    task: Task, trainer: TorchTrainer, way: Way, start: Sequence[Tensor], works: Sequence[Work]
) -> list[Trained]:
    return _Stack(task, trainer, start, works).train(way)


class _Stack:
    """The learners of one chunk, those with the most batches first."""

    def __init__(
        self, task: Task, trainer: TorchTrainer, start: Sequence[Tensor], works: Sequence[Work]
    ) -> None:
        self._task, self._trainer = task, trainer
        orders = [_order(work, task.batch) for work in works]
        self._learners = sorted(range(len(works)), key=lambda each: -len(orders[each]))
        self._orders = [orders[each] for each in self._learners]
        samples = [trainer.tensors(works[each].samples) for each in self._learners]
        # All learners' samples in one tensor, so that a batch of each is taken from it at once.
        self._x, self._y = (torch.cat(parts) for parts in zip(*samples, strict=True))
        self._starts = _starts([len(y) for _, y in samples])
        asked = [each.requires_grad for each in trainer.model.parameters()]
        both = zip(start, asked, strict=True)
        self._weights = [_repeated(each, len(works)).requires_grad_(g) for each, g in both]
        self._loss_sums = torch.zeros(len(works), dtype=torch.float64)

    def train(self, way: Way) -> list[Trained]:
        """Every batch of every learner, and what has come of it in the order of the works."""
        forward = way(self._trainer.model, self._task.optimizer)
        optimizer = optimizer_for(self._task.optimizer)
        weights = self._weights
        for turn in range(len(self._orders[0])):
            batch = [order[turn] for order in self._orders if turn < len(order)]
            if len(batch) < len(weights[0]):
                weights = [_first(each, len(batch)) for each in weights]
                optimizer.narrow(len(batch))
            x, y, counts = self._taken(batch)
            losses = _losses(self._trainer.loss, forward(weights, x), y, counts)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step(weights)
            for each in weights:
                each.grad = None
            self._loss_sums[: len(batch)] += losses.detach() * counts
        return self._results()

    def _taken(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Samples and labels of the learners' batches, and how long each batch is.

        Short ones are filled up with their learner's first sample.
        """
        counts = torch.tensor([len(some) for some in batch])
        places = self._starts[: len(batch), None].expand(-1, int(counts.max())).clone()
        for row, some in zip(places, batch, strict=True):
            row[: len(some)] += some
        x, y = (each.index_select(0, places.flatten()) for each in (self._x, self._y))
        x, y = (each.reshape(*places.shape, *each.shape[1:]) for each in (shaped(x), y))
        return x, y, counts

    def _results(self) -> list[Trained]:
        names = [name for name, _ in self._trainer.model.named_parameters()]
        results: dict[int, Trained] = {}
        for place, learner in enumerate(self._learners):
            own = {
                name: weight.detach()[place].numpy()
                for name, weight in zip(names, self._weights, strict=True)
            }
            visits = sum(len(some) for some in self._orders[place])
            results[learner] = trained(own, visits, self._loss_sums[place].item())
        return [results[learner] for learner in range(len(results))]


def _losses(loss: Callable[..., Tensor], out: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """The mean loss of every learner's batch, which ends where its count says."""
    learners, longest = wanted.shape[:2]
    each = loss(out.flatten(0, 1), wanted.flatten(0, 1), reduction="none")
    each = each.reshape(learners, longest, -1)
    counted = (torch.arange(longest) < counts[:, None]).unsqueeze(2).expand_as(each)
    if not wanted.is_floating_point():
        counted = counted & (wanted.reshape(each.shape) != IGNORED)
    shares = counted / counted.sum((1, 2), keepdim=True)
    return (each * shares).sum((1, 2))


def _order(work: Work, size: int) -> list[Tensor]:
    """The batches of one learner; as in training it is drawn before it is asked to stop."""
    drawn = batches(len(work.samples), work.passes, size, work.rng)
    return list(islice(drawn, work.batches + 1))[: work.batches]


def _starts(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)])[:-1]


def _repeated(weight: Tensor, learners: int) -> Tensor:
    # NumPy asks for large pages: to touch memory for the first time costs more than to train on it.
    array = weight.detach().numpy()
    many = np.empty((learners, *array.shape), array.dtype)
    many[:] = array
    return torch.from_numpy(many)


def _first(weights: Tensor, learners: int) -> Tensor:
    """Those of the first learners, in the same memory."""
    return weights.detach()[:learners].requires_grad_(weights.requires_grad)


def _stackable(model: nn.Module) -> bool:
    """Whether all that it holds are parameters, each under one name, and not too many."""
    names = [name for name, _ in model.named_parameters()]
    no_buffers = next(model.buffers(), None) is None
    return no_buffers and names == [*model.state_dict()] and _model_bytes(model) <= LARGEST_BYTES


def _is_right(way: Way, task: Task, trainer: TorchTrainer, split: Split) -> bool:
    """Whether two learners with batches of unequal length train in this way as one by one."""
    start = trainer.initial()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            trainer.begin(start)
            found = _train(task, trainer, way, [*trainer.model.parameters()], _trial(split))
            expected = [train_one(trainer, start, work) for work in _trial(split)]
        except Exception:  # noqa: BLE001 - The model is the user's; one by one it tells what is wrong.
            return False
    return all(
        _distance(one.parameters, other.parameters)
        <= TOLERANCE * _distance(other.parameters, start) + 1e-6 * _distance(start, None)
        for one, other in zip(found, expected, strict=True)
    )


def _trial(split: Split) -> list[Work]:
    few = [Split(split.samples[:size], split.labels[:size]) for size in (3, 2)]
    return [Work(some, 2, np.random.default_rng(1), 3 - place) for place, some in enumerate(few)]


def _distance(one: Arrays, other: Arrays | None) -> float:
    gaps = (array if other is None else array - other[name] for name, array in one.items())
    return float(np.sqrt(sum(np.square(gap, dtype=np.float64).sum() for gap in gaps)))


def _form(split: Split) -> Form:
    """Types and shapes of a sample and its label."""
    samples, labels = split.samples, split.labels
    return samples.dtype, samples.shape[1:], labels.dtype, labels.shape[1:]


def _chunk_learners(model: nn.Module) -> int:
    return min(MOST, CHUNK_BYTES // max(_model_bytes(model), 1))


def _model_bytes(model: nn.Module) -> int:
    return sum(each.nbytes for each in model.parameters())


def _chunks(works: Sequence[Work], size: int, threads: int) -> list[Sequence[Work]]:
    """Of about equal length, so many that every thread has as many as the others."""
    count = min(threads * ceil(len(works) / size / threads), len(works))
    edges = [len(works) * place // count for place in range(count + 1)]
    return [works[start:end] for start, end in pairwise(edges)]
