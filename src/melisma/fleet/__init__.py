"""What devices are: profiles, links and radio channels, operating states, estimates.

What is where::

    task.py        TASK.toml; sizes.py what models and data weigh
    fleet_file.py  FLEET.toml; muster.py makes the learners of it, profiles.py knows kinds of them,
                   headcount.py how many of each, spread.py how they differ
    fleet.py       learners as arrays, and what a task costs each
    states.py      operating states of a cycle, and costs by them
    availability.py  who is there when; trace_file.py reads it from a file
    estimates.py   a cost as measured, with its spread; student.py its quantiles
    channel.py     radio rates
    chance.py      random generators and numbers by key
"""

from melisma.fleet.availability import Changes
from melisma.fleet.channel import Channel
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.fleet import Fleet
from melisma.fleet.fleet_builder import read_fleet
from melisma.fleet.profiles import PROFILES, Profile
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
