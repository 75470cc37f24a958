"""Subgradient ascent on the Lagrangian dual of MED.

The multiplier of a class that several tasks use falls, that of an unused class rises, and the
budget multiplier rises while the budget is exceeded. Steps are Polyak's, towards a target value,
with momentum.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from melisma.allocation.med.dual import DualPoint, Knapsacks, Multipliers
from melisma.fleet.array_types import Floats

MOMENTUM = 0.8
STEP_DECAY = 0.5
AVERAGING = 0.08
SCALE_POWER = 1.5
COMMON_SCALE = 5.0
MANY_CLASSES = 200  # from which a single step seldom improves the bound


def ascend(
    knapsacks: Knapsacks,
    multipliers: Multipliers,
    target_s: float,
    steps: int,
    stop: Callable[[], bool],
) -> DualPoint:
    """Return the best dual point within `steps` steps; end early when steps become too small."""
    classes = knapsacks.classes
    mean_price = float(classes.price @ classes.members) / classes.members.sum()
    scale = 1.0 / max(mean_price * 4, 1e-12)
    now = best = knapsacks.evaluate(multipliers)
    average_used = now.used
    patience = 20 if multipliers.learner.size > MANY_CLASSES else 10
    length, stalled = 1.0, 0
    direction = np.zeros(multipliers.learner.size + 1)
    common = _common_directions(knapsacks, now, scale)
    size = np.abs(multipliers.learner) / max(np.abs(multipliers.learner).mean(), 1e-12)
    size = np.append((0.3 + size) / 1.3, 1.0) ** SCALE_POWER
    for _ in range(steps):
        gap_s = target_s - now.bound_s
        if gap_s <= 0 or length < 0.02 or stop():
            break
        direction = MOMENTUM * direction + _subgradient(knapsacks, now, scale)
        scaled = direction * size + COMMON_SCALE * (common.T @ (common @ direction))
        square = float(direction @ scaled)
        if square < 1e-18:
            break
        step = scaled * (length * gap_s / square)
        now = knapsacks.evaluate(_apply_step(knapsacks, now.multipliers, step, scale))
        average_used = average_used + AVERAGING * (now.used - average_used)
        stalled += 1
        if now.bound_s > best.bound_s:
            stalled = 0 if now.bound_s > best.bound_s + 1e-4 * gap_s else stalled
            best = now
        if stalled >= patience:
            now, length, stalled = best, length * STEP_DECAY, 0
            direction = np.zeros(direction.size)
            common = _common_directions(knapsacks, now, scale)
    return replace(best, average_used=average_used)


def _common_directions(knapsacks: Knapsacks, now: DualPoint, scale: float) -> Floats:
    """Return directions in which many multipliers move together.

    A learner's payoff is (value of a shard - budget_multiplier * price) * shards, so a change of a
    task's shard value, or of the budget multiplier, moves the multipliers of all its learners.
    """
    classes, root = knapsacks.classes, np.sqrt(knapsacks.classes.members)
    capacity = knapsacks.intervals.capacity[now.best]
    amount = capacity * now.used / np.maximum(classes.members, 1) * root
    directions = np.column_stack([-amount, np.zeros(classes.shape[0])])
    if not knapsacks.budget_multiplier_fixed and np.isfinite(classes.budget):
        budget = np.append(classes.price * amount.sum(axis=0), 1 / scale)
        directions = np.vstack([directions, budget])
    length: Floats = np.linalg.norm(directions, axis=1, keepdims=True)
    return directions / np.maximum(length, 1e-12)


def _subgradient(knapsacks: Knapsacks, now: DualPoint, scale: float) -> Floats:
    classes, multiplier = knapsacks.classes, now.multipliers.learner
    unused = (classes.members - now.used.sum(axis=0)) / np.sqrt(classes.members)
    unused = np.where(classes.optional & (multiplier >= 0), np.minimum(unused, 0.0), unused)
    over = 0.0 if knapsacks.budget_multiplier_fixed else (now.cost - classes.budget) * scale
    if not np.isfinite(over) or (now.multipliers.budget <= 0 and over < 0):
        over = 0.0
    return np.append(unused, over)


def _apply_step(
    knapsacks: Knapsacks, multipliers: Multipliers, step: Floats, scale: float
) -> Multipliers:
    classes = knapsacks.classes
    learner = multipliers.learner + step[:-1] / np.sqrt(classes.members)
    learner = np.where(classes.optional, np.minimum(learner, 0.0), learner)
    budget = multipliers.budget
    if not knapsacks.budget_multiplier_fixed:
        budget = max(0.0, budget + float(step[-1]) * scale)
    return Multipliers(learner, budget)
