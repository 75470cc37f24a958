"""The table of schemes: what each is called, decides, must know, and gives away.

The command line, the docs and the cycle read schemes from here only. A new scheme is one file and
one row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from numpy.random import Generator

from melisma.allocation.dab import dab
from melisma.allocation.equal import equal
from melisma.allocation.feel import feel
from melisma.allocation.med import med
from melisma.allocation.one_task import CyclePlan, CycleProblem
from melisma.allocation.proportional import proportional
from melisma.allocation.radio import RadioPlan, RadioProblem
from melisma.allocation.shared import SharedPlan
from melisma.allocation.slots import full, online, random, slots
from melisma.allocation.staleness import staleness
from melisma.allocation.synchronous import synchronous
from melisma.errors import SettingError

MAYS = "Mays 2023"
DAB = "Mays, Elsayed and Hassanein"
STALENESS = "Mohammad and Sorour"
FEEL = "Ren, Yu and Ding"

Plan = CyclePlan | SharedPlan | RadioPlan


@dataclass(frozen=True)
class Scheme:
    """A row of the table.

    `problem` says what `plan` takes: a `CycleProblem` with the passes that the task fixes, where
    `passes` is not "chosen"; a `SharedProblem`; or a `RadioProblem` with a random generator.
    `before` and `during` are what a learner gives away before its update and while it trains.
    """

    name: str
    problem: Literal["cycle", "shared", "radio"]
    plan: Callable[..., Plan]
    summary: str
    paper: str
    before: str = "train_s, ship_s and fixed_s, each with its spread"
    during: str = "progress"
    passes: Literal["fixed", "optional", "chosen"] = "fixed"
    keeps_deadline: bool = True
    hands_out_all: bool = True
    most_learners: int | None = None


def cycle_plan(name: str, problem: CycleProblem, passes: int | None = None) -> CyclePlan:
    """What the scheme of that name decides, with `passes` as the task fixes them."""
    scheme = scheme_named(name)
    if scheme.problem != "cycle":
        raise SettingError(f"scheme {name} is not one for a single task in a cycle")
    if scheme.passes == "chosen" and passes is not None:
        raise SettingError(f"scheme {name} chooses passes by itself; leave passes out")
    if scheme.passes == "fixed" and passes is None:
        raise SettingError(f"scheme {name} needs passes, for example passes = 1")
    plan = scheme.plan(problem) if scheme.passes == "chosen" else scheme.plan(problem, passes)
    assert isinstance(plan, CyclePlan)
    return plan


def scheme_named(name: str) -> Scheme:
    """The row of that name."""
    if name not in SCHEMES:
        raise SettingError(f"no scheme is called {name!r}; there are {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _feel(problem: RadioProblem, _: Generator) -> RadioPlan:
    return feel(problem)


def _online(problem: RadioProblem, _: Generator) -> RadioPlan:
    return slots(problem, online(problem))


def _full(problem: RadioProblem, _: Generator) -> RadioPlan:
    return slots(problem, full(problem))


def _random(problem: RadioProblem, rng: Generator) -> RadioPlan:
    return slots(problem, random(problem, rng))


_ROWS = (
    Scheme(
        name="equal",
        problem="cycle",
        plan=equal,
        summary="the same share for all, late or not",
        paper=STALENESS,
        before="nothing",
        passes="optional",
        keeps_deadline=False,
    ),
    Scheme(
        name="proportional",
        problem="cycle",
        plan=proportional,
        summary="shares by measured speed, late or not",
        paper="a baseline of the field",
        passes="optional",
        keeps_deadline=False,
    ),
    Scheme(
        name="synchronous",
        problem="cycle",
        plan=synchronous,
        summary="the most updates that all can do",
        paper=STALENESS,
        passes="chosen",
    ),
    Scheme(
        name="staleness",
        problem="cycle",
        plan=staleness,
        summary="updates that differ as little as possible",
        paper=STALENESS,
        passes="chosen",
    ),
    Scheme(
        name="staleness-numerical",
        problem="cycle",
        plan=partial(staleness, method="numerical"),
        summary="the same by relaxation in an NLP solver, for comparison",
        paper=STALENESS,
        passes="chosen",
        most_learners=200,
    ),
    Scheme(
        name="staleness-sai",
        problem="cycle",
        plan=partial(staleness, method="sai"),
        summary="the same by suggest and improve, for comparison",
        paper=STALENESS,
        passes="chosen",
        most_learners=10_000,
    ),
    Scheme(
        name="dab",
        problem="cycle",
        plan=dab,
        summary="each learner asks for what it can do in time",
        paper=DAB,
        before="number of shards wanted",
        during="that it is alive",
        hands_out_all=False,
    ),
    Scheme(
        name="med",
        problem="shared",
        plan=med,
        summary="several tasks on expected costs, within a budget",
        paper=MAYS,
    ),
    Scheme(
        name="mmtt",
        problem="shared",
        plan=med,
        summary="the same on the costs of one state of each learner",
        paper=MAYS,
    ),
    Scheme(
        name="feel",
        problem="radio",
        plan=_feel,
        summary="batch sizes and radio slots together",
        paper=FEEL,
    ),
    Scheme(
        name="online",
        problem="radio",
        plan=_online,
        summary="the smallest batch, with the best slots",
        paper=FEEL,
    ),
    Scheme(
        name="full",
        problem="radio",
        plan=_full,
        summary="the largest batch, with the best slots",
        paper=FEEL,
    ),
    Scheme(
        name="random",
        problem="radio",
        plan=_random,
        summary="a random batch, with the best slots",
        paper=FEEL,
    ),
)
SCHEMES = {row.name: row for row in _ROWS}
