"""Buffers for bodies of known length."""

import mmap

LARGE_BYTES = 1 << 20


def empty(length: int) -> memoryview:
    """Return a writable buffer; a large one has its own pages, allocated on the first write.

    A bytearray is zeroed first, which touches every page once more. Private huge pages are as
    fast as NumPy's without NumPy; shared pages, the default of mmap, are slower.
    """
    if length < LARGE_BYTES:
        return memoryview(bytearray(length))
    pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)
