"""What a node answers to clients who ask: `Metadata`, `Lookups` and `Finds` on its store.

Frames are not encoded, and what a thread would look up is looked up at once; the fields, the
payload and every decision are those of production. One port lives as long as its process.

Not here: appends (`tests.sim.machines.node`), who asks (`tests.sim.users.askers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from node.clients.freshness import Freshness
from node.clients.limits import Limits
from node.clients.lookups import Answer, Asked, Lookups
from node.clients.metadata import Identity, Leadership, Metadata
from node.clients.presence import Presence
from node.clients.refusals import Refusals
from node.clients.searches import Finds, parse_find, search
from replication.core.view import RoleView
from storage.errors import DiskFull
from twinlog.errors import Busy, TwinlogError
from twinlog.session.routing import Address
from twinlog.wire import frames
from twinlog.wire.frames import Frame, Type

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode

T = TypeVar("T")
_LIMITS = Limits()
_STALE_SECONDS = 10.0
_SILENCE_SECONDS = 3.0  # `link_timeout`


def address_of(name: str) -> Address:
    """Return where clients find a node."""
    return Address(name, 7410)


def _entry(name: str) -> dict[str, object]:
    return {"name": name, "host": address_of(name).host, "client_port": address_of(name).port}


class ClientPort:
    """The answers of one process.

    Attributes:
        incarnation: The process.
    """

    def __init__(self, node: SimNode) -> None:
        assert node.store is not None
        self.incarnation = node.incarnation
        self._node = node
        self._view: RoleView | None = None
        plan = node.world.plan
        entries = {name: _entry(name) for name in plan.nodes}
        presence = Presence(node.name, lambda: entries)
        presence.own = entries[node.name]
        presence.entries = lambda: list(entries.values())  # type: ignore[method-assign]
        identity = Identity("sim", "g1", node.name, 4, plan.segment_size, 4 << 20, "confirmed")
        self._metadata = Metadata(
            identity,
            node.store.reads,
            presence,
            leadership=self._leadership,
            freshness=self._freshness,
        )
        self._refusals = Refusals(node.name, presence, self._leadership)
        self._lookups = Lookups(node.store.reads, self._freshness)
        self._finds = Finds(
            node.store.reads,
            self._freshness,
            staleness_max=_STALE_SECONDS,
            wall_ms=node.clock.wall_ms,
        )

    def _seen(self) -> RoleView:
        """What the node is; looked at once for each question, in which nothing moves."""
        if self._view is None:
            driver = self._node.driver
            assert driver is not None
            self._view = driver.view(self._node.clock.now())
        return self._view

    def _freshness(self) -> Freshness:
        return Freshness.of(self._seen(), self._node.name, silence_max=_SILENCE_SECONDS)

    def _leadership(self) -> Leadership:
        view = self._seen()
        return Leadership(view.leader, view.epoch, view.role == "master" and view.admission is None)

    def refusal(self, code: str, text: str) -> TwinlogError:
        """Return the error for a refusal that concerns the whole node."""
        self._view = None
        return self._refusals.error(code, text)

    def ask(self, frame: Frame) -> Frame:
        """Return the answer to a question."""
        self._view = None
        try:
            fields, payload = self._answer(frame)
        except DiskFull as full:
            return error_answer(frame, Busy(str(full)))
        except TwinlogError as error:
            return error_answer(frame, error)
        return Frame(frame.type, frames.ANSWER, fields=dict(fields), payload=b"".join(payload))

    def _answer(self, frame: Frame) -> Answer:
        if frame.type == Type.METADATA:
            wanted = frame.fields.get("topics")
            names = {str(name) for name in wanted} if isinstance(wanted, list) else None
            return self._metadata.metadata(names), ()
        if frame.type == Type.OFFSETS:
            return _looked(self._lookups.offsets(frame.fields))
        if frame.type == Type.GET:
            return _looked(self._lookups.get(frame.fields))
        assert frame.type == Type.FIND
        lookup = self._finds.begin(parse_find(frame.fields, _LIMITS)[0])
        return self._finds.finish(lookup, search(lookup))


def _looked(found: Answer | Asked[T]) -> Answer:
    return found.finish(found.look.run(lambda: False)) if isinstance(found, Asked) else found


def error_answer(frame: Frame, error: TwinlogError) -> Frame:
    """Return the answer that refuses a request."""
    told = {"code": error.code, "text": error.text, "hint": error.hint}
    fields: dict[str, object] = {**error.facts, **told, "retryable": error.retryable}
    return Frame(frame.type, frames.ANSWER | frames.ERROR, fields=fields)
