"""`melisma ledger`: of a simulation, of a service, as CSV and as JSON."""

import csv
from math import fsum
from pathlib import Path

import pytest

from melisma.runs.folder import SERVICE_TRACE
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import SERVICE_STEPS
from tests.cli.command_line import melisma, parse_json
from tests.service.recorded_steps import random_steps

STEPS = random_steps(seed=1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service below runs/."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "service"
    path.mkdir(parents=True)
    journal = ServiceJournal.create(path)
    for step in STEPS:
        journal.write(step)
    journal.close()
    return path


def test_sums_of_tasks_and_of_learners_are_printed(folder: Path) -> None:
    result = melisma("ledger", str(folder))
    assert result.code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["task", *["task"] * 3, "all"]
    by_learner = melisma("ledger", str(folder), "--by", "learner").stdout.splitlines()
    assert by_learner[1].startswith("device-0")
    assert by_learner[-1].split() == lines[-1].split()


def test_without_a_folder_the_latest_one_is_read() -> None:
    assert melisma("ledger").stdout.splitlines()[-1].startswith("all")


def test_json_and_csv_have_all_payments(folder: Path, tmp_path: Path) -> None:
    result = melisma("ledger", str(folder), "--json", "--csv", str(tmp_path / "ledger.csv"))
    found = parse_json(result.stdout)
    amounts = [payment["amount"] for payment in found["payments"]]
    assert fsum(amounts) == pytest.approx(found["total"]["amount"])
    with (tmp_path / "ledger.csv").open() as file:
        assert [float(row["amount"]) for row in csv.DictReader(file)] == amounts


def test_the_ledger_of_a_simulation_is_the_same(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "simulated"
    other.mkdir()
    (other / SERVICE_TRACE).write_bytes(b"".join(map(SERVICE_STEPS.encode, STEPS)))
    assert melisma("ledger", str(other)).stdout == melisma("ledger", str(folder)).stdout


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    result = melisma("ledger", str(tmp_path))
    assert result.code == 2
    assert "has no ledger; use the folder of a service" in result.stderr
