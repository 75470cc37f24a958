import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from melisma.cli import melisma
from melisma.errors import SettingError
from melisma.learning.data.datasets import CATALOG


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def output(*arguments: str) -> str:
    result = CliRunner().invoke(melisma, ["data", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_listed_data_set_can_be_downloaded_and_located(home: Path) -> None:
    rows = json.loads(output("list", "--json"))
    assert [row["name"] for row in rows] == list(CATALOG)
    assert not any(row["downloaded"] for row in rows)
    folder = home / "melisma" / "data" / "mnist"
    assert output("where", "mnist").strip() == str(folder)
    assert not folder.exists()
    assert output("get", "mnist").strip() == str(folder)
    assert {path.name for path in folder.iterdir()} == set(CATALOG["mnist"].files)
    assert output("list").splitlines()[0].split()[1] == "downloaded"


@pytest.mark.parametrize("command", ["get", "where"])
def test_an_unknown_data_set_is_refused(command: str) -> None:
    with pytest.raises(SettingError, match="unknown data set 'cats'"):
        output(command, "cats")
