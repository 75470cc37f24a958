"""The caller: stubs, remote workers, connections.

::

    stubs.py           one function of one worker, in the six forms of the thesis
    remote.py          a worker whose attributes are its functions
    caller.py          a call from its arguments to its result
    requests.py        one HTTP request
    pool.py            connections, opened and kept
    result_stream.py   the items of a remote generator
    callbacks.py       results that the worker posts back
"""

from melisma.axon.client.stubs import AsyncDuplexStub as AsyncDuplexStub
from melisma.axon.client.stubs import AsyncSimplexStub as AsyncSimplexStub
from melisma.axon.client.stubs import CoroDuplexStub as CoroDuplexStub
from melisma.axon.client.stubs import CoroSimplexStub as CoroSimplexStub
from melisma.axon.client.stubs import Handle as Handle
from melisma.axon.client.stubs import SyncDuplexStub as SyncDuplexStub
from melisma.axon.client.stubs import SyncSimplexStub as SyncSimplexStub
