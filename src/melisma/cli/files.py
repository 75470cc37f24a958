"""Files that commands take, and those that they take if none is named."""

from pathlib import Path

import click

FIRST = Path(__file__).parent / "first"
FILE = click.Path(path_type=Path)
