"""What devices are: profiles, links and radio channels, operating states, estimates.

The modules::

    task.py             TASK.toml
    sizes.py            sizes of models and data sets by name
    fleet_file.py       FLEET.toml
    toml_file.py        TOML files as typed records, with errors that name file and key
    fleet_builder.py    a fleet from FLEET.toml
    profiles.py         known kinds of devices
    apportionment.py    the number of learners in each group
    spread.py           random differences between the learners of a group
    fleet.py            learners as arrays, and the costs of a task on each
    states.py           operating states of a cycle, and costs by state
    availability.py     when learners join, leave, sleep and wake
    trace_file.py       availability from a CSV file
    estimates.py        measured costs with their spread
    t_distribution.py   quantiles of Student's t distribution
    channel.py          radio rates
    emulation.py        the pace and the link of another device
    rng.py              random generators and numbers by key
"""

from melisma.fleet.availability import Changes
from melisma.fleet.channel import Channel
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.profiles import PROFILES, Profile
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator, uniform
from melisma.fleet.task import Task, read_task

__all__ = [
    "PROFILES",
    "Changes",
    "Channel",
    "Estimate",
    "Estimates",
    "Fleet",
    "Profile",
    "Task",
    "generator",
    "read_fleet",
    "read_task",
    "uniform",
]
