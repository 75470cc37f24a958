"""Keys of nodes, signatures, and the mutual proof that two nodes belong to the same group.

The group's token is never sent. A caller sends a nonce; the node that answers proves first that it
knows the token, by an HMAC over both nonces, the fingerprint of its TLS certificate, its name and
its key. The caller compares the fingerprint with the certificate of its connection, so an impostor
cannot pass on the answer of a member. Only then the caller proves the same for its own name and
key. From then on that key signs all messages of the caller.

An answer allows guesses of the token to be checked offline. The key of the HMAC is derived by
scrypt to make that slow; a token of 128 random bits makes it infeasible.
"""

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

NONCE_BYTES = 32
SIGNATURE_BYTES = 64


class NodeKey:
    """The private key of a node; `public` is the public key in hexadecimal."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    @classmethod
    def create(cls) -> "NodeKey":
        """Create a random key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_text(cls, text: str) -> "NodeKey":
        """Return the key of a text written by `to_text`; raise `ValueError` if it is invalid."""
        return cls(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text)))

    def to_text(self) -> str:
        """Return the private key as text."""
        return self._key.private_bytes_raw().hex()

    def sign(self, content: bytes) -> bytes:
        """Return a signature of these bytes."""
        return self._key.sign(content)


def is_signed(key: str, content: bytes, signature: bytes) -> bool:
    """Return whether a signature of these bytes was made with the private key of `key`."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def content_to_sign(to: str, address: str, content: bytes) -> bytes:
    """Return the bytes to sign of a message: a signature holds for one receiver only."""
    return msgspec.msgpack.encode(("melisma peers: message", to, address, content))


@lru_cache(maxsize=8)
def group_secret(token: str | None) -> bytes:
    """Derive the key of proofs from the token of a group."""
    salt = b"melisma peers: group"
    return hashlib.scrypt((token or "").encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)


@dataclass(frozen=True)
class Meeting:
    """The facts that both ends of a connection must agree on."""

    caller_nonce: bytes
    node_nonce: bytes
    fingerprint: str
    node_name: str
    node_key: str
    incarnation: int

    def node_proof(self, secret: bytes) -> bytes:
        """Return the proof of the node that was called."""
        return _mac(secret, ("melisma peers: node", *self._facts()))

    def caller_proof(self, secret: bytes, name: str, key: str) -> bytes:
        """Return the proof of the caller, for its name and key."""
        return _mac(secret, ("melisma peers: caller", *self._facts(), name, key))

    def _facts(self) -> tuple[bytes | str | int, ...]:
        return (
            self.caller_nonce,
            self.node_nonce,
            self.fingerprint,
            self.node_name,
            self.node_key,
            self.incarnation,
        )


def proofs_match(proof: bytes, expected: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(proof, expected)


def _mac(secret: bytes, facts: tuple[bytes | str | int, ...]) -> bytes:
    return hmac.new(secret, msgspec.msgpack.encode(facts), hashlib.sha256).digest()
