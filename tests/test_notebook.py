"""The notebook among the examples runs as printed, in a real kernel, and shows what it says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook" / "train.ipynb"
# Fewer and shorter cycles than those of the example.
SHORTER = ("deadline_s=2.0, cycles=3", "deadline_s=1.0, cycles=2")
CYCLES = 2
# In a process of its own, as sockets of the kernel may stay open until it ends.
EXECUTE = """
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read("shorter.ipynb", as_version=4)
NotebookClient(notebook, timeout=250, kernel_name="python3").execute()
nbformat.write(notebook, "executed.ipynb")
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> "Executed":
    """Return the cells of the executed notebook, and the folder in which it ran."""
    folder = tmp_path_factory.mktemp("notebook")
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert SHORTER[0] in text
    (folder / "shorter.ipynb").write_text(text.replace(*SHORTER), encoding="utf-8")
    subprocess.run([sys.executable, "-c", EXECUTE], cwd=folder, check=True)
    return json.loads((folder / "executed.ipynb").read_text())["cells"], folder


def outputs(cells: list[Any], text: str) -> list[dict[str, Any]]:
    """Return the data of all outputs of the last cell that contains the text."""
    cell = [cell for cell in cells if text in "".join(cell["source"])][-1]
    return [
        {kind: "".join(content) for kind, content in output["data"].items()}
        for output in cell["outputs"]
        if "data" in output
    ]


Executed = tuple[list[Any], Path]


def test_the_example_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)


def test_a_model_and_data_of_a_notebook_are_trained_live(executed: Executed) -> None:
    cells, folder = executed
    assert 0.9 < float(outputs(cells, "melisma.simulate")[-1]["text/plain"]) <= 1
    [model] = folder.glob("runs/points-*/model.safetensors")
    assert model.stat().st_size > 4 * (4 * 16 + 16 + 16 * 2 + 2)


def test_a_live_run_shows_its_cycles_in_one_output(executed: Executed) -> None:
    [shown] = outputs(executed[0], "melisma.train")
    assert "<b>points: finished</b>" in shown["text/html"]
    assert shown["text/html"].count("<tr>") == 1 + CYCLES


def test_a_report_is_shown_with_tables_and_picture(executed: Executed) -> None:
    [cell] = [cell for cell in executed[0] if cell["source"] == ["report"]]
    html = "".join(cell["outputs"][0]["data"]["text/html"])
    assert "<td>kitchen</td>" in html
    assert "<svg" in html


def test_frames_have_a_row_for_each_cycle_and_learner(executed: Executed) -> None:
    [cycles] = outputs(executed[0], 'to_pandas()[["seconds"')
    [learners] = outputs(executed[0], '"learners")')
    assert cycles["text/plain"].count("\n") == 1 + CYCLES
    assert "kitchen" in learners["text/plain"]
    assert "shed" in learners["text/plain"]
