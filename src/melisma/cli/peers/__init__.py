"""`melisma peers`: train without an orchestrator.

The exit code of `run` and `simulate` is 0 if every node finished, and 1 if not.

::

    peers_node.py      `melisma peers node`
    peers_options.py   shared options, and the settings built from them
    peers_output.py    progress lines and the final report
    peers_resume.py    `melisma peers resume`
    peers_run.py       `melisma peers run`
    peers_simulate.py  `melisma peers simulate`
"""

import click

from melisma.cli.peers import peers_node, peers_resume, peers_run, peers_simulate
from melisma.cli.suggestions import SuggestingGroup


@click.group("peers", cls=SuggestingGroup, short_help="Train without an orchestrator.")
def command() -> None:
    """Train without an orchestrator: each node exchanges updates with its neighbours."""


for module in (peers_run, peers_resume, peers_simulate, peers_node):
    command.add_command(module.command)
