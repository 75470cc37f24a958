"""The caller: stubs, remote workers and their results.

::

    stubs.py           one function of one worker, in the six forms of the thesis
    remote.py          a worker whose attributes are its functions
    caller.py          a call from its arguments to its result
    result_stream.py   the items of a remote generator
    callbacks.py       listening for results that the worker posts
    file_download.py   files of a worker, from any byte on
"""

from melisma.axon.client.stubs import AsyncDuplexStub as AsyncDuplexStub
from melisma.axon.client.stubs import AsyncSimplexStub as AsyncSimplexStub
from melisma.axon.client.stubs import CoroDuplexStub as CoroDuplexStub
from melisma.axon.client.stubs import CoroSimplexStub as CoroSimplexStub
from melisma.axon.client.stubs import Handle as Handle
from melisma.axon.client.stubs import SyncDuplexStub as SyncDuplexStub
from melisma.axon.client.stubs import SyncSimplexStub as SyncSimplexStub
