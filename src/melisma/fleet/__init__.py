"""Devices: profiles, links and radio channels, operating states, estimates, and the TOML files.

::

    task.py            a task: what to train, by when, by which scheme
    arguments.py       checks of settings that are given in Python
    server_settings.py the optimiser of the orchestrator, from TASK.toml
    tables.py          tables of TOML files, and the ranges of their numbers
    run_time.py        the time of a cycle or of a run, instead of the task's
    run_settings.py    the start and aggregation of a run, instead of the task's
    finish_time.py     times of day at which a run begins or ends
    sizes.py           known sizes of models and data sets
    files/             TASK.toml, FLEET.toml and traces, and the fleets built from them
    fleet.py           learners as arrays, and the costs of a task on each
    states.py          operating states, and costs that depend on them
    observed_states.py probabilities of states, given or estimated
    stressors.py       names of work that competes with training
    variation.py       noise and bandwidth traces: how speeds and links vary during a run
    availability.py    when learners join, leave, sleep and wake
    day_hours.py       hours of the day in which learners are available
    shared_link.py     the orchestrator's own link, which learners share
    estimates.py       measured costs with their spread
    t_distribution.py  quantiles of Student's t distribution
    channel.py         radio rates from distance
    emulation.py       slowing a process to the speed of another device
    rng.py             random generators by seed, purpose, cycle and learner
    array_types.py     names for array types
"""

from melisma.fleet.availability import Changes
from melisma.fleet.channel import Channel
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.profiles import PROFILES, Profile
from melisma.fleet.files.task_file import read_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator, uniform
from melisma.fleet.task import Task

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
