"""Pairing by a short code: a device finds an orchestrator, and both prove that they know the code.

The code is the password of SPAKE2, a password-authenticated key exchange: a listener learns nothing
that a code could be tested with, and an impostor can test one code for each exchange. The exchange
includes the fingerprint of the orchestrator's certificate, so that it fails if the connection does
not end at the orchestrator. A code is valid for one device and for few failed attempts, pairing
pauses after these, and after `MAX_FAILURES` it stops until the owner renews the code.

::

    device                                   orchestrator
    begin_pairing(message)            ->     its message
    complete_pairing(id, proof)       ->     its own proof, and the join token
"""

import asyncio
import hmac
import re
import secrets
import time
from collections.abc import Callable
from math import ceil
from typing import Any, Final, Protocol

from melisma.errors import (
    BusyError,
    MalformedError,
    RefusedError,
    SettingError,
    UnauthorizedError,
)

ORCHESTRATOR_KIND: Final = "melisma-orchestrator"
"""What orchestrators announce in the local network, where other workers may be, too."""
MAX_ATTEMPTS: Final = 3
"""Failed attempts after which a code is replaced and pairing pauses."""
FIRST_PAUSE_S: Final = 10.0
"""The first pause; each further one is twice as long, until a device has paired."""
MAX_FAILURES: Final = 30
"""Failed attempts, without a device that paired, after which pairing stops."""
STOPPED: Final = (
    f"pairing by a code has stopped after {MAX_FAILURES} failed attempts, because a machine in the "
    "network may be guessing codes: use the join string; on the machine of the orchestrator, "
    "melisma code opens pairing again"
)
MAX_MESSAGE_BYTES: Final = 64
_WORD_LIST: Final = """
acorn actor agate album alder amber angle ankle apple april apron arrow aspen atlas attic
autumn badge bagel baker bamboo banjo barley basil basin beach beaver bench berry birch bison
blanket bonus border bottle branch bridge bronze brook bucket butter cabin cactus camel canal
candle canoe canyon carbon carpet castle cedar cello chalk cherry circle citrus clay cliff
cloud clover cobalt coffee comet copper coral cotton cougar cradle crater cricket crystal
cypress daisy delta desert diesel dinner dolphin domino dragon drum eagle easel ember engine
falcon feather fennel fern ferry fiddle finch flame flint flute forest fossil fountain garden
garlic gentle ginger glacier globe goblet granite grape gravel guitar hammer harbor harvest
hazel helmet heron hockey honey igloo indigo island ivory jacket jaguar jasmine jersey jigsaw
juniper kayak kernel kettle kitten koala ladder lagoon lantern laurel lemon lentil lilac linen
lizard lobster locust lotus magnet mango maple marble market meadow melon meteor mirror mitten
monkey mosaic mountain muffin mustard nectar needle nickel noodle nutmeg oasis ocean olive
onion opal orange orbit orchid otter oyster paddle panda paper parrot pastel peach peanut
pebble pelican pencil pepper piano pigeon pillow pilot planet plum pocket polar pollen pony
poppy potato prairie prism pumpkin puzzle quartz quilt rabbit radar radish rain raven ribbon
river robin rocket saddle saffron salmon sandal satin scarf school shadow shovel silver sketch
slate snow socket sparrow spider spiral spruce squid statue stone straw sugar summit sunset
table tango teapot temple thistle thunder tiger timber tomato tractor trumpet tulip tunnel
turtle valley vanilla velvet violet walnut whale willow winter yellow zebra
"""
WORDS: Final = tuple(_WORD_LIST.split())


class PairingMethods(Protocol):
    """The methods that a device calls to pair."""

    def begin_pairing(self, message: bytes) -> Any:
        """Return the id of the pairing and the orchestrator's message."""

    def complete_pairing(self, pairing: str, proof: bytes) -> Any:
        """Return the orchestrator's proof and the join token."""


def new_code() -> str:
    """Return a random code, such as ``42-maple-otter``."""
    words = "-".join(secrets.choice(WORDS) for _ in range(2))
    return f"{10 + secrets.randbelow(90)}-{words}"


def normalize_code(text: str) -> str:
    """Return a code as it was typed, in lower case and with single hyphens."""
    code = re.sub(r"[\s_-]+", "-", text.strip().lower())
    if not re.fullmatch(r"\d\d-[a-z]+-[a-z]+", code):
        raise SettingError(f"{text.strip()!r} is not a pairing code: type it as in 42-maple-otter")
    unknown = [word for word in code.split("-")[1:] if word not in WORDS]
    if unknown:
        raise SettingError(f"{unknown[0]!r} is no word of a pairing code: check the spelling")
    return code


class PairingService:
    """Gives the join token to devices that know the current code; `on_code` receives each code.

    A code is replaced after one device, and after `MAX_ATTEMPTS` devices that did not know it. Then
    pairing pauses; after `MAX_FAILURES` it stops, and `on_note` receives that once.
    """

    def __init__(
        self,
        fingerprint: str,
        token: str,
        on_code: Callable[[str], None],
        on_note: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fingerprint, self._token, self._now = fingerprint, token, now
        self._on_code, self._on_note = on_code, on_note
        self._allow_attempts()
        self._renew()

    def _allow_attempts(self) -> None:
        self._failures, self._paused_until, self._stopped = 0, self._now(), False

    def _renew(self) -> None:
        self._code, self._attempts = new_code(), 0
        self._keys: dict[str, bytes] = {}
        self._on_code(self._code)

    async def begin_pairing(self, message: bytes) -> tuple[str, bytes]:
        """Begin an exchange; it counts as a failed attempt until it is completed.

        Raises `BusyError` during a pause, and `RefusedError` when pairing has stopped.
        """
        _check_bytes(message)
        self._count_attempt()
        keys, pairing = self._keys, secrets.token_hex(8)
        # SPAKE2 is pure Python and takes tens of milliseconds, on small computers far more.
        exchanged = await asyncio.to_thread(_exchange, self._code, self._fingerprint, message)
        # If the code was replaced meanwhile, these keys are no longer used.
        reply, keys[pairing] = exchanged
        return pairing, reply

    def _count_attempt(self) -> None:
        pause_s = self._paused_until - self._now()
        if self._attempts >= MAX_ATTEMPTS and pause_s <= 0:
            self._replace_failed_code()
        if self._stopped:
            raise RefusedError(STOPPED)
        if pause_s > 0:
            raise BusyError(
                f"pairing pauses after {MAX_ATTEMPTS} failed attempts: try again in "
                f"{ceil(pause_s)} s, or use the join string"
            )
        self._attempts += 1
        self._failures += 1
        if self._attempts == MAX_ATTEMPTS:
            failed_codes = self._failures // MAX_ATTEMPTS
            self._paused_until = self._now() + FIRST_PAUSE_S * 2 ** (failed_codes - 1)

    def _replace_failed_code(self) -> None:
        if self._failures < MAX_FAILURES:
            self._renew()
        elif not self._stopped:
            self._stopped = True
            self._keys = {}
            self._on_note(STOPPED)

    async def complete_pairing(self, pairing: str, proof: bytes) -> tuple[bytes, str]:
        """Return this side's proof and the join token to a device that has proved the code."""
        _check_bytes(proof)
        if not isinstance(pairing, str):
            raise MalformedError("the id of a pairing is no text; use the same version of melisma")
        key = self._keys.pop(pairing, None)
        if key is None:
            raise RefusedError("this pairing has ended: begin again with the current code")
        if not hmac.compare_digest(proof, _proof(key, "device")):
            if self._attempts >= MAX_ATTEMPTS:
                # At once, so that the next device is told the code that will be valid.
                self._replace_failed_code()
            raise UnauthorizedError("the code is wrong: type the one that the orchestrator shows")
        self._allow_attempts()
        self._renew()
        return _proof(key, "orchestrator"), self._token

    async def renew_code(self) -> str:
        """Return a new code, for the owner alone; pairing that pauses or has stopped goes on."""
        self._allow_attempts()
        self._renew()
        return self._code


def pair(orchestrator: PairingMethods, fingerprint: str, code: str) -> str:
    """Prove the code to the orchestrator with this certificate; return the join token.

    Raises `UnauthorizedError` if the code is wrong, or if the orchestrator does not know it either.
    """
    spake2 = _import_spake2()
    exchange = spake2.SPAKE2_A(normalize_code(code).encode(), **_identities(fingerprint))
    pairing, message = orchestrator.begin_pairing(exchange.start())
    key = _finish(exchange, message)
    proof, token = orchestrator.complete_pairing(pairing, _proof(key, "device"))
    _check_bytes(proof)
    if not hmac.compare_digest(proof, _proof(key, "orchestrator")):
        raise UnauthorizedError(
            "the orchestrator did not prove that it knows the code: another machine may be posing "
            "as it; use the join string instead"
        )
    return str(token)


def _check_bytes(received: object) -> None:
    """Raise `RefusedError` if a received value is not a short byte string."""
    if not isinstance(received, bytes) or len(received) > MAX_MESSAGE_BYTES:
        raise RefusedError("a message of the pairing is invalid; use the same version of melisma")


def _identities(fingerprint: str) -> dict[str, bytes]:
    return {"idA": b"melisma device", "idB": f"melisma orchestrator {fingerprint}".encode()}


def _exchange(code: str, fingerprint: str, message: bytes) -> tuple[bytes, bytes]:
    """Return the orchestrator's message of an exchange, and the key."""
    exchange = _import_spake2().SPAKE2_B(code.encode(), **_identities(fingerprint))
    reply: bytes = exchange.start()
    return reply, _finish(exchange, message)


def _finish(exchange: Any, message: Any) -> bytes:
    """Return the key of an exchange; `RefusedError` if the other side's message is invalid."""
    try:
        key: bytes = exchange.finish(message)
    except Exception as error:
        # The package raises errors of several kinds for messages that it cannot use.
        raise RefusedError(f"the other side's message of a pairing is invalid: {error}") from error
    return key


def _proof(key: bytes, side: str) -> bytes:
    return hmac.digest(key, side.encode(), "sha256")


def _import_spake2() -> Any:
    try:
        import spake2
    except ImportError as error:
        raise SettingError(
            'pairing by a code needs another package: pip install "melisma[discovery]"'
        ) from error
    return spake2
