"""Fixtures of the tests of learning."""

from collections.abc import Iterator

import pytest

from melisma.learning.trainer_factory import one_thread


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Limit PyTorch to one thread: on a busy machine, threads that wait for each other are slow."""
    with one_thread():
        yield
