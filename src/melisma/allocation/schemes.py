"""The table of schemes: name, problem, function, and what each discloses.

The command line, the docs and the cycle read schemes from this table only. A new scheme is one file
and one row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace
from numpy.random import Generator
from numpy.typing import ArrayLike

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.dab import dab
from melisma.allocation.equal import equal
from melisma.allocation.feel import feel
from melisma.allocation.med import med
from melisma.allocation.proportional import proportional
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.allocation.slots import full_batch, online_batch, random_batch, slots
from melisma.allocation.staleness import staleness
from melisma.allocation.synchronous import synchronous
from melisma.disclosure import DISCLOSURE
from melisma.errors import SettingError, suggest
from melisma.fleet.task import Task

MAYS = "Mays 2023"
DAB = "Mays, Elsayed and Hassanein"
STALENESS = "Mohammad and Sorour"
FEEL = "Ren, Yu and Ding"

Needs = Literal["nothing", "bounds", "costs", "radio"]


class PlanInputs(NamedTuple):
    """Inputs of a scheme in addition to the problem; each scheme uses those that its row names.

    `passes` are fixed by the task, `bounds` reported by learners; `rng` is a random generator and
    `time_limit_s` the seconds for a search.
    """

    passes: int | None = None
    bounds: ArrayLike | None = None
    rng: Generator | None = None
    time_limit_s: float | None = None


NO_INPUTS = PlanInputs()
PROBLEM_TYPES = {"cycle": CycleProblem, "shared": SharedProblem, "radio": RadioProblem}


@dataclass(frozen=True)
class Scheme:
    """A row of the table.

    `problem` is the type that `plan` takes: `CycleProblem`, `SharedProblem` or `RadioProblem`.
    `needs` is what a learner discloses before its update if passes are fixed (see `needs_with`); a
    plan of one task depends on nothing else of it. With `reports_progress` it also discloses its
    progress while it trains, otherwise only that it is alive. `single_state` plans with the costs
    of the state in which each learner was measured; `needs_rng` requires `PlanInputs.rng`.
    """

    name: str
    problem: Literal["cycle", "shared", "radio"]
    decide: Callable[[Any, PlanInputs], CyclePlan | SharedPlan | RadioPlan]
    summary: str
    paper: str
    needs: Needs = "costs"
    reports_progress: bool = True
    passes: Literal["fixed", "optional", "chosen", "unused"] = "fixed"
    keeps_deadline: bool = True
    hands_out_all: bool = True
    single_state: bool = False
    needs_rng: bool = False
    max_learners: int | None = None

    @property
    def before(self) -> str:
        """The costs or bounds that a learner discloses before its update, as text."""
        return DISCLOSURE[self.needs]

    @property
    def during(self) -> str:
        """The information that a learner discloses while it trains, as text."""
        return "progress" if self.reports_progress else "that it is alive"

    def needs_with(self, passes: int | None) -> Needs:
        """Return what a learner discloses before its update, given the task's `passes`.

        A scheme with optional passes needs costs to find how many fit.
        """
        return "costs" if self.passes == "optional" and passes is None else self.needs

    def check_passes(self, passes: int | None) -> None:
        """Raise `SettingError` if a task sets passes that the scheme chooses, or lacks them."""
        if self.passes == "chosen" and passes is not None:
            raise SettingError(f"scheme {self.name} chooses passes itself; leave out passes")
        if self.passes == "fixed" and passes is None:
            raise SettingError(f"scheme {self.name} needs passes, for example passes = 1")

    def check_cycle(self) -> None:
        """Raise `SettingError` unless the scheme plans cycles of one task, as runs need it."""
        if self.problem != "cycle":
            *others, last = [row.name for row in SCHEMES.values() if row.problem == "cycle"]
            raise SettingError(
                f"scheme {self.name} cannot run a cycle of one task; "
                f"use {', '.join(others)} or {last}"
            )

    def plan(self, problem: Any, inputs: PlanInputs = NO_INPUTS) -> Any:
        """Return the plan; raise `InfeasibleError`, or `SettingError` if an input is missing."""
        if not isinstance(problem, PROBLEM_TYPES[self.problem]):
            raise SettingError(f"scheme {self.name} plans a {PROBLEM_TYPES[self.problem].__name__}")
        if self.passes == "fixed" and self.problem == "cycle" and inputs.passes is None:
            raise SettingError(f"scheme {self.name} needs passes, for example passes = 1")
        return self.decide(problem, inputs)


def get_scheme(name: str) -> Scheme:
    """Return the scheme with this name."""
    if name not in SCHEMES:
        raise SettingError(f"no scheme is called {name!r}; {suggest(name, SCHEMES)}")
    return SCHEMES[name]


def get_cycle_scheme(name: str) -> Scheme:
    """Return the scheme with this name; raise `SettingError` unless it plans cycles of one task."""
    if name not in SCHEMES:
        cycle_schemes = [row.name for row in SCHEMES.values() if row.problem == "cycle"]
        raise SettingError(f"no scheme is called {name!r}; {suggest(name, cycle_schemes)}")
    SCHEMES[name].check_cycle()
    return SCHEMES[name]


def with_scheme(task: Task, scheme: str | None) -> Task:
    """Return the task with this scheme, or its own; an explicit scheme may choose the passes.

    Raises `SettingError` if the scheme does not plan cycles.
    """
    row = get_cycle_scheme(scheme or task.scheme)
    chosen = scheme is not None and row.passes == "chosen"
    task = replace(task, scheme=row.name, passes=None if chosen else task.passes)
    row.check_passes(task.passes)
    return task


def _dab(problem: CycleProblem, inputs: PlanInputs) -> CyclePlan:
    assert inputs.passes is not None  # checked by `Scheme.plan`
    return dab(problem, inputs.passes, inputs.bounds)


def _random(problem: RadioProblem, inputs: PlanInputs) -> RadioPlan:
    if inputs.rng is None:
        raise SettingError("scheme random needs PlanInputs(rng=...), a random generator")
    return slots(problem, random_batch(problem, inputs.rng))


_ROWS = (
    Scheme(
        name="equal",
        problem="cycle",
        decide=lambda problem, inputs: equal(problem, inputs.passes),
        summary="the same share for all, even if late",
        paper=STALENESS,
        needs="nothing",
        passes="optional",
        keeps_deadline=False,
    ),
    Scheme(
        name="proportional",
        problem="cycle",
        decide=lambda problem, inputs: proportional(problem, inputs.passes),
        summary="shares by measured speed, even if late",
        paper="a baseline of the field",
        passes="optional",
        keeps_deadline=False,
    ),
    Scheme(
        name="synchronous",
        problem="cycle",
        decide=lambda problem, _: synchronous(problem),
        summary="the most updates that all can do",
        paper=STALENESS,
        passes="chosen",
    ),
    Scheme(
        name="staleness",
        problem="cycle",
        decide=lambda problem, _: staleness(problem),
        summary="least difference of updates",
        paper=STALENESS,
        passes="chosen",
    ),
    Scheme(
        name="staleness-numerical",
        problem="cycle",
        decide=lambda problem, _: staleness(problem, method="numerical"),
        summary="staleness by relaxation in an NLP solver, for comparison",
        paper=STALENESS,
        passes="chosen",
        max_learners=200,
    ),
    Scheme(
        name="staleness-sai",
        problem="cycle",
        decide=lambda problem, _: staleness(problem, method="sai"),
        summary="staleness by suggest and improve, for comparison",
        paper=STALENESS,
        passes="chosen",
        max_learners=10_000,
    ),
    Scheme(
        name="dab",
        problem="cycle",
        decide=_dab,
        summary="each learner requests the shards that it can train in time",
        paper=DAB,
        needs="bounds",
        reports_progress=False,
        hands_out_all=False,
    ),
    Scheme(
        name="med",
        problem="shared",
        decide=lambda problem, inputs: med(problem, time_limit_s=inputs.time_limit_s),
        summary="several tasks on expected costs, within a budget",
        paper=MAYS,
    ),
    Scheme(
        name="mmtt",
        problem="shared",
        decide=lambda problem, inputs: med(problem, time_limit_s=inputs.time_limit_s),
        summary="med on the costs of one state of each learner",
        paper=MAYS,
        single_state=True,
    ),
    Scheme(
        name="feel",
        problem="radio",
        decide=lambda problem, _: feel(problem),
        summary="batch sizes and radio slots together",
        paper=FEEL,
        needs="radio",
        passes="unused",
    ),
    Scheme(
        name="online",
        problem="radio",
        decide=lambda problem, _: slots(problem, online_batch(problem)),
        summary="the smallest batch, with the best slots",
        paper=FEEL,
        needs="radio",
        passes="unused",
    ),
    Scheme(
        name="full",
        problem="radio",
        decide=lambda problem, _: slots(problem, full_batch(problem)),
        summary="the largest batch, with the best slots",
        paper=FEEL,
        needs="radio",
        passes="unused",
    ),
    Scheme(
        name="random",
        problem="radio",
        decide=_random,
        summary="a random batch, with the best slots",
        paper=FEEL,
        needs_rng=True,
        needs="radio",
        passes="unused",
    ),
)
SCHEMES = {row.name: row for row in _ROWS}
