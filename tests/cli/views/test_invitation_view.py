"""The invitation of an orchestrator as text and as a QR code."""

import msgspec
import segno

from melisma.cli.views.invitation_view import invitation_lines, qr_code
from melisma.fleet.task import Task
from melisma.live.invitation import Invitation, OrchestrationObserver
from melisma.live.join_string import JoinString
from melisma.live.orchestrator.lobby import StartCondition

FINGERPRINT = f"sha256:{'0123456789abcdef' * 4}"
TOKEN = "AAAAAAAAAAAAAAAA"
TASK = Task(
    name="digits", model="twonn", data="mnist", scheme="dab", deadline_s=10.0, cycles=6, passes=1
)


def test_the_command_has_its_own_line_and_addresses_left_out_are_named() -> None:
    hosts = ["192.168.1.20", *(f"fd00::{n}" for n in range(1, 6))]
    text, left_out = JoinString.create(7788, FINGERPRINT, TOKEN, hosts)
    invitation = Invitation(text, tuple(left_out), FINGERPRINT, StartCondition(learners=2), TASK)
    command, details = invitation_lines(invitation)
    assert command.splitlines() == [
        "task digits: dab, 6 cycles of 10 s",
        "on each device:",
        f"melisma join {text}",
    ]
    assert details[0].startswith("addresses: 192.168.1.20:7788, [fd00::1]:7788")
    assert details[1] == f"left out, as they do not fit: {', '.join(left_out)}"
    assert details[2] == "fingerprint: sha256:0123456789abcdef0123456789abcdef"
    assert details[3] == "the run begins when 2 learners are ready; Ctrl-C ends it"
    assert lines_with_code(invitation) == [
        "in the same network also: melisma join, with the code 42-acorn-actor"
    ]


def lines_with_code(invitation: Invitation) -> list[str]:
    lines = list[str]()
    OrchestrationObserver(lines.append).on_code("42-acorn-actor", invitation)
    return lines


def test_a_model_of_the_task_needs_an_option_on_devices() -> None:
    text, _ = JoinString.create(7788, FINGERPRINT, TOKEN, ["192.168.1.20"])
    task = msgspec.structs.replace(TASK, model="waves:Net")
    invitation = Invitation(text, (), FINGERPRINT, StartCondition(), task)
    command, details = invitation_lines(invitation)
    assert command.splitlines()[-1] == f"melisma join {text} --trust-code"
    assert lines_with_code(invitation) == [
        "in the same network also: melisma join --trust-code, with the code 42-acorn-actor"
    ]
    assert details[0] == (
        "the model waves:Net is code of the task: --trust-code lets a device run it, or use "
        "--allow-module waves instead if it is installed there"
    )


def test_federated_learning_needs_the_data_of_each_device() -> None:
    text, _ = JoinString.create(7788, FINGERPRINT, TOKEN, ["192.168.1.20"])
    task = msgspec.structs.replace(TASK, mode="federated")
    _, details = invitation_lines(Invitation(text, (), FINGERPRINT, StartCondition(), task))
    assert details[0] == (
        "the samples are on the devices: add --data FOLDER or --data MODULE:FUNCTION to the "
        "command, with the data of each"
    )


def test_a_qr_code_of_the_longest_command_fits_a_terminal() -> None:
    lines = qr_code(f"melisma join {'x' * 119} --trust-code", "utf-8").splitlines()
    assert len(lines) <= 25
    assert {len(line) for line in lines} <= set(range(20, 60))


def test_a_terminal_without_blocks_shows_no_qr_code() -> None:
    assert qr_code("melisma join mel1", "ascii") == ""


def test_the_modules_of_the_qr_code_are_those_of_the_command() -> None:
    text = "melisma join mel1abc"
    blocks = {" ": (1, 1), "▀": (0, 1), "▄": (1, 0), "█": (0, 0)}
    rows = [
        [blocks[char][half] for char in line]
        for line in qr_code(text, "utf-8").splitlines()
        for half in range(2)
    ]
    matrix = segno.make(text, error="l", micro=False).matrix_iter(border=2)
    expected = [[int(bool(module)) for module in row] for row in matrix]
    assert rows[: len(expected)] == expected
