"""Settings in which live and simulated runs can be expected to have the same plans."""

from pathlib import Path

import pytest

from benchmarks.simulation.live_and_simulated import CYCLES, DEVICES, SETTINGS, write_files
from melisma.simulation.simulation import SimulationOptions, simulate

Plan = dict[str, tuple[int, int]]


def plans(folder: Path, name: str, speeds: dict[str, float]) -> list[Plan]:
    """Return shards and passes of each device, by cycle, at these factors of their speeds."""
    write_files(folder, SETTINGS[name], CYCLES, speeds)
    files = folder / "task.toml", folder / "fleet.toml"
    report = simulate(*files, SimulationOptions(work="timing"))
    return [
        {each.name: (each.shards, each.passes) for each in cycle.assignments}
        for cycle in report.cycles
    ]


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if not each.fine])
def test_an_error_of_one_percent_gives_the_same_plans_with_coarse_shards(
    name: str, tmp_path: Path
) -> None:
    expected = plans(tmp_path, name, {})
    for factor in (0.99, 1.01):
        for device in DEVICES:
            assert plans(tmp_path, name, {device: factor}) == expected, (device, factor)


def test_a_larger_error_gives_other_plans(tmp_path: Path) -> None:
    assert plans(tmp_path, "dab", {"fast": 0.9}) != plans(tmp_path, "dab", {})
