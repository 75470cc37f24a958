"""Wrong usage is one line with the problem, the value found and the fix, and exit code 2."""

import re
from collections.abc import Iterator

import click
import pytest

from melisma import cli
from tests.cli.command_line import melisma


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("run --port 99999", "--port is 99999; expected a whole number from 0 to 65535"),
        ("run --learners x", "--learners is 'x'; expected a whole number >= 1"),
        ("join --cores x", "--cores is 'x'; expected a number"),
        ("run --potr 9", "unknown option --potr; did you mean --port?"),
        ("revoke --name pi", "unknown option --name; expected one of --json, --help"),
        ("revoke", "missing argument 'NAME'; see melisma revoke --help"),
        ("revoke a b", "got unexpected extra argument (b); see melisma revoke --help"),
        ("runn", "unknown command 'runn'; did you mean run?"),
        ("peers rn", "unknown command 'rn'; did you mean run?"),
        (
            "size --within 60",
            "--find is missing; expected one of deadline, devices, budget, model",
        ),
        (
            "simulate --work foo",
            "--work: unknown value 'foo'; expected one of timing, train, batched",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: str, line: str) -> None:
    assert melisma(*arguments.split()) == (2, "", f"melisma: {line}\n")


def test_a_group_without_a_command_prints_its_help() -> None:
    result = melisma("axon")
    assert "Commands:" in result.stdout + result.stderr


def commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the names of all commands, one tuple for each."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*names, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))


def wrong_options(names: tuple[str, ...]) -> Iterator[str]:
    """Yield the options of a command that take a number, a duration or one of several words."""
    command: click.Command | None = cli.melisma
    for name in names:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    for parameter in command.params:
        takes_text = isinstance(parameter.type, click.types.StringParamType | click.Path)
        if isinstance(parameter, click.Option) and not parameter.is_flag and not takes_text:
            yield parameter.opts[0]


@pytest.mark.parametrize("names", [*commands(cli.melisma)], ids=" ".join)
def test_wrong_options_of_every_command_are_one_line_with_a_fix(names: tuple[str, ...]) -> None:
    for arguments in (["--nonsense"], *([option, "x!"] for option in wrong_options(names))):
        code, stdout, stderr = melisma(*names, *arguments)
        assert (code, stdout) == (2, "")
        assert re.fullmatch(r"melisma: [^\n]+; [^\n]+\n", stderr)
