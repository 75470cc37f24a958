"""Choices and command groups that suggest the nearest known word for an unknown one."""

from typing import Any

import click

from melisma.errors import suggest


class SuggestingChoice(click.Choice[str]):
    """A choice that suggests a value for an unknown one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"unknown value {value!r}; {suggest(str(value), self.choices)}"


class SuggestingGroup(click.Group):
    """A group that suggests a command for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"unknown command {name!r}; {suggest(name, known)}")
        return super().resolve_command(ctx, args)
