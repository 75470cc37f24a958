import json
import subprocess
import threading
from collections.abc import Iterator

import pytest

from melisma import axon
from tests.axon.served_functions import a_worker
from tests.cli.command_line import MELISMA, melisma, melisma_process


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with a_worker().start() as address:
        yield address


def test_a_function_is_called_with_json_or_text(address: str) -> None:
    assert melisma("axon", "call", address, "add", "1", "2.5").stdout == "3.5\n"
    assert melisma("axon", "call", address, "echo", "plain text").stdout == "plain text\n"
    result = melisma("axon", "call", "--json", address, "echo", '{"a": [1, null]}')
    assert json.loads(result.stdout) == {"a": [1, None]}
    assert melisma("axon", "call", address, "count_to", "3").stdout == "0\n1\n2\n"


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["call", "{}", "fail", "no"], "melisma: ValueError: ", 1),
        (["call", "{}", "nothing"], "melisma: no function 'nothing' on this worker", 1),
        (
            ["call", "http://127.0.0.1:1", "f"],
            "melisma: no answer from http://127.0.0.1:1 (connection refused)",
            1,
        ),
        (["call", "ftp://x", "f"], "melisma: 'ftp://x' is not an address", 2),
        (
            ["call", "--deadline", "-1", "{}", "f"],
            "melisma: deadline_s must be a positive number",
            2,
        ),
        (["relay", "--listen", "here"], "'here' is not HOST:PORT", 2),
        (["token", "pi"], "melisma: AXON_TOKEN is not set", 2),
    ],
)
def test_a_mistake_is_a_message_without_traceback(
    address: str,
    arguments: list[str],
    message: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AXON_TOKEN", raising=False)
    result = melisma("axon", *(argument.replace("{}", address) for argument in arguments))
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.code == code


def test_a_process_prints_the_result_and_ends_with_0(address: str) -> None:
    assert melisma_process("axon", "call", address, "add", "1", "2.5") == (0, "3.5\n", "")


def test_the_functions_of_a_worker_are_listed(address: str) -> None:
    assert "count_to(number: int) -> collections.abc.Iterator[int]" in (
        melisma("axon", "list", address).stdout.splitlines()
    )
    names = [
        function["name"]
        for function in json.loads(melisma("axon", "list", "--json", address).stdout)
    ]
    assert "store.get" in names


def test_a_token_issued_on_the_command_line_opens_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AXON_TOKEN", "sesame")
    token = melisma("axon", "token", "pi").stdout.strip()
    monkeypatch.delenv("AXON_TOKEN")
    with a_worker(token="sesame").start() as address:
        result = melisma("axon", "call", "--token", token, address, "echo", "1")
        assert result.stdout == "1\n"


@pytest.mark.parametrize("kind", ["board", "relay"])
def test_a_board_and_a_relay_run_until_they_are_terminated(kind: str) -> None:
    command = [*MELISMA, "axon", kind, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].strip()
        if kind == "board":
            with a_worker(name="here", board=url).start() as address:
                result = melisma("axon", "find", "--board", url)
                assert result.stdout == f"here  {address}\n"
        else:
            worker = a_worker(name="here", relay=url)
            with worker.start() as address, axon.connect(address) as remote:
                assert remote.echo("through") == "through"
        process.terminate()
        assert process.wait(20) == 0


def test_a_search_prints_a_list_and_ends_its_threads() -> None:
    threads = threading.active_count()
    result = melisma("axon", "find", "--seconds", "0.1", "--json")
    assert isinstance(json.loads(result.stdout), list)
    assert threading.active_count() == threads
