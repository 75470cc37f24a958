"""Two lanes: `make test` tries an eighth of the random cases, `make test-all` tries all of them.

Tests marked `slow` run in the long lane only. Seeds of the short lane are seeds of the long one.
"""

import os

ALL_TESTS = "MELISMA_ALL_TESTS"


def cases(count: int) -> int:
    """Return the number of random cases to try in this lane, out of `count`."""
    return count if os.environ.get(ALL_TESTS) else -(-count // 8)
