"""Random and mutated requests to every endpoint of an orchestrator.

The same seed creates the same requests, but for the ids of sessions.
"""

import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from melisma.live import protocol
from melisma.live.orchestrator.learner_service import METHODS
from tests.axon import http_fuzz
from tests.live.attacks.attacked_fleet import GOOD_UPDATE, PLAUSIBLE_COSTS

OTHER_METHODS: Final = ("enroll", "status", "begin_pairing", "complete_pairing", "none", "_caller")
PATHS: Final = (
    "/",
    "/metrics",
    "/files/model-0.safetensors",
    "/files/../trace.jsonl",
    "/files/%2e%2e/trace.jsonl",
    "/files//etc/passwd",
    "/files/" + "a" * 5000,
    "/calls/x",
    "/calls/x?wait_s=nan",
    "/rpc/register",
    "/\x00",
)
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1,
    99,
    2**31,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    0.0,
    1e-300,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x" * 3000,
    "\x1b[2J\x07\u202e",
    "\ud800",
    b"",
    b"\0" * 65,
    [],
    {},
    [[[[[]]]]],
    {"a": {"b": {}}},
    list(range(300)),
    np.zeros(0),
    np.array(7),
    np.full((3, 3), np.nan),
    np.array(["text"]),
    np.zeros(4, "M8[s]"),
    np.zeros(2, [("a", "<f4"), ("b", "|S3")]),
)


def valid_arguments(session: str, cycle: int = 1) -> dict[str, list[Any]]:
    """Return arguments of each method that a learner could send."""
    header = protocol.UpdateHeader(cycle, 1, 300, 300, 0, 0.5, (0.0,) * 6, costs=PLAUSIBLE_COSTS)
    sums = protocol.EvaluationSums(cycle, 9, 1.0, 9, 9)
    return {
        "register": [protocol.to_builtins(protocol.RegisterRequest(session))],
        "poll": [session, [cycle, 50], "hot"],
        "report_costs": [session, PLAUSIBLE_COSTS],
        "report_bound": [session, cycle, 2.0, 3],
        "request_shards": [session, cycle, 2],
        "report_evaluation": [session, protocol.to_builtins(sums)],
        "report_failure": [session, "tired"],
        "join": [session, protocol.to_builtins(protocol.JoinRequest("costs"))],
        "release_shards": [session, cycle, [0, 1]],
        "upload_update": [session, protocol.to_builtins(header), dict(GOOD_UPDATE)],
        "probe_uplink": [session, {"bytes": np.zeros(100, np.uint8)}],
        "enroll": ["name"],
        "status": [],
        "begin_pairing": [b"x" * 33],
        "complete_pairing": ["0" * 16, b"x" * 32],
    }


def random_call(rng: random.Random, session: str) -> tuple[str, list[Any]]:
    """Return a method and arguments for it, most of them mutated."""
    method = rng.choice((*METHODS, *METHODS, *OTHER_METHODS))
    arguments = valid_arguments(session, rng.randrange(4)).get(method, [session])
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
        arguments = mutated_list(rng, arguments)
    return method, arguments


def mutated_list(rng: random.Random, items: list[Any]) -> list[Any]:
    """Return a list with one change in it."""
    kind = rng.random()
    if not items or kind < 0.05:
        return [*items, rng.choice(VALUES)]
    place = rng.randrange(len(items))
    if kind < 0.1:
        return items[:place] + items[place + 1 :]
    return [*items[:place], mutated(rng, items[place]), *items[place + 1 :]]


def mutated(rng: random.Random, value: Any) -> Any:
    """Return a value with one change in it."""
    if rng.random() < 0.75:
        if isinstance(value, dict) and value:
            key = rng.choice(list(value))
            if rng.random() < 0.1:
                return {name: item for name, item in value.items() if name != key}
            return value | {key: mutated(rng, value[key])}
        if isinstance(value, list | tuple) and value:
            return mutated_list(rng, list(value))
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
            return rng.choice(ARRAY_CHANGES)(value)
    return rng.choice(VALUES)


ARRAY_CHANGES: Final[tuple[Callable[[Any], Any], ...]] = (
    lambda array: array.astype(np.float64),
    lambda array: array[:0],
    lambda array: array.reshape(-1, 1),
    lambda array: array * np.float32(np.nan),
    lambda array: array * np.float32(1e38),
    lambda array: np.asfortranarray(np.resize(array, (2, 2))),
    lambda array: array.astype(">f4"),
    lambda array: array.tolist(),
)


def random_request(rng: random.Random) -> bytes:
    """Return the bytes of one connection, by the fuzzer of HTTP or to one of the paths."""
    if rng.random() < 0.3:
        method = rng.choice(("GET", "POST", "DELETE", "PUT", "BREW"))
        path = rng.choice(PATHS)
        return f"{method} {path} HTTP/1.1\r\ncontent-length: 0\r\n\r\n".encode()
    return rng.choice(http_fuzz.ATTACKS)(rng)
