"""Pairing by a code, over real TLS connections."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from melisma import axon
from melisma.errors import (
    BusyError,
    MalformedError,
    RefusedError,
    SettingError,
    UnauthorizedError,
)
from melisma.live import pairing
from melisma.live.pairing import (
    FIRST_PAUSE_S,
    MAX_ATTEMPTS,
    MAX_FAILURES,
    STOPPED,
    WORDS,
    PairingService,
    new_code,
    normalize_code,
    pair,
)

METHODS = ["begin_pairing", "complete_pairing"]


class PairingServer:
    """A pairing service at an address."""

    def __init__(self, address: str) -> None:
        self.remote, self.fingerprint = axon.connect(address), address.rpartition("#")[2]
        self.codes: list[str] = []
        self.now_s = 0.0
        self.service = PairingService(
            self.fingerprint, "the join token", self.codes.append, now=lambda: self.now_s
        )

    async def begin_pairing(self, message: bytes) -> tuple[str, bytes]:
        return await self.service.begin_pairing(message)

    async def complete_pairing(self, pairing: str, proof: bytes) -> tuple[bytes, str]:
        return await self.service.complete_pairing(pairing, proof)

    def pair(self, code: str) -> str:
        return pair(self.remote, self.fingerprint, code)


class Late:
    """Functions that are exposed before the fingerprint of their address is known."""

    server: PairingServer

    async def begin_pairing(self, message: bytes) -> tuple[str, bytes]:
        return await self.server.begin_pairing(message)

    async def complete_pairing(self, pairing: str, proof: bytes) -> tuple[bytes, str]:
        return await self.server.complete_pairing(pairing, proof)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PairingServer]:
    late = Late()
    worker = axon.Worker(port=0, tls=tmp_path / "identity.pem")
    worker.expose(late, METHODS, name="")
    with worker.start() as address:
        late.server = PairingServer(address)
        yield late.server


def test_a_device_that_knows_the_code_gets_the_token(server: PairingServer) -> None:
    assert server.pair(server.codes[-1]) == "the join token"


def test_a_code_pairs_one_device(server: PairingServer) -> None:
    code = server.codes[-1]
    server.pair(code)
    assert len(server.codes) == 2
    with pytest.raises(UnauthorizedError, match="the code is wrong"):
        server.pair(code)


def test_the_code_may_be_typed_with_spaces_and_capitals(server: PairingServer) -> None:
    assert server.pair(f"  {server.codes[-1].replace('-', ' ').upper()} ") == "the join token"


def test_a_wrong_code_is_refused_and_the_code_replaced_after_few_attempts(
    server: PairingServer,
) -> None:
    code = server.codes[-1]
    wrong = f"{(int(code[:2]) - 10 + 1) % 90 + 10}{code[2:]}"
    for _ in range(MAX_ATTEMPTS):
        assert server.codes == [code]
        with pytest.raises(UnauthorizedError):
            server.pair(wrong)
    assert len(server.codes) == 2
    with pytest.raises(BusyError, match="try again in 10 s, or use the join string"):
        server.pair(server.codes[-1])
    server.now_s += FIRST_PAUSE_S
    with pytest.raises(UnauthorizedError):
        server.pair(code)
    assert len(server.codes) == 2
    assert server.pair(server.codes[-1]) == "the join token"


class GuessedService:
    """A pairing service, and a machine that guesses codes."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.notes: list[str] = []
        self.now_s, self.message = 50.0, _valid_message()
        self.service = PairingService(
            "sha256:0", "token", self.codes.append, self.notes.append, lambda: self.now_s
        )

    async def guess(self) -> None:
        exchange_id, _ = await self.service.begin_pairing(self.message)
        with pytest.raises(UnauthorizedError):
            await self.service.complete_pairing(exchange_id, b"\0" * 32)

    async def pause_s(self) -> float:
        """Return the length of the pause, from the refusal of one more attempt."""
        with pytest.raises(BusyError) as caught:
            await self.service.begin_pairing(self.message)
        return float(str(caught.value).partition("try again in ")[2].split()[0])


@pytest.fixture
def quick_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_exchange", lambda *_: (b"reply", b"key"))


@pytest.mark.usefixtures("quick_exchange")
async def test_pauses_double_and_pairing_stops_after_many_failed_attempts() -> None:
    guessed, pauses_s = GuessedService(), []
    for _ in range(MAX_FAILURES // MAX_ATTEMPTS - 1):
        for _ in range(MAX_ATTEMPTS):
            await guessed.guess()
        pauses_s.append(await guessed.pause_s())
        guessed.now_s += pauses_s[-1]
    assert pauses_s == [FIRST_PAUSE_S * 2**number for number in range(len(pauses_s))]
    assert not guessed.notes
    for _ in range(MAX_ATTEMPTS):
        await guessed.guess()
    for _ in range(3):
        with pytest.raises(RefusedError, match="use the join string"):
            await guessed.service.begin_pairing(guessed.message)
        guessed.now_s += 1e6
    assert guessed.notes == [STOPPED]
    assert len(guessed.codes) == MAX_FAILURES // MAX_ATTEMPTS
    assert await guessed.service.renew_code() == guessed.codes[-1]
    assert len(set(guessed.codes)) == MAX_FAILURES // MAX_ATTEMPTS + 1
    for _ in range(MAX_ATTEMPTS):
        await guessed.guess()
    assert await guessed.pause_s() == FIRST_PAUSE_S


@pytest.mark.usefixtures("quick_exchange")
async def test_exchanges_that_are_not_completed_count_as_failed_attempts() -> None:
    guessed = GuessedService()
    for number in range(1, MAX_FAILURES // MAX_ATTEMPTS + 1):
        for _ in range(MAX_ATTEMPTS):
            await guessed.service.begin_pairing(guessed.message)
        assert len(guessed.codes) == number
        guessed.now_s += await guessed.pause_s()
    with pytest.raises(RefusedError, match="use the join string"):
        await guessed.service.begin_pairing(guessed.message)
    assert guessed.notes == [STOPPED]


def test_a_device_that_pairs_ends_the_doubling_of_pauses(server: PairingServer) -> None:
    wrong = "10-acorn-actor"
    for _ in range(2):
        for _ in range(MAX_ATTEMPTS):
            with pytest.raises(UnauthorizedError):
                server.pair(wrong)
        with pytest.raises(BusyError, match="try again in 10 s"):
            server.pair(wrong)
        server.now_s += FIRST_PAUSE_S
        assert server.pair(server.codes[-1]) == "the join token"


async def test_the_slow_part_of_an_exchange_does_not_run_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def exchange(*_: object) -> tuple[bytes, bytes]:
        threads.append(threading.get_ident())
        return b"reply", b"key"

    monkeypatch.setattr(pairing, "_exchange", exchange)
    await GuessedService().service.begin_pairing(b"message")
    assert threads
    assert threading.get_ident() not in threads


def test_another_certificate_in_between_is_noticed(server: PairingServer) -> None:
    """A machine that forwards the messages ends TLS with a certificate of its own."""
    with pytest.raises(UnauthorizedError):
        pair(server.remote, f"sha256:{'0' * 64}", server.codes[-1])


def test_an_impostor_that_does_not_know_the_code_is_noticed() -> None:
    class Impostor:
        def __init__(self) -> None:
            self.service = PairingService("sha256:impostor", "bait", lambda _: None)

        def begin_pairing(self, message: bytes) -> tuple[str, bytes]:
            return _run(self.service.begin_pairing(message))

        def complete_pairing(self, pairing: str, proof: bytes) -> tuple[bytes, str]:
            return b"\0" * 32, "bait"

    with pytest.raises(UnauthorizedError, match="another machine may be posing"):
        pair(Impostor(), "sha256:impostor", "42-maple-otter")


@pytest.mark.parametrize("message", [b"", b"A" + b"\0" * 32, b"Q" + b"\0" * 32, b"x" * 65, "text"])
def test_an_invalid_first_message_is_refused(server: PairingServer, message: bytes) -> None:
    with pytest.raises(RefusedError, match="invalid"):
        server.remote.begin_pairing(message)
    assert server.pair(server.codes[-1]) == "the join token"


def test_a_proof_without_exchange_is_refused(server: PairingServer) -> None:
    with pytest.raises(RefusedError, match="has ended"):
        server.remote.complete_pairing("unknown", b"\0" * 32)


@pytest.mark.parametrize("malformed", [7, None, ["a", "b"], {}])
def test_a_malformed_id_is_refused(server: PairingServer, malformed: object) -> None:
    with pytest.raises(MalformedError, match="the id of a pairing is no text"):
        server.remote.complete_pairing(malformed, b"\0" * 32)


def test_a_proof_is_accepted_once(server: PairingServer) -> None:
    pairing, _ = server.remote.begin_pairing(_valid_message())
    with pytest.raises(UnauthorizedError):
        server.remote.complete_pairing(pairing, b"\0" * 32)
    with pytest.raises(RefusedError, match="has ended"):
        server.remote.complete_pairing(pairing, b"\0" * 32)


def test_codes_are_random_and_can_be_typed() -> None:
    codes = {new_code() for _ in range(200)}
    assert len(codes) == 200
    assert all(normalize_code(code) == code for code in codes)


def test_words_are_distinct_and_short() -> None:
    assert len(set(WORDS)) == len(WORDS) >= 256
    assert all(word.isalpha() and word.islower() and 4 <= len(word) <= 8 for word in WORDS)


@pytest.mark.parametrize("text", ["", "42", "maple-otter", "4-maple-otter", "42-maple-otter-x"])
def test_what_is_no_code_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="is not a pairing code"):
        normalize_code(text)


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(SettingError, match="'mable' is no word"):
        normalize_code("42-mable-otter")


def _valid_message() -> bytes:
    import spake2

    message: bytes = spake2.SPAKE2_A(b"guess").start()
    return message


def _run(coroutine: Coroutine[Any, Any, tuple[str, bytes]]) -> tuple[str, bytes]:
    return asyncio.run(coroutine)
