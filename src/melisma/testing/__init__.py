"""Helpers to test schemes and trainers without processes, sockets or waiting.

::

    scripted_machine.py   a cycle machine fed with events written by hand
    virtual_run.py        a whole run of fake devices on a virtual clock
    trainer_check.py      a trainer without a framework, and a check of your own
"""

from melisma.testing.scripted_machine import ScriptedMachine
from melisma.testing.trainer_check import FakeTrainer, check_trainer
from melisma.testing.virtual_run import FakeDevice, VirtualRun, commands_in, events_in, make_task

__all__ = [
    "FakeDevice",
    "FakeTrainer",
    "ScriptedMachine",
    "VirtualRun",
    "check_trainer",
    "commands_in",
    "events_in",
    "make_task",
]
