"""The picture of the cluster that a node's HTTP port shows: what ``cluster status`` says, and more.

A node asks as a command does: every node, itself included, and the coordinator, over their client
ports. Who was master is asked again when the epoch has changed, topics and groups are asked of the
master every `LISTS_SECONDS`; each list is bounded, whatever users store.

Not here: how often a picture is made, and for whom (``node.observe.live``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from cli.answer import dump
from cli.cluster.status import history_item, status_answer
from cli.cluster.view import ClusterView, look
from cli.context import Context
from cli.failures import Failure
from cli.fields import Fields, table, tables, text, whole
from twinlog.errors import TwinlogError
from twinlog.wire.frames import Type

if TYPE_CHECKING:
    from node.config.config import ClusterConfig

HISTORY_SHOWN = 20
"""Newest epochs in a picture."""
LISTED_MAX = 50
"""Topics, and groups, in a picture; the first by name."""
LISTS_SECONDS = 5.0
"""Between two questions for topics and groups: the master makes lists in its event loop."""
ASK_SECONDS = 2.0
"""What one question may take."""
TEXT_MAX = 300
"""Characters of a text from another process."""


class Pictures:
    """Makes pictures, one at a time; called in a thread.

    Args:
        config: Of the cluster.
        name: The node that asks.
        context: How to ask; its options are those of a command.
    """

    def __init__(self, config: ClusterConfig, name: str, context: Context) -> None:
        self._config = config
        self._name = name
        self._context = replace(
            context,
            options=replace(context.options, config=config.path, endpoints=(), timeout=None),
            process=name,
        )
        self._history: list[Fields] = []
        self._history_of: tuple[str, int] | None = None
        self._lists: Fields = {"topics": [], "groups": [], "more_topics": 0, "more_groups": 0}
        self._listed_at: float | None = None

    def __call__(self) -> str:
        """Return the cluster as it is now, as JSON, also when no process of it answers."""
        context = self._context
        context.started = context.clock()
        try:
            view = look(context, self._config)
        except Failure as failure:
            found: Fields = {"cluster": self._config.name, "health": "unavailable", "nodes": []}
            problem = {"code": "silent", "text": failure.text, "command": "twinlog cluster status"}
            return self._document({**found, "problems": [problem], "history": self._history})
        now = context.clock()
        if self._listed_at is None or now - self._listed_at >= LISTS_SECONDS:
            self._listed_at = now
            self._list(view)
        self._remember(view)
        fields = status_answer(view, context.wall_ms()).fields
        return self._document({**fields, **self._lists, "history": self._history})

    def _document(self, fields: Mapping[str, object]) -> str:
        head = {"kind": "ClusterPicture", "version": 1, "seen_by": self._name}
        return dump({**head, **_bounded(fields)})

    def _remember(self, view: ClusterView) -> None:
        """Take the history of epochs when there is a new one."""
        register = view.coordinator
        known = (register.register_id, register.epoch)
        if not register.answers or known == self._history_of:
            return
        found = self._asked(register.address, Type.CO_HISTORY, {})
        if found is not None:
            self._history_of = known
            epochs = tables(found.get("history"))[-HISTORY_SHOWN:]
            self._history = [history_item(one) for one in epochs]

    def _asked(self, address: str, kind: Type, fields: Fields) -> Fields | None:
        try:
            return self._context.ask(address, kind, fields, ASK_SECONDS)
        except (TwinlogError, OSError):
            return None

    def _list(self, view: ClusterView) -> None:
        """Take topics and groups of the master; what was known stays when it does not answer."""
        if view.master is None:
            return
        address = view.master.address
        found = self._asked(address, Type.TOPIC, {"op": "list", "after": ""})
        if found is not None:
            queues, messages = table(found.get("topics")), table(found.get("messages"))
            topics: list[Fields] = [
                {"topic": name, "queues": whole(queues, name), "messages": whole(messages, name)}
                for name in sorted(queues)
                if not name.startswith("rmq_sys_")
            ]
            self._lists |= _some("topics", topics, more=text(found, "more") is not None)
        found = self._asked(address, Type.GROUP, {"op": "list", "after": ""})
        if found is not None:
            groups: list[Fields] = [
                {key: one.get(key) for key in ("mode", "members", "lag", "leased", "waiting")}
                | {"group": text(one, "name")}
                for one in tables(found.get("groups"))
            ]
            self._lists |= _some("groups", groups, more=text(found, "more") is not None)


def _some(name: str, items: list[Fields], *, more: bool) -> Fields:
    """The first items of a list; ``more_...`` says whether there are others."""
    return {name: items[:LISTED_MAX], f"more_{name}": more or len(items) > LISTED_MAX}


def _bounded(fields: Mapping[str, object]) -> Fields:
    """The fields without texts of any length: another process wrote them."""
    return {key: _short(value) for key, value in fields.items()}


def _short(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else value[: TEXT_MAX - 1] + "…"
    if isinstance(value, dict):
        return _bounded(cast("Mapping[str, object]", value))
    if isinstance(value, list):
        return [_short(one) for one in cast("list[object]", value)]
    return value
