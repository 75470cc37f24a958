from collections.abc import Iterator

import pytest

from melisma import axon
from tests.axon.served_functions import CANCELLED, RELEASED, RUNS, Point, a_worker


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    RUNS.clear()
    RELEASED.clear()
    CANCELLED.clear()
    yield
    RELEASED.set()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with a_worker().start() as address:
        yield address


@pytest.fixture
def remote(address: str) -> Iterator[axon.Remote]:
    with axon.connect(address, types=[Point]) as remote:
        yield remote
