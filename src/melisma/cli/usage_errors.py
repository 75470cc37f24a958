"""Wrong usage of the command line as one line: the problem, the value found, and the fix."""

import re
from typing import Any

import click
from click.types import FloatParamType

from melisma.errors import suggest

WRONG_NUMBER = re.compile(r"(.+) is not (?:a valid (?:integer|float)|in the range).*", re.DOTALL)


def usage_line(error: click.UsageError) -> str:
    """Return the error as one line; one without a fix refers to the help of its command."""
    problem = " ".join(_problem(error).split()).removesuffix(".")
    if ";" in problem or error.ctx is None:
        return problem
    return f"{problem}; see {error.ctx.command_path} --help"


def _problem(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        parameters = error.ctx.command.get_params(error.ctx)
        names = [n for each in parameters if isinstance(each, click.Option) for n in each.opts]
        return f"unknown option {error.option_name}; {suggest(error.option_name, names)}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        choices = getattr(error.param.type, "choices", ())
        if choices:
            return f"{_name(error.param)} is missing; expected one of {', '.join(choices)}"
    if isinstance(error, click.BadParameter) and error.param is not None and error.message:
        return _wrong_value(error.param, error.message)
    message = error.format_message()
    return message[:1].lower() + message[1:]


def _wrong_value(parameter: click.Parameter, message: str) -> str:
    name = _name(parameter)
    if found := WRONG_NUMBER.fullmatch(message):
        return f"{name} is {found[1]}; expected {_describe_number(parameter.type)}"
    return f"{name}: {message}"


def _name(parameter: click.Parameter) -> str:
    """Return the name of an option or argument as users write it."""
    is_option = isinstance(parameter, click.Option)
    return max(parameter.opts, key=len) if is_option else parameter.human_readable_name


def _describe_number(kind: "click.ParamType[Any]") -> str:
    """Describe the numbers of a type of click, such as ``a whole number >= 1``."""
    noun = "a number" if isinstance(kind, FloatParamType) else "a whole number"
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is not None and most is not None:
        return f"{noun} from {least:g} to {most:g}"
    return noun if least is None else f"{noun} >= {least:g}"
