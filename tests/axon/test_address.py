"""Addresses survive formatting and parsing; invalid ones are refused with the grammar."""

import ipaddress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from melisma.axon.address import DEFAULT_PORT, Address
from melisma.errors import SettingError
from tests.axon.values import texts

GRAMMAR = r"http\[s\]://\[TOKEN@\]HOST:PORT\[/via/NAME\]\[#sha256:FINGERPRINT\]"

hosts = (
    st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z0-9]{1,9}){0,3}\Z")
    | st.ip_addresses(v=4).map(str)
    | st.ip_addresses(v=6).map(str)
)
fingerprints = st.from_regex(r"\Asha256:[0-9a-f]{64}\Z")
addresses = st.builds(
    Address,
    hosts,
    st.integers(1, 65535),
    st.booleans(),
    st.none() | fingerprints,
    st.none() | texts.filter(bool),
    st.none() | st.from_regex(r"\A[A-Za-z0-9_.-]{1,20}\Z"),
).filter(lambda address: address.fingerprint is None or address.tls or address.via is not None)


@given(addresses)
def test_an_address_survives_formatting_and_parsing(address: Address) -> None:
    assert Address.parse(str(address)) == address


@given(addresses)
def test_without_token_removes_only_the_token(address: Address) -> None:
    shown = address.without_token()
    assert shown.token is None
    assert "@" not in str(shown)
    assert (shown.host, shown.port, shown.via) == (address.host, address.port, address.via)


@given(hosts)
def test_a_bare_host_means_http_on_the_default_port(host: str) -> None:
    assume(":" not in host)
    assert Address.parse(host) == Address(host, DEFAULT_PORT)
    assert Address.parse(f"{host}:9") == Address(host, 9)
    assert Address.parse(f"https://{host}/\n") == Address(host, DEFAULT_PORT, tls=True)


@given(st.ip_addresses(v=6))
def test_an_ipv6_host_is_in_brackets(host: ipaddress.IPv6Address) -> None:
    assert str(Address(str(host), 9)) == f"http://[{host}]:9"


@given(st.text() | st.text("htps:/@#?[]%.a1\n "))
def test_any_text_is_a_valid_address_or_refused(text: str) -> None:
    try:
        address = Address.parse(text)
    except SettingError:
        return
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "http://:8000",
        "ftp://host",
        "ws://host:8000",
        "http//host",
        "http://host:port",
        "http://host:70000",
        "http://host:-1",
        "http://host/path",
        "http://host/via",
        "http://host/via/",
        "http://host/via/a/b",
        "http://host/via/größe",
        "http://host?query",
        "http://user:password@host",
        "http://ho st",
        "http://host\n:80",
        "http://[::1",
        "http://[half]:80",
        "https://host#fingerprint",
        "https://host#sha256:1234",
        f"https://host#md5:{'a' * 64}",
        f"https://host#sha256:{'A' * 64}",
        f"https://host#sha256:{'a' * 65}",
    ],
)
def test_an_invalid_address_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(SettingError, match=GRAMMAR):
        Address.parse(text)


def test_a_fingerprint_needs_tls_or_a_relay() -> None:
    fingerprint = f"sha256:{'a' * 64}"
    with pytest.raises(SettingError, match="has a fingerprint but no TLS: use https"):
        Address.parse(f"http://host:1#{fingerprint}")
    assert Address.parse(f"http://host:1/via/w#{fingerprint}").fingerprint == fingerprint
