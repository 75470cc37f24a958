"""Melisma trains one model on the devices you have, by the deadline you set.

What is where::

    errors.py    every exception
    axon/        remote calls over HTTP; can be used alone
    fleet/       what devices are: profiles, radio channels, states, estimates, the two TOML files
    allocation/  who trains how much: problem -> plan, one scheme a file
    cli/         the `melisma` command, one file a subcommand; the only place that prints

Importing this package imports nothing else: each part is loaded when it is first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["__version__", "allocation", "axon", "errors", "fleet"]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from melisma import allocation, axon, errors, fleet
else:

    def __getattr__(name):
        if name in __all__:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
