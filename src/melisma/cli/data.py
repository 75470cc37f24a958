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
@json_option
def get_command(names: tuple[str, ...], as_json: bool) -> None:
    """Download data sets; those that are stored already are kept."""
    folders = {}
    for name in names:
        folders[name] = str(datasets.fetch_dataset(name))
        if not as_json:
            click.echo(folders[name])
    if as_json:
        click.echo(json.dumps(folders))


@command.command("where")
@click.argument("name")
@json_option
def where_command(name: str, as_json: bool) -> None:
    """Print the folder of a data set, downloaded or not."""
    datasets.catalog_entry(name)
    folder = str(datasets.cache_folder(name))
    found = {"name": name, "folder": folder, "downloaded": datasets.is_cached(name)}
    click.echo(json.dumps(found) if as_json else folder)
