"""Values to bytes and back.

::

    encoding.py       values to messages
    message.py        the layout of a message: a tree, then raw frames
    hashing.py        sets and maps whose items may collide
    arrays.py         NumPy arrays
    tensors.py        torch tensors
    records.py        dataclasses and msgspec structs
    outcome.py        the result or error of a call
    stream_parts.py   the layout of a streamed result
"""
