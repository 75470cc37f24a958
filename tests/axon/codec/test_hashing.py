"""Sets and maps with colliding hashes are refused quickly; all honest ones are received."""

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext
from msgspec.msgpack import encode as pack

from melisma import axon
from melisma.axon.codec import hashing
from melisma.axon.codec.encoding import decode, encode
from melisma.axon.codec.message import Message, message_buffers
from melisma.errors import MalformedError
from tests.axon.served_functions import a_worker, echo
from tests.axon.server.calls.test_calls import connect
from tests.axon.test_faults import request

PRIME = sys.hash_info.modulus
COUNT = 30_000


def large_int(value: int) -> Ext:
    return Ext(4, value.to_bytes(12, "little", signed=True))


def colliding_ints() -> list[Ext]:
    return [large_int(number * PRIME + 5) for number in range(1, COUNT + 1)]


def colliding_lists() -> list[list[int]]:
    """Keys that msgpack turns into tuples, each of numbers with equal hashes."""
    same = [number * PRIME + 5 for number in range(8)]
    return [list(each) for each in itertools.product(same, repeat=5)]


def packed_map(keys: list[Any]) -> bytes:
    return b"\xdf" + len(keys).to_bytes(4, "big") + b"".join(pack(key) + b"\xc0" for key in keys)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "set": lambda: pack(Ext(2, pack(colliding_ints()))),
    "frozenset": lambda: pack(Ext(3, pack(colliding_ints()))),
    "set half of which is harmless": lambda: pack(
        Ext(2, pack([*range(COUNT), *colliding_ints()]))
    ),
    "dict": lambda: pack(Ext(6, pack([colliding_ints(), [None] * COUNT]))),
    "map": lambda: packed_map(colliding_ints()),
    "map of lists": lambda: packed_map(colliding_lists()),
    "map that begins with text": lambda: packed_map(["text", *colliding_lists()]),
    "map inside": lambda: pack(Ext(1, b"\x92\xc0" + packed_map(colliding_ints()))),
    "map after other items": lambda: (
        b"\x96\xcb" + bytes(8) + b"\xc4\x02ab\xd4\x04\x00\x82\xa1a\x01\xa1b\x93\x01\x02\xce"
        + bytes(4) + b"\xd9\x01x" + packed_map(colliding_ints())
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_colliding_items_are_refused_in_little_time(name: str) -> None:
    tree = HOSTILE[name]()
    began = time.thread_time()
    with pytest.raises(MalformedError, match=r"different hashes|keys other than text"):
        decode(Message(tree))
    assert time.thread_time() - began < 1


values = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(max_size=3), st.tuples(st.integers())
)


@given(st.sets(values, max_size=80), st.dictionaries(values, st.integers(), max_size=80))
def test_sets_and_dicts_arrive_as_they_are(items: set[Any], mapping: dict[Any, Any]) -> None:
    received = decode(encode([items, frozenset(items), mapping]))
    assert received == [items, frozenset(items), mapping]


@pytest.mark.parametrize(
    "value",
    [
        set(range(-5000, 5000)),
        {float(number) / 7 for number in range(5000)},
        {(a, b): a for a in range(-50, 50) for b in range(-50, 50)},
        set(itertools.product(range(-3, 3), repeat=5)),
        {str(number): number for number in range(5000)},
        {f"layer {number}": {"a": [0.5] * 300, "b": None} for number in range(300)},
        [{number: str(number)} for number in range(3000)],
    ],
)
def test_large_honest_collections_arrive(value: Any) -> None:
    assert decode(encode(value)) == value


@given(
    st.recursive(
        values | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(values, inner)
    )
)
def test_a_hostile_map_is_found_beside_and_inside_any_value(value: Any) -> None:
    hostile = packed_map([[number] for number in range(256)])
    tree = bytes(encode(value).tree)
    hashing.check_maps(tree)
    for place in (b"\x92" + tree + hostile, b"\x81\xa1k" + b"\x92" + hostile + tree):
        with pytest.raises(MalformedError, match="keys other than text"):
            hashing.check_maps(place)


def test_a_map_below_a_repeated_key_is_found() -> None:
    hidden = packed_map([[number] for number in range(256)])
    entries = b"\xa1k" + hidden + 299 * b"\xa1k\xc0"
    with pytest.raises(MalformedError, match="keys other than text"):
        hashing.check_maps(b"\xde\x01\x2c" + entries)


def test_a_map_inside_a_key_is_found() -> None:
    key = b"\x91" + packed_map([[number] for number in range(256)])
    with pytest.raises(MalformedError, match="keys other than text"):
        hashing.check_maps(b"\x81" + key + b"\xc0")


def test_extensions_are_nested_up_to_the_limit() -> None:
    value: Any = 1
    for _ in range(99):
        value = (value,)
    assert decode(encode(value)) == value
    tree = pack(1)
    for _ in range(300):
        tree = pack(Ext(1, b"\x91" + tree))
    with pytest.raises(MalformedError, match="nested"):
        decode(Message(tree))


async def echo_async(value: Any) -> Any:
    return value


@pytest.mark.parametrize("name", ["coroutine", "echo", "inline_echo"])
def test_a_hostile_set_does_not_hold_up_other_callers(name: str) -> None:
    items = [large_int(number * PRIME + 5) for number in range(1, 26_000)]
    tree = pack([[Ext(2, pack(items))], {}])
    body = b"".join(message_buffers(Message(tree)))
    worker = a_worker()
    worker.rpc(name="coroutine")(echo_async)
    with worker.start() as address, axon.connect(address) as remote, connect(address) as sock:
        remote.echo(0)
        sock.sendall(request(body, name))
        slowest, answered = 0.0, threading.Event()

        def wait_for_answer() -> None:
            assert sock.recv(1000).startswith(b"HTTP/1.1 400")
            answered.set()

        waiter = threading.Thread(target=wait_for_answer)
        waiter.start()
        while not answered.is_set():
            began = time.monotonic()
            remote.echo(0)
            slowest = max(slowest, time.monotonic() - began)
        waiter.join()
    assert slowest < 2


@pytest.mark.parametrize("name", ["inline_echo", "coroutine", "echo"])
def test_large_arguments_arrive_at_every_kind_of_function(name: str) -> None:
    worker = a_worker()
    worker.rpc(name="coroutine")(echo_async)
    value = {"numbers": list(range(50_000))}
    with worker.start() as address, axon.connect(address) as remote:
        assert getattr(remote, name)(value) == echo(value)
