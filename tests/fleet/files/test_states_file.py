from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.fleet.files.states_file import read_states

IDLE = "[[state]]\nprobability = 0.75\n"
BUSY = '[[state]]\nname = "busy"\nprobability = 0.25\nstress = "training"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "states.toml"
    path.write_text(text)
    return path


def test_states_have_probabilities_and_stressors(tmp_path: Path) -> None:
    file = read_states(write(tmp_path, f'state_probabilities = "estimated"\n{IDLE}{BUSY}'))
    assert [(each.probability, each.stress) for each in file.state] == [
        (0.75, ""),
        (0.25, "training"),
    ]
    assert (file.state_probabilities, file.seed) == ("estimated", 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (IDLE, "sum to 0.75; expected 1"),
        (IDLE + BUSY + "compute = 0.5\n", "compute of a state has no effect on a real device"),
        (IDLE + BUSY.replace("training", "trainin"), "stress 'trainin' is unknown"),
        ("seed = 1\n", "state"),
        (IDLE + BUSY + "heat = 0.5\n", "heat"),
    ],
)
def test_an_invalid_file_is_an_error_that_names_it(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem) as caught:
        read_states(write(tmp_path, text))
    assert "states.toml" in str(caught.value)
