"""The light process on a device: it joins an orchestrator and supervises the learner process.

It imports neither NumPy nor PyTorch, so that a device that waits needs little memory.

::

    enrolling.py       from a join string, a code or a known orchestrator to an enrolled device
    supervisor.py      runs the learner process while the owner's limits allow it
    learner_child.py   the learner process: settings, reports, and its end
    use_limits.py      hours, battery and share of cores that the owner allows
    throttling.py      signs that the device runs slower than it could
    device_checks.py   checks of a device and of the way to its orchestrator
    clock_check.py     whether the clock of this device is right
    speed_probe.py     a process that measures PyTorch on this device
    sysfs.py           values that the Linux kernel shows in files
"""
