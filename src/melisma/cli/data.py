"""`melisma data`: list, download and locate data sets."""

import json

import click

from melisma.cli.options import json_option
from melisma.cli.suggestions import SuggestingGroup
from melisma.learning.data import datasets


@click.group("data", cls=SuggestingGroup)
def command() -> None:
    """List, download and locate data sets."""


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the data sets that a task can name."""
    rows = [
        {"name": name, "downloaded": datasets.is_cached(name), "about": known.description}
        for name, known in datasets.CATALOG.items()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(
            f"{row['name']:<14} {'downloaded' if row['downloaded'] else '-':<11} {row['about']}"
        )


@command.command("get")
@click.argument("names", nargs=-1, required=True)
def get_command(names: tuple[str, ...]) -> None:
    """Download data sets; those that are stored already are kept."""
    for name in names:
        click.echo(datasets.fetch_dataset(name))


@command.command("where")
@click.argument("name")
def where_command(name: str) -> None:
    """Print the folder of a data set, downloaded or not."""
    datasets.catalog_entry(name)
    click.echo(datasets.cache_folder(name))
