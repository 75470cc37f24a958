"""What devices are: profiles, links and radio channels, operating states, estimates.

What is where::

    task.py        TASK.toml; sizes.py what models and data weigh
    fleet_file.py  FLEET.toml; muster.py makes the learners of it, profiles.py knows kinds of them
    fleet.py       learners as arrays, and what a task costs each
    states.py      costs by operating states
    estimates.py   a cost as measured, with its spread; student.py its quantiles
    channel.py     radio rates
    chance.py      random generators by key
"""

from melisma.fleet.chance import generator
from melisma.fleet.channel import Channel
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.fleet import Fleet
from melisma.fleet.muster import read_fleet
from melisma.fleet.profiles import PROFILES, Profile
from melisma.fleet.task import Task, read_task

__all__ = [
    "PROFILES",
    "Channel",
    "Estimate",
    "Estimates",
    "Fleet",
    "Profile",
    "Task",
    "generator",
    "read_fleet",
    "read_task",
]
