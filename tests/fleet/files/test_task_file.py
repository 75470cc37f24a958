"""Reading of a TASK.toml: all keys, and what is reported about wrong ones."""

from pathlib import Path
from typing import Any

import pytest

from melisma.fleet.files.task_file import read_sized_task, read_task
from melisma.fleet.sizes import DATA, MODELS
from tests.fleet.task_texts import NEEDED, read_error, write_task


def test_all_keys_are_read(tmp_path: Path) -> None:
    path = write_task(
        tmp_path,
        mode='"federated"',
        partition='{ kind = "dirichlet", alpha = 0.1 }',
        scheme='"med"',
        passes="5",
        cycles="10",
        shard_samples="500",
        batch="32",
        loss='"cross_entropy"',
        optimizer='{ name = "adam", lr = 1e-4, keep = true }',
        stop="{ accuracy = 0.97 }",
        seed="1",
        caution="0.5",
    )
    task = read_task(path)
    assert task.partition is not None
    assert task.partition.alpha == 0.1
    assert task.optimizer.keep
    assert task.stop.accuracy == 0.97


@pytest.mark.parametrize("key", NEEDED)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    assert read_error(write_task(tmp_path, **{key: None})).startswith(f"task: {key} is missing")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("deadline_s", '"soon"', "task.deadline_s: 'soon'; expected a number"),
        ("deadline_s", "true", "task.deadline_s: True; expected a number"),
        ("deadline_s", "[1.0]", "task.deadline_s: [1.0]; expected a number"),
        ("model", "5", "task.model: 5; expected text in quotes"),
        ("passes", "1.5", "task.passes: 1.5; expected a whole number"),
        ("optimizer", '"sgd"', "task.optimizer: 'sgd'; expected a table"),
        ("optimizer", "{ keep = 1 }", "task.optimizer.keep: 1; expected true or false"),
        ("mode", '"central"', "task.mode: 'central'; expected one of federated, parallelized"),
        (
            "partition",
            '{ kind = "odd" }',
            "task.partition: kind is 'odd'; expected one of iid, sorted, dirichlet",
        ),
    ],
)
def test_a_wrong_type_is_reported_with_the_value_found_and_expected(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    assert read_error(write_task(tmp_path, **{key: value})).startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("deadline_s", "0", "a number above 0"),
        ("deadline_s", "-3.5", "a number above 0"),
        ("passes", "0", "a whole number of at least 1"),
        ("cycles", "0", "a whole number of at least 1"),
        ("shard_samples", "-500", "a whole number of at least 1"),
        ("batch", "0", "a whole number of at least 1"),
        ("min_shards", "-1", "a whole number of at least 0"),
        ("max_shards", "0", "a whole number of at least 1"),
        ("seed", "-1", "a whole number of at least 0"),
        ("caution", "0", "a number above 0"),
        ("caution", "1", "a number below 1"),
        ("passes", "9223372036854775808", "a whole number of at most 9007199254740992"),
    ],
)
def test_a_value_out_of_range_is_reported(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    assert (
        read_error(write_task(tmp_path, **{key: value}))
        == f"task.{key}: {value}; expected {message}"
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "-nan"])
@pytest.mark.parametrize(
    "key",
    [
        "deadline_s",
        "caution",
        "optimizer.lr",
        "optimizer.momentum",
        "optimizer.weight_decay",
        "stop.accuracy",
        "stop.loss",
        "partition.alpha",
        "sizes.sample_ops",
        "radio.gradient_bits",
        "radio.frame_s",
        "radio.update_cycles",
    ],
)
def test_nan_and_infinity_are_errors(tmp_path: Path, key: str, value: str) -> None:
    message = read_error(write_task(tmp_path, mode='"federated"', **{key: value}))
    assert message.startswith(f"task.{key}: ")
    assert "; expected a number " in message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dedline_s": "1"}, "task: unknown key dedline_s; did you mean deadline_s?"),
        (
            {"deadline_ms": "1"},
            "task: unknown key deadline_ms; did you mean deadline_s (in seconds)?",
        ),
        ({"stop.acuracy": "0.5"}, "task.stop: unknown key acuracy; did you mean accuracy?"),
        # A key of another table is not suggested.
        ({"frame_s": "1.0"}, "task: unknown key frame_s; expected one of name, model,"),
        ({"stop.xyz": "1"}, "task.stop: unknown key xyz; expected one of accuracy, loss"),
        ({"name": '"  "'}, "task: name is empty"),
        ({"name": '"two\\nlines"'}, "task: name is 'two\\nlines'; expected printable"),
        ({"name": '"\\u001b[31mred"'}, "task: name is '\\x1b[31mred'; expected printable"),
        ({"partition": "{}"}, 'task: partition is for mode = "federated" only'),
        (
            {"min_shards": "5", "max_shards": "2"},
            "task: min_shards is 5; expected at most max_shards, 2",
        ),
        (
            {"radio": "{ min_batch = 129 }"},
            "task.radio: min_batch is 129; expected at most max_batch, 128",
        ),
    ],
)
def test_unknown_and_contradictory_keys_are_reported(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    assert read_error(write_task(tmp_path, **keys)).startswith(message)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"model": '"xyz"'},
            "task: the size of model 'xyz' is unknown: give model_bytes and sample_ops in",
        ),
        (
            {"model": '"xyz"', "sizes": "{ model_bytes = 4 }"},
            "task: the size of model 'xyz' is unknown: give sample_ops in [task.sizes]",
        ),
        (
            {"model": '"tonn"'},
            (
                "task: unknown model 'tonn'; did you mean twonn? Known: alexnet, cnn, convnet, "
                "fashionnet, lenet, mlp, threenn, twonn; for any other give model_bytes and "
                "sample_ops in [task.sizes]"
            ),
        ),
        (
            {"optimizer": '{ name = "adma" }'},
            "task: optimizer.name is 'adma'; did you mean adam?",
        ),
        (
            {"data": '"x:y"', "sizes": "{ samples = 4 }"},
            "task: the size of data 'x:y' is unknown: give sample_bytes in [task.sizes]",
        ),
        (
            {"data": '"x:y"', "model": '"x:Z"'},
            (
                "task: the size of data 'x:y' is unknown: give samples and sample_bytes in "
                "[task.sizes]; the size of model 'x:Z' is unknown: give model_bytes and "
                "sample_ops in [task.sizes]"
            ),
        ),
        (
            {"model": '"spirals.Net"'},
            (
                "task: the size of model 'spirals.Net' is unknown: give model_bytes and "
                "sample_ops in [task.sizes]; did you mean spirals:Net?"
            ),
        ),
        (
            {"shard_samples": "60_001"},
            (
                "task: shard_samples = 60001 is more than the 60000 samples of the data; use "
                "shard_samples <= 60000"
            ),
        ),
        ({"model": '"mlp"'}, "task: model_args.layers is None; expected widths such as [784, 50"),
        ({"model": '"mlp"', "model_args": "{ layers = [1] }"}, "task: model_args.layers is [1];"),
    ],
)
def test_unknown_sizes_are_an_error_only_if_they_are_needed(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_task(tmp_path, **keys)
    assert read_task(path).name == "digits"
    assert read_error(path, read_sized_task).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "top level: task is missing"),
        (b"# nothing\n", "top level: task is missing"),
        (b"[task", "not TOML: Expected ']'"),
        (b"\xff\xfe[task]", "not text in UTF-8"),
        (b"task = 3", "task: 3; expected a table"),
        (b'[[task]]\nname = "a"', "task: [{'name': 'a'}]; expected a table"),
        (b"[Task]", "top level: unknown key Task; did you mean task?"),
        (b"[fleet]", "found [fleet], expected [task]; are TASK.toml and --fleet FLEET.toml s"),
        (b"[task]\nname = 'a'\nname = 'b'", "not TOML: Cannot overwrite a value"),
        (b"[task]\nseed = " + b"9" * 5000, "not TOML: Exceeds the limit"),
        (b"x = " + b"[" * 100_000, "not TOML: "),
    ],
)
def test_a_file_without_a_task_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "TASK.toml"
    path.write_bytes(content)
    assert read_error(path).startswith(message)


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    assert read_error(tmp_path / "none.toml") == "no such file or directory"
    assert read_error(tmp_path) == "is a directory"
    beyond = write_task(tmp_path) / "TASK.toml"
    assert read_error(beyond) == "not a directory"


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = write_task(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_task(path).name == "digits"


def test_values_that_look_like_error_messages_are_reported_correctly(tmp_path: Path) -> None:
    path = write_task(tmp_path, mode='"x - at `$.task.name`"')
    assert read_error(path).startswith("task.mode: 'x - at `$.task.name`'; expected one of")


EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(EXAMPLES.rglob("*.toml")) if path.name.lower() != "fleet.toml"],
    ids=lambda path: str(path.relative_to(EXAMPLES)),
)
def test_an_example_names_a_model_and_data_that_exist(path: Path) -> None:
    task = read_sized_task(path)
    assert task.model in {*MODELS, "mlp"} or ":" in task.model
    assert task.data in DATA or ":" in task.data
