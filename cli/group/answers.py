"""What a node says of groups: the master, or a copy of what it knew while no master answers.

Not here: what is shown of it (`cli.group.views`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cli.context import Context
from cli.failures import Exit, Failure, nearest
from cli.fields import Fields, table, tables, text, whole
from twinlog.client.blocking import Client
from twinlog.errors import TwinlogError, UnavailableError, UnknownGroup
from twinlog.units import format_duration
from twinlog.wire.frames import Type

MASTER_SECONDS = 2.0
"""How long the master is waited for before other nodes are asked what they know."""

NODE_SECONDS = 1.0
"""How long each of them may take."""


class Told:
    """Asks about groups, or what else every node knows, in one call of a command.

    Args:
        context: Of the command.
        client: Of the cluster.
        kind: What is asked: GROUP, or another question that slaves answer with their age.

    Attributes:
        node: Who answered instead of the master; None: the master did.
        age_seconds: How old its knowledge is; None: the master's, or unknown.
    """

    def __init__(self, context: Context, client: Client, kind: Type = Type.GROUP) -> None:
        self._context = context
        self._kind = kind
        self._client = client
        self._address: str | None = None
        self.node: str | None = None
        self.age_seconds: float | None = None

    @property
    def source(self) -> Fields:
        """Who answered, as machines see it."""
        return {"node": self.node, "age_seconds": self.age_seconds}

    def ask(self, fields: Fields) -> Fields:
        """Return the answer of the master, or of the node that knows most while no master answers.

        Raises:
            TwinlogError: No node answers, or the group is unknown.
        """
        if self._address is not None:
            return self._context.ask(self._address, self._kind, fields, NODE_SECONDS)
        left = self._context.left(MASTER_SECONDS)
        try:
            return dict(self._client.call("master", self._kind, fields, timeout=left).fields)
        except UnavailableError:
            found = self._from_copies(fields)
            if found is None:
                raise
            return found

    def _from_copies(self, fields: Fields) -> Fields | None:
        """Return the youngest answer of a node; None: no node answers."""
        best: tuple[int, str, Fields] | None = None
        for address in self._context.endpoints():
            try:
                found = self._context.ask(address, self._kind, fields, NODE_SECONDS)
            except UnknownGroup:
                raise
            except (TwinlogError, Failure, OSError):
                continue
            age = whole(found, "age_ms")
            if age is not None and (best is None or age < best[0]):
                best = age, address, found
        if best is None:
            return None
        age, self._address, found = best
        self.node, self.age_seconds = text(found, "node"), age / 1000
        old = format_duration(self.age_seconds)
        self._context.printer.note(f"no master answers; {self.node} tells what it knew {old} ago")
        return found

    def groups(self) -> list[Fields]:
        """Return all groups in order."""
        return list(_pages(self.ask))

    def document(self, name: str) -> Fields:
        """Return everything about one group.

        Raises:
            Failure: There is no such group (exit 66), with the nearest name.
        """
        return _document(self.ask, name)


def listed(client: Client, node: str = "master") -> Iterator[Fields]:
    """Yield the groups in order, a page at a time; ``node`` is whom to ask, ``any`` a slave too."""
    return _pages(lambda fields: dict(client.call(node, Type.GROUP, fields).fields))


def document(client: Client, name: str) -> Fields:
    """Return everything that the master knows of one group: for those who change it, or rely on it.

    Raises:
        Failure: There is no such group (exit 66), with the nearest name.
    """
    return _document(lambda fields: dict(client.call("master", Type.GROUP, fields).fields), name)


def settings_of(client: Client, name: str) -> Fields | None:
    """Return the settings of a group; None: there is no such group."""
    try:
        answer = client.call("master", Type.GROUP, {"op": "show", "name": name})
    except UnknownGroup:
        return None
    return table(table(answer.fields.get("group")).get("settings"))


def _pages(ask: Callable[[Fields], Fields]) -> Iterator[Fields]:
    after: str | None = ""
    while after is not None:
        answer = ask({"op": "list", "after": after})
        yield from tables(answer.get("groups"))
        after = text(answer, "more")


def _document(ask: Callable[[Fields], Fields], name: str) -> Fields:
    try:
        return table(ask({"op": "show", "name": name}).get("group"))
    except UnknownGroup:
        known = [text(group, "name") or "" for group in _pages(ask)]
        raise Failure(
            Exit.MISSING,
            f'there is no group "{name}"',
            hints=(*nearest(name, known), f"create it: twinlog group create {name}"),
        ) from None
