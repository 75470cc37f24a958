"""The layout of a streamed result: one part per item of the generator, then a final part.

A part starts with one byte for its kind and eight for the length of its body (unsigned,
little-endian):

====  ==================================================================
kind  body
====  ==================================================================
0     a message with the next item
1     a message with ``None``: the generator is exhausted
2     a message with the exception that the generator raised
3     an error of the call, as JSON
====  ==================================================================

Kinds 1, 2 and 3 end the stream. A stream that stops without one of them was cut off.
"""

import struct
from typing import Final

STREAM_TYPE: Final = "application/x-axon-stream"
PART: Final = struct.Struct("<BQ")
ITEM, END, RAISED, FAILED = range(4)
