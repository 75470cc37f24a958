import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from melisma import axon, cli
from tests.axon.served_functions import a_worker


def melisma_axon(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from melisma.cli import main; main()", "axon", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=30, env=environment or None
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with a_worker().start() as address:
        yield address


def test_a_function_is_called_with_json_or_text(address: str) -> None:
    assert melisma_axon("call", address, "add", "1", "2.5").stdout == "3.5\n"
    assert melisma_axon("call", address, "echo", "plain text").stdout == "plain text\n"
    result = melisma_axon("call", "--json", address, "echo", '{"a": [1, null]}')
    assert json.loads(result.stdout) == {"a": [1, None]}
    assert melisma_axon("call", address, "count_to", "3").stdout == "0\n1\n2\n"


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["call", "{}", "fail", "no"], "melisma: ValueError: ", 1),
        (["call", "{}", "nothing"], "melisma: no function 'nothing' on this worker", 1),
        (["call", "http://127.0.0.1:1", "f"], "melisma: no answer from http://127.0.0.1:1", 1),
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
def test_a_mistake_is_one_clear_line(
    address: str,
    arguments: list[str],
    said: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("AXON_TOKEN", raising=False)
    words = (argument.replace("{}", address) for argument in arguments)
    monkeypatch.setattr(sys, "argv", ["melisma", "axon", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    stderr = capsys.readouterr().err
    assert said in stderr
    assert "Traceback" not in stderr
    assert end.value.code == code


def test_the_functions_of_a_worker_are_listed(address: str) -> None:
    assert "count_to(number: int) -> collections.abc.Iterator[int]" in (
        melisma_axon("list", address).stdout.splitlines()
    )
    names = [f["name"] for f in json.loads(melisma_axon("list", "--json", address).stdout)]
    assert "store.get" in names


def test_a_token_issued_on_the_command_line_opens_a_worker() -> None:
    token = melisma_axon("token", "pi", AXON_TOKEN="sesame").stdout.strip()
    with a_worker(token="sesame").start() as address:
        result = melisma_axon("call", "--token", token, address, "echo", "1")
        assert result.stdout == "1\n"


@pytest.mark.parametrize("kind", ["board", "relay"])
def test_a_board_and_a_relay_run_until_they_are_ended(kind: str) -> None:
    command = [sys.executable, "-c", "from melisma.cli import main; main()", "axon", kind]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        place = process.stdout.readline().split(" at ")[1].strip()
        if kind == "board":
            with a_worker(name="here", board=place).start() as address:
                found = melisma_axon("find", "--board", place)
                assert found.stdout == f"here  {address}\n"
        else:
            with a_worker(name="here", relay=place).start() as address, axon.connect(address) as r:
                assert r.echo("through") == "through"
        process.terminate()
        assert process.wait(20) == 0


def test_nothing_found_is_said() -> None:
    threads = threading.active_count()
    result = melisma_axon("find", "--seconds", "0.1", "--json")
    assert isinstance(json.loads(result.stdout), list)
    assert threading.active_count() == threads
