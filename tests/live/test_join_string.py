"""Join strings: what is encoded is decoded, and a mistyped string is refused."""

from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.live.join_string import PREFIX, JoinString
from melisma.live.orchestrator.learner_authentication import JoinTokens

FINGERPRINT = "sha256:" + "0123456789abcdef" * 4
HOSTS = ["192.168.1.20", "100.70.1.2", "2001:db8::1", "fd00::2"]


def create(hosts: list[str] = HOSTS, port: int = 8443) -> tuple[JoinString, list[str]]:
    return JoinString.create(port, FINGERPRINT, JoinTokens().issue(), hosts)


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(st.lists(addresses, min_size=1, max_size=20), st.integers(0, 65535))
def test_a_string_carries_all_that_fits(hosts: list[str], port: int) -> None:
    joined, left_out = create(hosts, port)
    text = str(joined)
    assert len(text) < 120
    assert JoinString.parse(text) == joined
    assert set(joined.hosts) | set(left_out) == set(hosts)
    assert hosts[0] in joined.hosts


def test_the_addresses_of_a_usual_machine_fit() -> None:
    joined, left_out = create()
    assert left_out == []
    assert sorted(joined.hosts) == sorted(HOSTS)
    assert FINGERPRINT.startswith(joined.fingerprint_prefix)
    assert len(joined.fingerprint_prefix) == len("sha256:") + 32


def test_addresses_that_do_not_fit_are_named() -> None:
    many = [str(ip_address(0xFD00 << 112 | number)) for number in range(5)]
    joined, left_out = create(["10.0.0.1", *many])
    assert joined.hosts == ("10.0.0.1", *many[:3])
    assert left_out == many[3:]


def mistyped(text: str) -> Iterator[str]:
    """Yield the text with each character changed, left out, and doubled."""
    for index, letter in enumerate(text[:-1]):
        start, end = text[:index], text[index + 1 :]
        other = "B" if letter == "A" else "A"
        yield from (start + other + end, start + end, start + 2 * letter + end)
    yield from (text[:40], text + "A", 2 * text)


def test_a_mistyped_string_is_refused_and_not_repeated() -> None:
    text = str(JoinString.create(8443, FINGERPRINT, "AAECAwQFBgcICQoL", HOSTS)[0])
    for wrong in mistyped(text):
        with pytest.raises(SettingError, match="copy the whole string") as caught:
            JoinString.parse(wrong)
        assert text[8:30] not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["", "mel1", "mel2AAAA", "https://10.0.0.1:8000", "mel1" + "A" * 80]
)
def test_other_texts_are_refused_with_a_fix(wrong: str) -> None:
    with pytest.raises(SettingError, match="copy the whole string"):
        JoinString.parse(wrong)


def test_a_string_may_be_broken_into_lines() -> None:
    joined, _ = create()
    text = str(joined)
    assert JoinString.parse(f" {text[:40]}\n {text[40:]}\n") == joined
    assert text.startswith(PREFIX)


def test_the_token_is_not_shown() -> None:
    joined, _ = create()
    assert joined.token not in repr(joined)


def test_a_machine_without_addresses_is_refused() -> None:
    with pytest.raises(SettingError, match="connect it to a network"):
        create([])
