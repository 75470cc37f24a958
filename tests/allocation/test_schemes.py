from itertools import pairwise

import pytest

from melisma.allocation import schemes
from melisma.allocation.one_task import CycleProblem
from melisma.allocation.schemes import SCHEMES, cycle_plan, scheme_named
from melisma.errors import SettingError

PROBLEM = CycleProblem(train_s=[1, 2], ship_s=0, fixed_s=0, deadline_s=20, shards=6)
ESTIMATES = "train_s, ship_s and fixed_s, each with its spread"


def test_names_are_unique_and_lead_to_their_row() -> None:
    assert len(SCHEMES) == len(schemes._ROWS)
    for row in schemes._ROWS:
        assert scheme_named(row.name) is row


def test_every_scheme_says_what_it_is() -> None:
    for row in SCHEMES.values():
        assert row.summary
        assert row.paper
        assert callable(row.plan)
    assert len({row.summary for row in SCHEMES.values()}) == len(SCHEMES)


@pytest.mark.parametrize("name", SCHEMES)
def test_what_leaves_a_learner_is_as_agreed(name: str) -> None:
    before, during = {
        "dab": ("number of shards wanted", "that it is alive"),
        "equal": ("nothing", "progress"),
    }.get(name, (ESTIMATES, "progress"))
    assert (SCHEMES[name].before, SCHEMES[name].during) == (before, during)


def test_synchronous_and_staleness_alone_choose_passes() -> None:
    chosen = {row.name for row in SCHEMES.values() if row.passes == "chosen"}
    assert chosen == {"synchronous", "staleness", "staleness-numerical", "staleness-sai"}
    optional = {row.name for row in SCHEMES.values() if row.passes == "optional"}
    assert optional == {"equal", "proportional"}


def test_only_dab_leaves_data_for_later() -> None:
    assert [row.name for row in SCHEMES.values() if not row.hands_out_all] == ["dab"]


def test_the_baselines_alone_may_be_late() -> None:
    late = [row.name for row in SCHEMES.values() if not row.keeps_deadline]
    assert late == ["equal", "proportional"]


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(SettingError, match=r"no scheme is called 'fedavg'") as caught:
        scheme_named("fedavg")
    said = str(caught.value)
    places = [said.index(name) for name in SCHEMES]
    assert all(one < other for one, other in pairwise(places))


@pytest.mark.parametrize("name", [row.name for row in SCHEMES.values() if row.problem != "cycle"])
def test_a_scheme_for_something_else_plans_no_single_task(name: str) -> None:
    with pytest.raises(SettingError, match=f"scheme {name} is not one for a single task"):
        cycle_plan(name, PROBLEM, 1)
