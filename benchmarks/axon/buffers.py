"""Memory for a body of known length."""

import mmap

LARGE_BYTES = 1 << 20


def empty(length: int) -> memoryview:
    """A writable buffer; a large one has pages of its own that the kernel fills when written to.

    A bytearray is zeroed first, which touches every page once more. Private huge pages are as
    fast as NumPy's and need no NumPy; pages shared by default, as mmap makes them, are slower.
    """
    if length < LARGE_BYTES:
        return memoryview(bytearray(length))
    pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)
