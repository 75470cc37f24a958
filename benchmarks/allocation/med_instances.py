"""Random problems for MED, drawn by seed.

Each problem has 2 to 6 shards per learner on average, dealt to tasks at random; models of 0.5 to
8 MB, shards of 0.1 to 0.5 MB, 1 or 2 passes; links of 1 to 12 MB/s and training of 0.3 to 3
shards/s in three states with Dirichlet(1) probabilities; prices normal, mean 1, standard deviation
0.5, cut to [0.1, 1.5]. Deadlines are 1.5 times what a random association needs, so that they bind
moderately and can always be kept. The budget is the mean price times the shards; the tight one is
the cheapest cost by the deadlines plus 5 %.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.shared_problem import SharedProblem
from melisma.fleet.array_types import Floats


def instance(learners: int, tasks: int, seed: int) -> SharedProblem:
    """Return the problem of one seed, with the mean budget."""
    rng = np.random.default_rng([seed, learners, tasks])
    fixed_s, shard_s = _seconds(learners, tasks, rng)
    shards = _shards(learners, tasks, rng)
    price = np.clip(rng.normal(1.0, 0.5, learners), 0.1, 1.5)
    return SharedProblem(
        fixed_s=fixed_s,
        shard_s=shard_s,
        shards=shards,
        deadline_s=1.5 * _dealt_s(fixed_s, shard_s, shards, rng),
        price=price,
        budget=float(price.mean() * shards.sum()),
    )


def with_budget(problem: SharedProblem, budget: float) -> SharedProblem:
    """Return the same problem with another budget."""
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return SharedProblem(**(fields | {"budget": budget}))


def _seconds(learners: int, tasks: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the expected fixed seconds and seconds per shard (Eq. 4.3), tasks x learners."""
    model, shard = rng.uniform(0.5, 8.0, tasks), rng.uniform(0.1, 0.5, tasks)
    passes = rng.integers(1, 3, tasks)
    state = rng.dirichlet(np.ones(3), learners)
    per_mb = (state / rng.uniform(1.0, 12.0, (learners, 3))).sum(axis=1)
    per_shard = (state / rng.uniform(0.3, 3.0, (tasks, learners, 3))).sum(axis=2)
    return np.outer(2 * model, per_mb), np.outer(shard, per_mb) + passes[:, None] * per_shard


def _shards(learners: int, tasks: int, rng: np.random.Generator) -> NDArray[np.int64]:
    total = int(rng.integers(2, 7, learners).sum())
    part = rng.dirichlet(np.full(tasks, 8.0))
    return np.maximum((part * total).astype(np.int64), learners // tasks + 1)


def _dealt_s(
    fixed_s: Floats, shard_s: Floats, shards: NDArray[np.int64], rng: np.random.Generator
) -> Floats:
    """Return the duration of each task when learners are dealt to the tasks in turn."""
    tasks, learners = fixed_s.shape
    task_of = rng.permutation(np.arange(learners) % tasks)
    taken_s = np.empty(tasks)
    for task in range(tasks):
        mine = np.flatnonzero(task_of == task)
        amount = np.ones(mine.size, dtype=np.int64)
        for _ in range(int(shards[task]) - mine.size):
            after_s = fixed_s[task, mine] + shard_s[task, mine] * (amount + 1)
            amount[after_s.argmin()] += 1
        taken_s[task] = (fixed_s[task, mine] + shard_s[task, mine] * amount).max()
    return taken_s
