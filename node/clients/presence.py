"""The other nodes: the live entries that nodes publish at the coordinator and read from it.

Every node publishes its own addresses and role (`entry`) and receives all entries about once a
second. While the coordinator is away the last answer is kept: traffic continues, addresses rarely
change.

An entry is a map of name, group, host, client_port, slave_port, http_port, role, state, epoch, and
``age_ms``, the age of the entry itself at the coordinator. It comes from another process, so every
read of it checks the kind of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Entry = Mapping[str, object]

KINDS: Mapping[str, tuple[type, ...]] = {
    "group": (str,), "host": (str,), "role": (str,), "state": (str,), "epoch": (int,),
    "client_port": (int,), "slave_port": (int,), "http_port": (int,), "age": (int, float),
}  # fmt: skip
"""Values that clients depend on: one invalid value would make them reject the whole answer."""


class Presence:
    """The last known live entries by node name, one's own included."""

    def __init__(self, name: str, others: Callable[[], Mapping[str, Entry]]) -> None:
        self._name = name
        self._others = others
        self.own: Entry = {}
        """This node's entry as it is now, newer than the one the coordinator has."""

    def entries(self) -> list[Entry]:
        """Return every entry, ordered by name."""
        known = {name: _checked(name, entry) for name, entry in self._others().items()}
        known[self._name] = self.own
        return [known[name] for name in sorted(known)]

    def address(self, name: str | None, port: str) -> tuple[str, int] | None:
        """Return where a node listens; ``port`` is client_port, slave_port or http_port."""
        entry = self.own if name == self._name else self._others().get(name or "")
        if entry is None:
            return None
        host, number = entry.get("host"), entry.get(port)
        if not isinstance(host, str) or type(number) is not int or not 0 < number < 65536:
            return None
        return host, number

    def slave_address(self, name: str) -> tuple[str, int] | None:
        """Return the address of a node's slave port."""
        return self.address(name, "slave_port")


def _checked(name: str, entry: Entry) -> Entry:
    """Return an entry without values of a wrong type: it was written by another process."""
    kept = {
        key: value
        for key, value in entry.items()
        if key not in KINDS or type(value) in KINDS[key] or value is None
    }
    for key in ("client_port", "slave_port", "http_port"):
        value = kept.get(key)
        if isinstance(value, int) and not 0 <= value < 65536:
            del kept[key]
    return {**kept, "name": name}
