"""Which right each request needs, read from its fields. Pure.

A *need* is (right, kind of thing, name): ``("write", "topic", "orders")``. A request is carried out
if its user has all that it needs. Rights are judged by name, before anything is looked up: what is
not there and what is forbidden look the same.

Not here: who has which right (``storage.state.access``), enforcing (``node.access``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias, cast

from twinlog.format.system_topics import DELAY_TOPIC, HALF_TOPIC, TIMER_TOPIC

Fields: TypeAlias = Mapping[str, object]
Right: TypeAlias = Literal["read", "write", "manage", "operate", "see"]
Thing: TypeAlias = Literal["topic", "group", "cluster"]
Need: TypeAlias = tuple[Right, Thing, str]
Needs: TypeAlias = Callable[[Fields], Iterable[Need]]

RIGHTS: Final[Mapping[Thing, tuple[Right, ...]]] = {
    "topic": ("read", "write", "manage"),
    "group": ("read", "manage"),
    "cluster": ("operate",),
}
"""What a rule can give. ``see`` is not given: who has any right to a thing sees that it is there.
Who may operate the cluster may do everything."""

LATER_TOPICS: Final = frozenset({DELAY_TOPIC, TIMER_TOPIC, HALF_TOPIC})
"""Topics in which messages wait until they are delivered to another."""

OPERATE: Final[Need] = ("operate", "cluster", "")


def anybody(fields: Fields) -> Iterable[Need]:
    """Before the login."""
    return ()


def a_user(fields: Fields) -> Iterable[Need]:
    """Any user; what the answer names is only what the user sees."""
    return ()


def a_viewer(fields: Fields) -> Iterable[Need]:
    """METADATA: any user; who names topics must see them."""
    names = cast("list[str]", fields.get("topics") or ())
    return [("see", "topic", name) for name in names]


def operator(fields: Fields) -> Iterable[Need]:
    """Who may operate the cluster."""
    return (OPERATE,)


def reader(fields: Fields) -> Iterable[Need]:
    """Who may read its topic."""
    return (("read", "topic", _text(fields, "topic")),)


def writer(fields: Fields) -> Iterable[Need]:
    """Who may write the topics of its sections.

    What is delivered later is judged by the topic that its first record names (`node.access`): a
    section of it that names several is refused by the store.
    """
    rows = cast("list[list[object]]", fields.get("sections") or ())
    return [("write", "topic", str(row[0])) for row in rows if row[0] not in LATER_TOPICS]


def of_topic(fields: Fields) -> Iterable[Need]:
    """TOPIC: lists show what the user sees."""
    return _administration("topic", fields, "show")


def of_group(fields: Fields) -> Iterable[Need]:
    """GROUP: lists show what the user sees."""
    return _administration("group", fields, "show")


def member(fields: Fields) -> Iterable[Need]:
    """Who may read its group and all topics that it names."""
    topics = cast("list[str]", fields.get("topics") or ())
    return (("read", "group", _text(fields, "group")), *(("read", "topic", one) for one in topics))


def handler(fields: Fields) -> Iterable[Need]:
    """TOGETHER: who may write its sections, and read its group if it has one."""
    group = _text(fields, "group")
    return [*writer(fields), *([("read", "group", group)] if group else ())]


def of_access(fields: Fields) -> Iterable[Need]:
    """ACCESS: everybody may ask for themselves."""
    return () if fields.get("op") == "self" else (OPERATE,)


def _administration(thing: Thing, fields: Fields, show: str) -> Iterable[Need]:
    match fields.get("op"):
        case "list":
            return ()
        case op:
            right: Right = "see" if op == show else "manage"
            return ((right, thing, _text(fields, "name")),)


def _text(fields: Fields, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
