"""Invalid settings are found before any learner starts."""

from pathlib import Path
from typing import Any

import pytest

from melisma.errors import DataError, SettingError
from melisma.learning.loaded_task import load_task
from melisma.live import preparation
from tests.live.short_run import build, run_task


@pytest.mark.parametrize(
    ("task", "error", "words"),
    [
        ({"model": "twonn"}, SettingError, "does not fit the data"),
        ({"model": "nowhere:Model"}, SettingError, "nowhere"),
        ({"data": "tiny_task:nothing"}, SettingError, "nothing"),
        (
            {"scheme": "fastest"},
            SettingError,
            "no scheme is called 'fastest'; expected one of equal, .*, dab, or package",
        ),
        # Refused before the data is loaded.
        ({"scheme": "med", "data": "nowhere:load"}, SettingError, "cannot run a cycle of one task"),
        ({"scheme": "dab", "passes": None, "data": "nowhere:load"}, SettingError, "needs passes"),
        ({"model_args": {"numbers": 2}}, (SettingError, DataError), "fit"),
    ],
)
def test_invalid_settings_are_found_before_a_learner_starts(
    work_folder: Path, task: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_task(work_folder, **task)
    assert not (work_folder / "run").exists()


def test_more_samples_than_the_data_has_are_refused(work_folder: Path) -> None:
    with pytest.raises(
        SettingError, match=r"sizes.samples is 601, but data tiny_task:blobs has 600"
    ):
        run_task(work_folder, sizes={"samples": 601})


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_samples_limits_a_run_to_the_same_data_live_and_simulated(
    work_folder: Path, mode: str
) -> None:
    task, fleet = build({"sizes": {"samples": 240}, "mode": mode}, {})
    live = preparation.prepare(task, fleet, None, work_folder / "run")
    simulated = load_task(task)
    assert live.task.samples == len(live.train) == 240
    assert live.task == simulated.task
    assert live.train.samples.tolist() == simulated.data.train.samples.tolist()


def test_data_without_test_samples_is_for_federated_learning_only(work_folder: Path) -> None:
    with pytest.raises(SettingError, match="no test samples"):
        run_task(work_folder, data_args={"test": 0})


def test_files_in_the_run_folder_are_not_touched(work_folder: Path) -> None:
    (work_folder / "run" / "shards").mkdir(parents=True)
    mine = work_folder / "run" / "shards" / "mine"
    mine.write_text("precious")
    with pytest.raises(SettingError, match="is not empty"):
        run_task(work_folder)
    assert mine.read_text() == "precious"


def test_a_run_folder_is_checked_before_data_is_loaded(work_folder: Path) -> None:
    (work_folder / "mine").write_text("precious")
    task, fleet = build({"data": "nowhere:load"}, {})
    with pytest.raises(SettingError, match="is not empty"):
        preparation.prepare(task, fleet, None, work_folder)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ('loss = "crossentropy"', "loss is 'crossentropy'; did you mean cross_entropy?"),
        ('optimizer = { name = "adamm" }', "optimizer.name is 'adamm'; did you mean adam?"),
        ('model = "twonnn"', "unknown model 'twonnn'; did you mean twonn?"),
        ('scheme = "med"', "scheme med cannot run a cycle of one task"),
        ("shard_samples = 100000", "shard_samples = 100000 is more than the "),
    ],
)
def test_a_setting_that_training_refuses_is_reported_with_the_file(
    work_folder: Path, key: str, message: str
) -> None:
    keys = {"name": '"blobs"', "model": '"mlp"', "model_args": "{ layers = [4, 2] }"}
    keys |= {"data": '"tiny_task:blobs"', "deadline_s": "2.0", "passes": "1"}
    name, _, value = key.partition(" = ")
    lines = [f"{each} = {text}" for each, text in (keys | {name: value}).items()]
    path = work_folder / "TASK.toml"
    path.write_text("\n".join(["[task]", *lines]))
    _, fleet = build({}, {})
    with pytest.raises(SettingError) as caught:
        preparation.prepare(path, fleet, None, work_folder / "run")
    assert str(caught.value).startswith(f"{path}: task: {message}")
    assert not (work_folder / "run").exists()


def test_the_folder_of_another_run_is_refused(work_folder: Path) -> None:
    run_task(work_folder, cycles=1)
    before = (work_folder / "run" / "trace.jsonl").read_bytes()
    with pytest.raises(SettingError, match="is not empty"):
        run_task(work_folder, cycles=1)
    assert (work_folder / "run" / "trace.jsonl").read_bytes() == before
