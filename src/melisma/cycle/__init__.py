"""The global update cycle as a state machine: events in, commands out; no I/O, no clock.

`machine` decides, on the `state` that it is given; `events` and `commands` are what it hears and
says; `dealing` chooses which shards go where once it is known how many.
"""
