"""STATES.toml: the operating states that the owner of a real device lets it be in."""

from math import isclose
from pathlib import Path

from melisma.fleet.files.fleet_file import StateTable
from melisma.fleet.files.toml_file import read_toml
from melisma.fleet.observed_states import ProbabilitySource
from melisma.fleet.tables import Seed, Table

SHARES = ("compute", "bandwidth")


class StatesFile(Table, frozen=True, kw_only=True):
    """The states of a device, each with a stressor or idle; one is drawn for each cycle."""

    state: tuple[StateTable, ...]
    state_probabilities: ProbabilitySource = "given"
    seed: Seed = 1

    def __post_init__(self) -> None:
        """Raise ValueError unless probabilities sum to 1, and for shares, which have no effect."""
        total = sum(state.probability for state in self.state)
        if not isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(f"probabilities of the states sum to {total:g}; expected 1")
        for state in self.state:
            if used := [name for name in SHARES if getattr(state, name) != 1.0]:
                raise ValueError(
                    f"{used[0]} of a state has no effect on a real device; remove it, or use stress"
                )


def read_states(path: str | Path) -> StatesFile:
    """Read the states of a device; a `SettingError` names file and key."""
    return read_toml(path, StatesFile)
