"""The table of schemes: name, problem, function, and what each discloses.

The command line, the docs and the cycle read schemes from this table only. A new scheme is one file
and one row; a scheme of the user is a function that goes by `module:name`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from numpy.random import Generator
from numpy.typing import ArrayLike

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.dab import dab
from melisma.allocation.equal import equal
from melisma.allocation.feel import feel
from melisma.allocation.fifo import fifo
from melisma.allocation.med import med
from melisma.allocation.proportional import proportional
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.allocation.slots import full_batch, online_batch, random_batch, slots
from melisma.allocation.smallest_demand import smallest_demand
from melisma.allocation.staleness import staleness
from melisma.allocation.synchronous import synchronous
from melisma.allocation.user_scheme import chooses_passes, plan_by_user_scheme
from melisma.allocation.venn import venn
from melisma.disclosure import DISCLOSURE
from melisma.errors import SettingError, suggest
from melisma.fleet.files.task_file import naming_task_file
from melisma.fleet.task import Task
from melisma.user_code import IMPORT_PATH, add_module_path, is_import_path

MAYS = "Mays 2023"
DAB = "Mays, Elsayed and Hassanein"
STALENESS = "Mohammad and Sorour"
FEEL = "Ren, Yu and Ding"
VENN = "Liu and others"

OWN_SCHEME = "package.module:function"

CostsIn = Literal["expected", "measured", "present"]

Needs = Literal["nothing", "bounds", "costs", "radio"]


class PlanInputs(NamedTuple):
    """Inputs of a scheme in addition to the problem; each scheme uses those that its row names.

    `passes` are fixed by the task, `bounds` reported by learners; `rng` is a random generator and
    `time_limit_s` the seconds for a search. `max_work` limits it on every machine alike, and
    `assigned` is the task of each learner where it is decided.
    """

    passes: int | None = None
    bounds: ArrayLike | None = None
    rng: Generator | None = None
    time_limit_s: float | None = None
    max_work: float | None = None
    assigned: ArrayLike | None = None


NO_INPUTS = PlanInputs()
PROBLEM_TYPES = {"cycle": CycleProblem, "shared": SharedProblem, "radio": RadioProblem}


@dataclass(frozen=True)
class Scheme:
    """A row of the table.

    `problem` is the type that `plan` takes: `CycleProblem`, `SharedProblem` or `RadioProblem`.
    `needs` is what a learner discloses before its update if passes are fixed (see `needs_with`); a
    plan of one task depends on nothing else of it. With `reports_progress` it also discloses its
    progress while it trains, otherwise only that it is alive. Where several tasks share learners,
    `costs_in` says what each reports: costs expected over its operating states, those of the state
    in which it was measured, or in each cycle those of its present state. `needs_rng` requires
    `PlanInputs.rng`.
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
    costs_in: CostsIn = "expected"
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

    def check_shared(self) -> None:
        """Raise `SettingError` unless the scheme plans tasks that share learners."""
        if self.problem != "shared":
            *others, last = [row.name for row in SCHEMES.values() if row.problem == "shared"]
            raise SettingError(
                f"scheme {self.name} plans one task at a time; for tasks that share learners "
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
    """Return the scheme with this name; code of the user is imported once the scheme plans."""
    if is_import_path(name):
        return _user_scheme(name)
    if name not in SCHEMES:
        raise SettingError(f"no scheme is called {name!r}; {suggest(name, SCHEMES, OWN_SCHEME)}")
    return SCHEMES[name]


def get_cycle_scheme(name: str) -> Scheme:
    """Return the scheme with this name; raise `SettingError` unless it plans cycles of one task."""
    if name not in SCHEMES and not is_import_path(name):
        known = [row.name for row in SCHEMES.values() if row.problem == "cycle"]
        raise SettingError(f"no scheme is called {name!r}; {suggest(name, known, OWN_SCHEME)}")
    row = get_scheme(name)
    row.check_cycle()
    return row


def load_scheme(name: str, file: str | Path | None = None) -> Scheme:
    """Return the scheme; import that of the user, from beside the task's file too, to check it."""
    row = get_scheme(name)
    if not is_import_path(name):
        return row
    add_module_path(file)
    return replace(row, passes="chosen" if chooses_passes(name) else "optional")


def with_scheme(task: Task, scheme: str | None, file: str | Path | None = None) -> Task:
    """Return the task with this scheme, or its own; an explicit scheme may choose the passes.

    `file` is that of the task. Raises `SettingError` if the scheme does not plan cycles; it names
    the file unless the scheme is an explicit one.
    """
    with naming_task_file(file if scheme is None else None):
        row = load_scheme(get_cycle_scheme(scheme or task.scheme).name, file)
    chosen = scheme is not None and row.passes == "chosen"
    task = msgspec.structs.replace(task, scheme=row.name, passes=None if chosen else task.passes)
    with naming_task_file(file):
        row.check_passes(task.passes)
        check_no_budget(task)
    return task


def check_no_budget(task: Task) -> None:
    """Raise `SettingError` for a budget of a task that shares its learners with no other."""
    if task.budget is not None:
        raise SettingError(
            f"task {task.name} has budget = {task.budget:g}, which only tasks that share learners "
            "keep to; remove it, or run the task together with others"
        )


def _user_scheme(name: str) -> Scheme:
    """Return the row of a scheme of the user, without importing it: a learner has no use for it."""
    if IMPORT_PATH.fullmatch(name) is None:
        raise SettingError(f"scheme is {name!r}; expected {OWN_SCHEME}")
    return Scheme(
        name=name,
        problem="cycle",
        decide=lambda problem, inputs: plan_by_user_scheme(name, problem, inputs.passes),
        summary="a scheme of the user",
        paper="",
        passes="optional",
        keeps_deadline=False,
        hands_out_all=False,
    )


def _dab(problem: CycleProblem, inputs: PlanInputs) -> CyclePlan:
    assert inputs.passes is not None  # checked by `Scheme.plan`
    return dab(problem, inputs.passes, inputs.bounds)


def _med(problem: SharedProblem, inputs: PlanInputs) -> SharedPlan:
    return med(problem, inputs.assigned, time_limit_s=inputs.time_limit_s, max_work=inputs.max_work)


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
        summary="the most passes that all can make",
        paper=STALENESS,
        passes="chosen",
    ),
    Scheme(
        name="staleness",
        problem="cycle",
        decide=lambda problem, _: staleness(problem),
        summary="least difference of passes",
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
        decide=_med,
        summary="several tasks on expected costs, within a budget",
        paper=MAYS,
    ),
    Scheme(
        name="mmtt",
        problem="shared",
        decide=_med,
        summary="med on the costs of the state in which each learner was measured",
        paper=MAYS,
        costs_in="measured",
    ),
    Scheme(
        name="mmtt-ideal",
        problem="shared",
        decide=_med,
        summary="med on the costs of the state that each learner is in",
        paper=MAYS,
        costs_in="present",
    ),
    Scheme(
        name="fifo",
        problem="shared",
        decide=lambda problem, _: fifo(problem),
        summary="tasks choose learners in the order of their submission",
        paper="a baseline of the field",
    ),
    Scheme(
        name="smallest-demand",
        problem="shared",
        decide=lambda problem, _: smallest_demand(problem),
        summary="tasks with less work choose learners first",
        paper="a baseline of the field",
    ),
    Scheme(
        name="venn",
        problem="shared",
        decide=lambda problem, _: venn(problem),
        summary="tasks that few learners can serve choose first",
        paper=VENN,
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
