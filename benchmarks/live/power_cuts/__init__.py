"""A disk that loses writes that were not synced, for real processes.

::

    recorder.c        a library that logs each change of the files below a folder
    recorder.py       compiles the library, and reads its logs
    crash_states.py   the states of a folder that a power cut may leave
    cut_run.py        a live run whose machine loses power again and again, and is resumed
"""
