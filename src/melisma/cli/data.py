"""`melisma data`: the data sets that tasks name, and where they lie on this machine."""

import json

import click

from melisma.cli.suggestions import SuggestingGroup
from melisma.learning.data import datasets

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("data", cls=SuggestingGroup)
def command() -> None:
    """Data sets: list them, bring one here, say where it lies."""


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the data sets that a task can name."""
    rows = [
        {"name": name, "here": datasets.is_cached(name), "about": known.description}
        for name, known in datasets.CATALOG.items()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row['name']:<14} {'here' if row['here'] else '-':<5} {row['about']}")


@command.command("get")
@click.argument("names", nargs=-1, required=True)
def get_command(names: tuple[str, ...]) -> None:
    """Bring data sets to this machine; what is here already is left alone."""
    for name in names:
        click.echo(datasets.fetch_dataset(name))


@command.command("where")
@click.argument("name")
def where_command(name: str) -> None:
    """Say where a data set lies, or would."""
    datasets.catalog_entry(name)
    click.echo(datasets.cache_folder(name))
