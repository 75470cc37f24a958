"""`melisma init`: write TASK.toml and FLEET.toml from a few answers, or from none."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from melisma.atomic import write_atomic
from melisma.cli import starter_files
from melisma.cli.options import FILE, json_option, time_options
from melisma.cli.output import write, write_json
from melisma.cli.starter_files import (
    DEFAULT_DEVICES,
    SUBJECTS,
    Subject,
    own_subject,
    parse_devices,
    parse_time,
)
from melisma.errors import SettingError, suggest
from melisma.fleet.files.profiles import PROFILES
from melisma.fleet.run_time import TIME_OF_TASK, RunTime
from melisma.fleet.sizes import MODELS
from melisma.fleet.task import Task
from melisma.learning.data.datasets import CATALOG
from melisma.learning.loaded_task import load_task
from melisma.user_code import is_import_path

TASK_FILE, FLEET_FILE = "TASK.toml", "FLEET.toml"
OWN = "own"
OWN_MODEL, OWN_DATA = "mymodel:Net", "mymodel:load"
TIMED_SAMPLES = 1000

T = TypeVar("T")


@click.command("init", short_help="Write TASK.toml and FLEET.toml to start from.")
@click.argument("folder", type=FILE, default=".")
@click.option("--data", help="A built-in data set, or your function as module:function.")
@click.option("--model", help="A built-in model, or your class as module:Class.")
@click.option("--devices", help='Profiles with numbers, such as "2 raspberry-pi-4, phone".')
@time_options
@click.option("--yes", "-y", is_flag=True, help="Ask nothing; use the defaults.")
@click.option("--force", is_flag=True, help="Overwrite the two files.")
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    folder: Path,
    data: str | None,
    model: str | None,
    devices: str | None,
    run_time: RunTime,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write TASK.toml and FLEET.toml into FOLDER, with a comment on each key.

    Asks what to train, on which devices and by when; options answer a question, --yes all of them.
    """
    _check_folder(folder, force=force)
    subject = _choose_subject(data, model, yes=yes)
    counts = _choose_devices(devices, yes=yes)
    total = _choose_time(run_time, subject, yes=yes)
    files = _write_files(folder, subject, counts, total)
    _print_next(files, as_json=as_json)


def _check_folder(folder: Path, *, force: bool) -> None:
    """Raise SettingError if files would be lost."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is not a folder; pass a folder for the two files")
    existing = [str(folder / name) for name in (TASK_FILE, FLEET_FILE) if (folder / name).exists()]
    if existing and not force:
        verb = "exist" if len(existing) > 1 else "exists"
        raise SettingError(
            f"{' and '.join(existing)} {verb}; use --force to overwrite, or another folder"
        )


def _ask(question: str, default: str, read: Callable[[str], T]) -> T:
    """Return the answer as `read` returns it; in a terminal ask again if it raises SettingError."""
    while True:
        answer = _prompt(question, default)
        try:
            return read(answer)
        except SettingError as error:
            if not _is_terminal():
                raise
            click.echo(str(error), err=True)


def _prompt(question: str, default: str) -> str:
    """Ask on standard error, so that standard output has only the result."""
    try:
        answer: str = click.prompt(question, default=default, err=True)
    except click.Abort:
        # Ctrl-C ends the line itself, the end of a piped input does not.
        if _is_terminal():
            raise
        raise SettingError(f"no answer to {question!r}; use --yes for the defaults") from None
    return answer.strip()


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _choose_subject(data: str | None, model: str | None, *, yes: bool) -> Subject:
    """Return the model and data of the options, of the answers, or the first built-in ones."""
    if data is None and model is not None:
        raise SettingError(f"--model {model} needs --data, such as --data mnist")
    if data is None and not yes:
        click.echo("What do you want to train?", err=True)
        for name in SUBJECTS:
            click.echo(f"  {name:<14} {CATALOG[name].description}", err=True)
        click.echo(f"  {OWN:<14} a PyTorch model and data of your own", err=True)
        data = _ask("data", next(iter(SUBJECTS)), _check_data)
        if data == OWN:
            data = _ask("your data", OWN_DATA, _check_own_data)
        if data not in SUBJECTS:
            model = _ask("your model", OWN_MODEL, _check_model)
    return _find_subject(next(iter(SUBJECTS)) if data is None else data, model)


def _check_data(data: str) -> str:
    """Return the answer if it is offered, or names a function."""
    offered = (*SUBJECTS, OWN)
    if data not in offered and not is_import_path(data):
        expected = suggest(data, offered, "your function as module:function")
        raise SettingError(f"unknown data {data!r}; {expected}")
    return data


def _check_own_data(data: str) -> str:
    if not is_import_path(data):
        raise SettingError(f"your data is {data!r}; expected module:function, such as {OWN_DATA}")
    return data


def _check_model(model: str) -> str:
    if model not in MODELS and not is_import_path(model):
        raise SettingError(
            f"unknown model {model!r}; expected module:Class, such as {OWN_MODEL}, or a "
            "built-in one"
        )
    return model


def _find_subject(data: str, model: str | None) -> Subject:
    if data in SUBJECTS:
        known = SUBJECTS[data]
        if model is None:
            return known
        return replace(known, model=model, name=own_subject(model, data).name)
    if not is_import_path(data):
        raise SettingError(
            f"unknown data {data!r}; {suggest(data, SUBJECTS, 'your function as module:function')}"
        )
    if model is None:
        raise SettingError(f"--data {data} needs --model, such as --model {OWN_MODEL}")
    return own_subject(model, data)


def _choose_devices(devices: str | None, *, yes: bool) -> dict[str, int]:
    if devices is None and not yes:
        click.echo("\nWhich devices? Known kinds:", err=True)
        for name, profile in PROFILES.items():
            click.echo(f"  {name:<17} {profile.description}", err=True)
        return _ask("devices", DEFAULT_DEVICES, parse_devices)
    return parse_devices(DEFAULT_DEVICES if devices is None else devices)


def _choose_time(run_time: RunTime, subject: Subject, *, yes: bool) -> RunTime:
    if run_time != TIME_OF_TASK:
        return run_time
    if yes:
        return RunTime(total_s=subject.total_s)
    click.echo("\nHow long may the run take, or when should it end (10 min, 2 h, 23:00)?", err=True)
    return _ask("time", f"{subject.total_s:.0f} s", _read_time)


def _read_time(text: str) -> RunTime:
    run_time = parse_time(text)
    run_time.apply(Task(name="init", deadline_s=1.0))  # raises an error if it is too short
    return run_time


def _write_files(
    folder: Path, subject: Subject, counts: dict[str, int], run_time: RunTime
) -> list[Path]:
    """Write the files, and the module that they need if it is missing; return their paths."""
    task_path, fleet_path = folder / TASK_FILE, folder / FLEET_FILE
    # Before anything is written, as its checks may fail.
    task = run_time.apply(
        Task(name=subject.name, model=subject.model, data=subject.data, deadline_s=1.0)
    )
    module = _starter_module(folder, subject)
    if module is not None:
        write_atomic(module, _module_text(subject))
    subject = _check_subject(subject, task, task_path)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(task_path, starter_files.render_task(subject, run_time))
    write_atomic(fleet_path, starter_files.render_fleet(counts))
    return [task_path, fleet_path, *([module] if module else [])]


def _starter_module(folder: Path, subject: Subject) -> Path | None:
    """Return the path of a module to write: both names are in it, and there is none yet."""
    modules = {name.partition(":")[0] for name in (subject.model, subject.data)}
    (name, *others) = modules
    path = folder / f"{name}.py"
    if others or not is_import_path(subject.model) or not name.isidentifier() or path.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return path


def _module_text(subject: Subject) -> str:
    net, load = (name.partition(":")[2] for name in (subject.model, subject.data))
    return starter_files.MODULE_TEXT.format(net=net, load=load)


def _check_subject(subject: Subject, task: Task, path: Path) -> Subject:
    """Load model and data of the user, and return a shard size that fits; others are known."""
    if not (is_import_path(subject.model) or is_import_path(subject.data)):
        task.check_sizes()
        return subject
    # Output of the user's modules must not mix with the result.
    with redirect_stdout(sys.stderr):
        loaded = load_task(task, path)
    return replace(subject, shard_samples=min(subject.shard_samples, loaded.task.samples))


def _print_next(files: list[Path], *, as_json: bool) -> None:
    task, fleet = files[:2]
    commands = {
        f"melisma plan {task} --fleet {fleet}": "what each device would train",
        f"melisma simulate {task} --fleet {fleet}": "the run in virtual time",
        f"melisma run {task} --fleet {fleet}": "the run, on emulated devices",
        f"melisma orchestrate {task}": "the run, on devices that join over the network",
    }
    if as_json:
        result = {"files": [str(path) for path in files], "next": list(commands)}
        write_json(result)
        return
    width = max(map(len, commands))
    lines = [f"wrote {path}" for path in files] + ["next:"]
    lines += [f"  {line:<{width}}  # {about}" for line, about in commands.items()]
    write("\n".join(lines) + "\n")
