"""Why not all data can be trained even once by the deadline, and what would be enough."""

from dataclasses import replace
from decimal import ROUND_CEILING, Context

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.one_task import CycleProblem
from melisma.errors import InfeasibleError


def require_one_update(problem: CycleProblem) -> Ints:
    """The most that each learner can train once.

    `InfeasibleError` unless that is its least share or more, and all data or more in all.
    """
    problem.require_room()
    needed_s = problem.seconds(problem.min_shards, 1)
    late = np.flatnonzero(needed_s > problem.deadline_s)
    most = problem.most_shards(1)
    room = int(most.sum())
    if not late.size and room >= problem.shards:
        return most
    enough_s = max(float(needed_s.max()), deadline_for_all(problem))
    if late.size:
        names = ", ".join(map(str, late[:5])) + (" ..." if late.size > 5 else "")
        raise InfeasibleError(
            f"{late.size} of {problem.learners} learners (number {names}) cannot train their "
            f"min_shards once by {problem.deadline_s:g} s; leave them out, or a deadline_s of "
            f"{rounded_up(enough_s)} would do for all",
            constraint="deadline_s",
            miss=float(needed_s.max()) - problem.deadline_s,
            nearest={"deadline_s": enough_s},
            learners=map(int, late),
        )
    nearest = {"deadline_s": enough_s} | ({"shards": float(room)} if room else {})
    fewer = f" or at most {room} shards" if room else ""
    raise InfeasibleError(
        f"by {problem.deadline_s:g} s all learners together can train {room} shards once, "
        f"{problem.shards - room} fewer than the {problem.shards} there are; a deadline_s of "
        f"{rounded_up(enough_s)}{fewer} would do",
        constraint="shards",
        miss=problem.shards - room,
        nearest=nearest,
    )


def deadline_for_all(problem: CycleProblem) -> float:
    """The earliest deadline by which all data can be trained once, to the last bit."""

    def enough(deadline_s: float) -> bool:
        return int(replace(problem, deadline_s=deadline_s).most_shards(1).sum()) >= problem.shards

    if enough(problem.deadline_s):
        return problem.deadline_s
    early, late = problem.deadline_s, float(problem.seconds(problem.max_shards, 1).max())
    while early < (middle := early + (late - early) / 2) < late:
        early, late = (early, middle) if enough(middle) else (middle, late)
    return late


def rounded_up(value: float) -> str:
    """Five digits that are never below the value, so that what is printed is enough."""
    context = Context(prec=5, rounding=ROUND_CEILING)
    return f"{context.create_decimal(repr(float(value))).normalize():f}"
