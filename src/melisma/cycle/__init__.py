"""The global update cycle as a state machine: events in, commands out; no I/O, no clock.

What is where::

    events.py    what the machine hears
    commands.py  what it says, with the reason
    state.py     what it knows, in arrays by learner
    machine.py   `step`: an event to commands; with asking.py and training.py
    planning.py  how many shards for whom, by a scheme; dealing.py which ones
    trace.py     steps as JSON lines
    story.py     a trace told step by step; report.py what came of it; picture.py drawn
"""
