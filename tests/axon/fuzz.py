"""A fuzzer: a mutated message must give a value or an `AxonError`, quickly and in little memory.

``python -m tests.axon.fuzz --seconds 60 [--seed N]`` prints the seed; runs with the same seed are
equal. The current message is stored in a file, in case the interpreter crashes.
"""

import argparse
import faulthandler
import random
import resource
import secrets
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec.msgpack import Ext

from melisma.axon.codec.encoding import decode, decode_arguments, encode, encode_arguments
from melisma.axon.codec.message import Message, message_buffers, parse_message
from melisma.axon.codec.outcome import exception_message, remote_exception
from melisma.errors import AxonError, TooLargeError
from tests.axon.values import TYPES, everything

MEMORY_BYTES: Final = 1 << 30
HANG_S: Final = 10.0

SCALARS: Final[list[Any]] = [
    None, True, False, 0, 1, -1, 7, 255, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63),
    (1 << 64) - 1, 0.0, -0.0, float("nan"), float("inf"), "", "C", "F", "X", "ä", b"", b"\0",
    bytes(8), [], {}, [0],
    "<f8", ">i4", "|O", "|V0", "<U0", "<U1", "|S3", "<M8[ns]", "|b1", [["a", "<f8"]], [["", "|V3"]],
    "strided", "sparse_coo", "sparse_csr", "sparse_bsc", "float32", "bfloat16", "bool", "complex32",
    "bits8", "qint8", "Place", "Job", "Sample", "Key", "north", "state", "builtins", "ValueError",
]  # fmt: skip


@dataclass
class Extension:
    """A parsed extension; raw if its payload is not a tree."""

    code: int
    content: Any
    raw: bool


def corpus() -> list[Message]:
    """Messages of every kind."""
    values = everything()
    return [
        *(encode(value) for value in values),
        *(encode(item) for value in values for item in value),
        encode_arguments((1, values[4]), {"named": values[2]}),
        exception_message(ValueError("why", 7)),
    ]


def joined(message: Message) -> bytes:
    """Return the encoded bytes of a message."""
    return b"".join(message_buffers(message))


def read(data: bytes) -> list[str]:
    """Read a message in all ways and return the results."""
    try:
        message = parse_message(bytearray(data))
    except AxonError as error:
        return [f"parse: {error.code}"]
    readers: list[Callable[[Message, Any], Any]] = [decode, decode_arguments, remote_exception]
    return [_ending(reader, message) for reader in readers]


def _ending(reader: Callable[[Message, Any], Any], message: Message) -> str:
    try:
        reader(message, TYPES)
    except TooLargeError as error:
        raise AssertionError("a small message asked for too much memory") from error
    except AxonError as error:
        return f"{reader.__name__}: {error.code}"
    return f"{reader.__name__}: a value"


def mutant(rng: random.Random, messages: list[Message]) -> bytes:
    """Return a mutated message, which may by chance be valid."""
    chosen = rng.choice(messages)
    how = rng.randrange(4)
    if how == 0:
        return scrambled(rng, joined(chosen))
    if how == 1:
        return joined(Message(scrambled(rng, bytes(chosen.tree)), chosen.frames))
    tree, frames = rebuilt(rng, chosen, messages), list(chosen.frames)
    if how == 2 and frames:
        frames[rng.randrange(len(frames))] = memoryview(scrambled(rng, bytes(rng.choice(frames))))
    if rng.random() < 0.2:
        rng.shuffle(frames)
    return joined(Message(tree, frames))


def scrambled(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with some flipped, inserted, removed or doubled."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place = rng.randrange(len(changed) + 1)
        span = rng.choice((1, 1, 2, 4, 8, 64))
        how = rng.randrange(6)
        if how == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            changed[place : place + span] = rng.randbytes(min(span, len(changed) - place))
        elif how == 2:
            changed[place:place] = rng.randbytes(span)
        elif how == 3:
            del changed[place : place + span]
        elif how == 4:
            changed[place:place] = changed[place : place + span]
        else:
            changed[place : place + span] = rng.choice((b"\0", b"\xff", b"\x7f")) * span
    return bytes(changed)


def rebuilt(rng: random.Random, message: Message, messages: list[Message]) -> bytes:
    """Return a valid tree with changed branches."""
    root = taken_apart(msgspec.msgpack.decode(message.tree))
    for _ in range(rng.choice((1, 1, 2, 4))):
        root = changed_branch(rng, root, messages)
    return msgspec.msgpack.encode(put_together(root))


def taken_apart(value: Any) -> Any:
    if isinstance(value, Ext):
        data = bytes(value.data)
        try:
            return Extension(value.code, taken_apart(msgspec.msgpack.decode(data)), raw=False)
        except (msgspec.DecodeError, RecursionError):
            return Extension(value.code, data, raw=True)
    if isinstance(value, list):
        return [taken_apart(item) for item in value]
    if isinstance(value, dict):
        return {key: taken_apart(item) for key, item in value.items()}
    return value


def put_together(value: Any) -> Any:
    if isinstance(value, Extension):
        if value.raw:
            return Ext(value.code, value.content)
        return Ext(value.code, msgspec.msgpack.encode(put_together(value.content)))
    if isinstance(value, list):
        return [put_together(item) for item in value]
    if isinstance(value, dict):
        return {key: put_together(item) for key, item in value.items()}
    return value


def changed_branch(rng: random.Random, value: Any, messages: list[Message]) -> Any:
    """Return the value with one change in it."""
    if rng.random() < 0.8:
        if isinstance(value, Extension):
            return changed_extension(rng, value, messages)
        if isinstance(value, list) and value:
            return changed_list(rng, value, messages)
        if isinstance(value, dict) and value:
            key = rng.choice(list(value))
            kept = {name: item for name, item in value.items() if name != key}
            return kept | ({key: changed_branch(rng, value[key], messages)} if kept else {})
    if rng.random() < 0.3:
        return taken_apart(msgspec.msgpack.decode(rng.choice(messages).tree))
    if rng.random() < 0.2:
        return Extension(rng.randrange(14), [value], raw=False)
    return rng.choice(SCALARS)


def changed_extension(rng: random.Random, value: Extension, messages: list[Message]) -> Extension:
    if rng.random() < 0.1:
        return Extension(rng.randrange(-1, 14), value.content, value.raw)
    if value.raw:
        return Extension(value.code, scrambled(rng, value.content), raw=True)
    return Extension(value.code, changed_branch(rng, value.content, messages), raw=False)


def changed_list(rng: random.Random, value: list[Any], messages: list[Message]) -> list[Any]:
    place = rng.randrange(len(value))
    before, item, after = value[:place], value[place], value[place + 1 :]
    times = rng.choices((0, 1, 2, 70), (1, 8, 1, 1))[0]
    if times == 1:
        return [*before, changed_branch(rng, item, messages), *after]
    return before + [item] * times + after


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=secrets.randbits(32))
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    faulthandler.enable()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _hang)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.NamedTemporaryFile(prefix="axon-fuzz-", delete=False) as file:
        print(f"seed {chosen.seed}; the message being read: {file.name}", flush=True)
        rng, messages, endings = random.Random(chosen.seed), corpus(), Counter[str]()
        started_at = shown_at = time.monotonic()
        count = 0
        while (now := time.monotonic()) - started_at < chosen.seconds:
            data = mutant(rng, messages)
            file.seek(0)
            file.write(data)
            file.truncate()
            file.flush()
            signal.setitimer(signal.ITIMER_REAL, HANG_S)
            try:
                endings.update(read(data))
            except BaseException:
                print(f"seed {chosen.seed}, message {count}: {file.name}", flush=True)
                raise
            signal.setitimer(signal.ITIMER_REAL, 0)
            count += 1
            if now - shown_at > 10:
                shown_at = now
                print(f"{count} messages", flush=True)
    Path(file.name).unlink()
    print(f"{count} messages in {chosen.seconds:g} s, nothing but values and Axon errors:")
    for ending, times in sorted(endings.items()):
        print(f"  {times:9d}  {ending}")


def _hang(*_: object) -> None:
    raise AssertionError(f"a message took longer than {HANG_S} s")


if __name__ == "__main__":
    main()
