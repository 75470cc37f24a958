from itertools import pairwise

import numpy as np
import pytest

from melisma.allocation import schemes
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.schemes import SCHEMES, PlanInputs, get_scheme, with_scheme
from melisma.disclosure import DISCLOSURE
from melisma.errors import SettingError
from melisma.testing import make_task
from tests.allocation.radio_problems import random_radio

PROBLEM = CycleProblem(train_s=[1, 2], ship_s=0, fixed_s=0, deadline_s=20, shards=6)


def test_names_are_unique_and_map_to_their_rows() -> None:
    assert len(SCHEMES) == len(schemes._ROWS)
    for row in schemes._ROWS:
        assert get_scheme(row.name) is row


def test_every_scheme_has_a_summary_and_a_paper() -> None:
    for row in SCHEMES.values():
        assert row.summary
        assert row.paper
        assert callable(row.decide)
    assert len({row.summary for row in SCHEMES.values()}) == len(SCHEMES)


# From the contract that all parts share; a scheme that it does not name is free to differ.
AGREED = {
    "dab": ("bounds", "that it is alive", "fixed"),
    "equal": ("nothing", "progress", "optional"),
    "proportional": ("costs", "progress", "optional"),
    "synchronous": ("costs", "progress", "chosen"),
    "staleness": ("costs", "progress", "chosen"),
    "med": ("costs", "progress", "fixed"),
    "feel": ("radio", "progress", "unused"),
}


@pytest.mark.parametrize("name", AGREED)
def test_disclosures_and_passes_are_as_documented(name: str) -> None:
    row = SCHEMES[name]
    assert (row.needs, row.during, row.passes) == AGREED[name]


def test_a_scheme_without_fixed_passes_needs_costs() -> None:
    for row in SCHEMES.values():
        assert row.needs_with(2) == row.needs
        without = "costs" if row.name in ("equal", "proportional") else row.needs
        assert row.needs_with(None) == without


def test_disclosures_are_described() -> None:
    for row in SCHEMES.values():
        assert row.before == DISCLOSURE[row.needs]
        assert row.reports_progress is (row.name != "dab")
    assert SCHEMES["dab"].before == "number of shards wanted"
    for told in ("slope_s", "base_s", "threshold", "rates of its link"):
        assert told in SCHEMES["feel"].before


def test_a_scheme_uses_the_inputs_of_its_row_only() -> None:
    given = PlanInputs(passes=2, bounds=[6, 6], rng=np.random.default_rng(1), time_limit_s=1.0)
    for row in SCHEMES.values():
        if row.problem == "cycle":
            assert row.plan(PROBLEM, given).shards.sum() >= 6


def test_a_scheme_with_needs_rng_requires_a_generator() -> None:
    problem = random_radio(np.random.default_rng(1), 3, "cpu")
    for row in SCHEMES.values():
        if row.needs_rng:
            with pytest.raises(SettingError, match="needs PlanInputs"):
                row.plan(problem)


def test_an_unknown_name_lists_the_schemes() -> None:
    with pytest.raises(
        SettingError, match=r"no scheme is called 'fedavg'; expected one of equal"
    ) as caught:
        get_scheme("fedavg")
    said = str(caught.value)
    places = [said.index(name) for name in SCHEMES]
    assert all(one < other for one, other in pairwise(places))


@pytest.mark.parametrize("name", [row.name for row in SCHEMES.values() if row.problem != "cycle"])
def test_a_scheme_checks_the_type_of_its_problem(name: str) -> None:
    with pytest.raises(SettingError, match=f"scheme {name} plans a (Shared|Radio)Problem"):
        SCHEMES[name].plan(PROBLEM, PlanInputs(passes=1))


def test_a_budget_of_a_task_that_runs_alone_is_refused() -> None:
    task = make_task(budget=5.0, scheme="dab", passes=1)
    with pytest.raises(SettingError, match="which only tasks that share learners keep to; remove"):
        with_scheme(task, None)
