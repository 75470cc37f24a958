import json
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from melisma import __version__, cli
from melisma.allocation.schemes import SCHEMES
from melisma.errors import MelismaError, RemoteError, SettingError


def failing_command(error: Exception) -> click.Command:
    def fail() -> None:
        raise error

    return click.Command("run", callback=fail)


def exit_code_of_main(monkeypatch: pytest.MonkeyPatch, error: Exception) -> int:
    monkeypatch.setattr(sys, "argv", ["melisma", "run"])
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: failing_command(error))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


def test_an_error_of_melisma_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of_main(monkeypatch, MelismaError("no such worker;\n  start one first")) == 1
    assert capsys.readouterr() == ("", "melisma: no such worker; start one first\n")


def test_ctrl_c_before_a_command_begins_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.melisma, "main", interrupt)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "melisma: interrupted\n"


def test_ctrl_c_during_the_imports_of_a_command_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt(name)

    monkeypatch.setattr(cli, "import_module", interrupt)
    monkeypatch.setattr(sys, "argv", ["melisma", "plan"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    assert capsys.readouterr().err.strip() == "melisma: interrupted"


INTERRUPTED_IMPORT = """
import sys


class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "click":
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupt())
from melisma.__main__ import main
main()
"""


def test_ctrl_c_during_the_first_imports_ends_with_130() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "melisma: interrupted\n")


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "melisma", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"melisma, version {__version__}\n"


def test_a_remote_traceback_is_left_out_of_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = RemoteError("it broke", "Broken", "Traceback (most recent call last): ...")
    assert exit_code_of_main(monkeypatch, error) == 1
    assert capsys.readouterr().err == "melisma: it broke\n"


def test_any_other_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["melisma", "run"])
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: failing_command(KeyError("x")))
    with pytest.raises(KeyError):
        cli.main()


WARNING_PROGRAM = """
import warnings
import click
from melisma import cli
from melisma.errors import MelismaWarning

def warn():
    warnings.warn("something\\n  happened", MelismaWarning)
    warnings.warn("another thing", RuntimeWarning)

cli.LazyGroup.get_command = lambda *_: click.Command("run", callback=warn)
cli.main()
"""


def test_a_warning_of_melisma_is_one_line_and_other_warnings_have_their_line() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WARNING_PROGRAM, "run"], capture_output=True, text=True, check=True
    )
    of_melisma, other, *_ = result.stderr.splitlines()
    assert of_melisma == "melisma: something happened"
    assert other == "<string>:9: RuntimeWarning: another thing"


@pytest.mark.parametrize("arguments", [["no-such-command"], ["--no-such-option"]])
def test_wrong_usage_ends_with_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli.melisma, arguments).exit_code == 2


def test_the_version_is_the_package_version() -> None:
    assert CliRunner().invoke(cli.melisma, ["--version"]).output.split()[-1] == __version__


@pytest.mark.parametrize("name", cli.SUBCOMMANDS)
def test_every_subcommand_can_be_loaded_and_has_help(name: str) -> None:
    result = CliRunner().invoke(cli.melisma, [name, "--help"])
    assert result.exit_code == 0
    assert f"{name} [OPTIONS]" in result.output


@pytest.mark.parametrize("group", [[], ["peers"], ["axon"], ["data"]])
def test_the_help_of_a_group_shows_whole_summaries(group: list[str]) -> None:
    result = CliRunner().invoke(cli.melisma, [*group, "--help"], terminal_width=80)
    commands = re.findall(r"^  [a-z]+ .*", result.output.partition("--help")[2], re.MULTILINE)
    assert commands
    assert all(line.endswith(".") and not line.endswith("...") for line in commands)


@pytest.mark.parametrize("name", ["run", "simulate", "plan", "compare"])
def test_the_help_lists_the_schemes(name: str) -> None:
    # Wide enough for names with hyphens not to be broken.
    result = CliRunner().invoke(cli.melisma, [name, "--help"], terminal_width=1000)
    words = re.split(r"[\s,.]+", result.output)
    for scheme in SCHEMES.values():
        if scheme.problem == "cycle" or name == "plan":
            assert scheme.name in words


@pytest.mark.parametrize("name", cli.SUBCOMMANDS)
def test_every_option_has_a_description(name: str) -> None:
    command = cli.melisma.get_command(click.Context(cli.melisma), name)
    assert command is not None
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []


@pytest.mark.parametrize("name", ["run", "simulate", "plan"])
def test_an_unknown_scheme_is_refused_before_a_file_is_read(name: str) -> None:
    arguments = [name, "missing.toml", "--fleet", "missing.toml", "--scheme", "stalenes"]
    result = CliRunner().invoke(cli.melisma, arguments)
    assert isinstance(result.exception, SettingError)
    assert str(result.exception) == ("no scheme is called 'stalenes'; did you mean staleness?")


def test_subcommands_are_not_imported_until_they_are_used() -> None:
    code = "import sys, melisma.cli; print([m for m in sys.modules if 'melisma.cli.' in m])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "['melisma.cli.suggestions']\n"


def test_the_help_groups_the_subcommands() -> None:
    text = CliRunner().invoke(cli.melisma, ["--help"], terminal_width=80).output
    headings = [line.rstrip(":") for line in text.splitlines() if line.endswith(":")]
    assert headings == ["Options", *cli.COMMAND_GROUPS]
    listed = re.findall(r"^  ([a-z]+) ", text, re.MULTILINE)
    assert listed == list(cli.SUBCOMMANDS)
    assert len(set(listed)) == len(listed)


def leaf_commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the commands that do something, with their paths."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        each = command.get_command(context, name)
        assert each is not None
        yield from leaf_commands(each, f"{path} {name}".strip())


def test_every_command_has_json() -> None:
    commands = dict(leaf_commands(cli.melisma))
    assert len(commands) > 25
    assert [
        path
        for path, command in commands.items()
        if not any("--json" in option.opts for option in command.params)
    ] == []


def test_data_and_tokens_are_printed_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    where = CliRunner().invoke(cli.melisma, ["data", "where", "mnist", "--json"])
    assert json.loads(where.output)["folder"].endswith("mnist")
    monkeypatch.setenv("AXON_TOKEN", "secret")
    token = CliRunner().invoke(cli.melisma, ["axon", "token", "ann", "--json"])
    assert json.loads(token.output)["name"] == "ann"
