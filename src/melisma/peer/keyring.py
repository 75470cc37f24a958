"""The keys to which names belong: a name belongs to a given key, or to the first that used it.

Drivers verify signatures; this table decides whether the signer may use the name. Names that this
node does not expect are limited in number, and with them the memory and threads that they take.
"""

import threading
from collections.abc import Iterable, Mapping

MAX_UNEXPECTED_NAMES = 16
"""The number of nodes that may join a node that does not name them as neighbours."""


class KeyRing:
    """Keys by name, for one node; safe to use from several threads."""

    def __init__(
        self, name: str, expected: Iterable[str] = (), given: Mapping[str, str] | None = None
    ) -> None:
        self._name, self._keys = name, dict(given or {})
        self._expected = frozenset(expected) | self._keys.keys()
        self._lock = threading.Lock()

    def key_of(self, name: str) -> str | None:
        """Return the key to which a name is bound; None if it is free."""
        return self._keys.get(name)

    def keys(self) -> dict[str, str]:
        """Return the bound keys by name."""
        with self._lock:
            return dict(self._keys)

    def add(self, keys: Mapping[str, str]) -> None:
        """Bind names that are free; keys that were given stay."""
        with self._lock:
            self._keys = {**keys, **self._keys}

    def bind(self, name: str, key: str) -> str:
        """Bind a free name to a key; return why the key may not use it, or an empty string."""
        with self._lock:
            if refusal := self._describe_refusal(name, key):
                return refusal
            self._keys[name] = key
        return ""

    def _describe_refusal(self, name: str, key: str) -> str:
        if name == self._name:
            return f"{name} is the name of this node"
        if name in self._keys:
            return "" if self._keys[name] == key else f"the name {name} belongs to another key"
        unexpected = len(self._keys.keys() - self._expected)
        if name not in self._expected and unexpected >= MAX_UNEXPECTED_NAMES:
            return (
                f"{unexpected} nodes have joined that are not named as neighbours, which is the "
                f"limit: name {name} as a neighbour of {self._name}"
            )
        return ""
