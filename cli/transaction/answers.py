"""Open transactions, as a node tells of them: messages that belong together, joined.

Not here: what is shown of them, and ending them (`cli.transaction.commands`).
"""

from __future__ import annotations

from dataclasses import dataclass

from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, rows, whole
from cli.group.answers import Told
from twinlog.client.blocking import Client
from twinlog.wire.frames import Type

PAGE = 1_000
"""Messages of one answer."""


@dataclass(slots=True)
class Open:
    """A transaction that is open.

    Attributes:
        group: Its producer group.
        name: What its producer calls it.
        numbers: Its open messages, by their numbers among all that wait.
        places: Their log offsets.
        size: Their bytes in the log.
        stored_ms: When the oldest was stored, ms since 1970.
        checks: How often producers were asked what became of it.
        next_ms: When they are asked again; 0: never, it is given up next.
    """

    group: str
    name: str
    numbers: list[int]
    places: list[int]
    size: int
    stored_ms: int
    checks: int
    next_ms: int

    def item(self, now_ms: int) -> Fields:
        """Return it for machines and tables; ``now_ms`` is the clock of the node that told it."""
        return {
            "half": self.numbers[0],
            "group": self.group,
            "transaction": self.name,
            "messages": len(self.numbers),
            "size_bytes": self.size,
            "open_seconds": max(0, now_ms - self.stored_ms) / 1000,
            "checks": self.checks,
            "next_check_seconds": max(0, self.next_ms - now_ms) / 1000 if self.next_ms else None,
        }


class Opens:
    """All open transactions, oldest first.

    Args:
        context: Of the command.
        client: Of the cluster.

    Attributes:
        now_ms: The clock of the node that told.
        told: Who it was.

    Raises:
        TwinlogError: No node answers.
    """

    def __init__(self, context: Context, client: Client) -> None:
        self.told = Told(context, client, Type.WAITING)
        self.now_ms = 0
        found: dict[tuple[str, str], Open] = {}
        first = 0
        while first >= 0:
            answer = self.told.ask({"what": "halves", "first": first, "limit": PAGE})
            self.now_ms = whole(answer, "now_ms") or 0
            for number, place, size, stored, group, name, checks, after in rows(answer.get("rows")):
                one = found.get((str(group), str(name)))
                if one is None:
                    one = Open(str(group), str(name), [], [], 0, _int(stored), 0, 0)
                    one.checks, one.next_ms = _int(checks), _int(after)
                    found[one.group, one.name] = one
                one.numbers.append(_int(number))
                one.places.append(_int(place))
                one.size += _int(size)
            after_all = whole(answer, "next")
            first = -1 if after_all is None else after_all
        self.all = list(found.values())

    def named(self, what: str) -> Open:
        """Return the transaction that a user named: by one of its messages, or by its name.

        Raises:
            Failure: None is open that is called so (exit 66).
        """
        for one in self.all:
            named = (one.name, f"{one.group}/{one.name}")
            if what in named or (what.isdecimal() and int(what) in one.numbers):
                return one
        hints = ("see which are: twinlog transaction list",)
        raise Failure(Exit.MISSING, f'no open transaction is called "{what}"', hints=hints)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
