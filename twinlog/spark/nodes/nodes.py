"""Whom a task asks: slaves first, in turn, until one has what the plan pinned.

A node that cannot be reached, lags behind the plan, or knows an older epoch is passed over; when
all were, they are asked again until ``maxStaleness`` is over. Smaller epochs are never believed.
That rows are gone is believed at once only when every node that may be asked says so: during a
failover a slave may have deleted what the master, out of reach, still keeps.

What comes next can be asked ahead (`Nodes.ahead`), so that a node reads while the task decodes.
Only a good answer to it counts. Anything else is forgotten, and the question is asked as if it had
not been asked ahead: so who is passed over, and what is an error, stays the same.

Units: seconds, on a clock that never goes back.

Not here: what is asked (`twinlog.spark.source.cluster`), the wire (`twinlog.client.blocking`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from twinlog.client.blocking import caller_of
from twinlog.errors import Denied, TwinlogError, UsageError
from twinlog.session.caller import Ahead
from twinlog.session.routing import Route
from twinlog.session.session import backoff
from twinlog.spark.errors import SourceError, SourceUnavailable, nearest
from twinlog.spark.nodes.connect import client_of, hint_of
from twinlog.spark.plan.credentials import NONE, Credentials
from twinlog.wire.frames import Frame, Type

ATTEMPT_SECONDS: Final = 5.0
"""How long one node has to answer: a paused one must not use up the whole wait."""
AHEAD_MAX: Final = 1
"""Questions asked ahead at a time. An answer is as large as its question allows."""
AHEAD_SECONDS: Final = 1.0
"""A task that took longer than this over its last answer asks for nothing ahead: it would gain
nothing, and an answer that waits to be read holds memory that the node needs for others."""
ROUTE_SECONDS: Final = 10.0
"""How long to look for any node at all, before a query and between rounds."""


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """How nodes are chosen.

    Attributes:
        servers: Addresses of any nodes.
        read_from: ``slave`` (then the master), ``any``, ``master``, or a node's name.
        max_staleness: How long to wait for a node that has what was pinned.
        epoch: The pinned epoch.
        turn: Rotates the slaves, so that not all tasks ask the same one.
        credentials: What is shown to them.
    """

    servers: tuple[str, ...]
    read_from: str
    max_staleness: float
    epoch: int = 0
    turn: int = 0
    credentials: Credentials = NONE


@dataclass(frozen=True, slots=True)
class _Round:
    """What asking each node once came to.

    Attributes:
        why: Why the answer of each was not usable.
        spare: The best answer that will do where there is no better one.
        silent: Nodes that might have a better one: out of reach, behind, or not serving.
    """

    why: dict[str, str]
    spare: Frame | None
    silent: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked ahead, of whom."""

    node: str
    kind: Type
    fields: Mapping[str, object]
    sent: Ahead


class Nodes:
    """The nodes of one cluster, for one task or plan; close it."""

    def __init__(self, access: NodeAccess) -> None:
        self._access = access
        self._given_up: frozenset[str] = frozenset()
        self._ahead: list[_Asked] = []
        self._denied: dict[str, Denied] = {}
        self._served_by = ""
        self._served_at = self._took = math.inf
        self._client = client_of(access.servers, access.credentials, ROUTE_SECONDS)
        try:
            self.route: Route = self._client.metadata()
        except TwinlogError as error:
            self._client.close()
            if isinstance(error, UsageError):
                raise SourceError(error.text, code=error.code, hint=hint_of(error)) from None
            text = f"no node of {', '.join(access.servers)} answered: {error.text}"
            raise SourceUnavailable(text, hint=error.hint) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def require(self, epoch: int) -> None:
        """Believe no node any more that knows only an epoch before this one."""
        self._access = replace(self._access, epoch=epoch)

    def epochs(self, end: int = 0) -> tuple[tuple[int, int], ...]:
        """Return (start, epoch) of the confirmed history, oldest first; () where nodes are older.

        Args:
            end: Log offset up to which all of them must be known.

        Raises:
            SourceUnavailable: No node that knows the pinned epoch answered.
        """

        def usable(answer: Frame) -> str | None:
            confirm = answer.fields.get("confirm")
            late = isinstance(confirm, int) and confirm < end
            return f"lags: it ends at log offset {confirm}, not {end}" if late else None

        return _epochs(self.ask(Type.METADATA, {"topics": []}, "the epochs", usable))

    def epochs_of(self, name: str) -> tuple[tuple[int, int], ...]:
        """Return (start, epoch) of one node's confirmed history, oldest first.

        Raises:
            TwinlogError: It does not answer.
        """
        fields: dict[str, object] = {"topics": []}
        return _epochs(self._client.call(name, Type.METADATA, fields, timeout=ATTEMPT_SECONDS))

    def order(self) -> list[str]:
        """Return the names of the nodes to ask, in this order.

        Raises:
            SourceError: ``readFrom`` names a node that the cluster does not have.
        """
        serving = [node.name for node in self.route.nodes if node.address is not None]
        leader, wanted = self.route.leader, self._access.read_from
        masters = [name for name in serving if name == leader]
        slaves = [name for name in serving if name != leader]
        if slaves:
            turn = self._access.turn % len(slaves)
            slaves = slaves[turn:] + slaves[:turn]
        match wanted:
            case "slave":
                return slaves + masters
            case "any":
                every = masters + slaves
                turn = self._access.turn % max(len(every), 1)
                return every[turn:] + every[:turn]
            case "master":
                return masters
            case _:
                names = [node.name for node in self.route.nodes]
                if wanted not in names:
                    hint = nearest(wanted, names) or f"there are {', '.join(names)}"
                    text = f"readFrom is {wanted!r}, which is not a node"
                    raise SourceError(text, code="option", hint=hint)
                return [wanted]

    def ask(
        self,
        kind: Type,
        fields: Mapping[str, object],
        what: str,
        usable: Callable[[Frame], str | None],
        spare: Callable[[Frame], int | None] = lambda answer: None,
    ) -> Frame:
        """Ask the nodes in turn until the answer of one is usable.

        Args:
            kind: Type of the request.
            fields: Its fields.
            what: Names it in the error.
            usable: Why an answer is not, or None.
            spare: The rank of an answer that is not usable and will do where no node has a better
                one, the least first; None: it will not. It is returned when every node gave one,
                or when ``max_staleness`` is over. A node waited for in vain is asked, not waited
                for, from then on: else a task of many such rows would wait once for each.

        Raises:
            SourceUnavailable: None was within ``max_staleness``.
            TwinlogError: What ``usable`` raises, or a refusal that another node would repeat.
        """
        began, attempt = time.monotonic(), 0
        self._took = began - self._served_at
        kept: Frame | None = None
        while True:
            found = self._round(kind, fields, usable, spare)
            if isinstance(found, Frame):
                self._served_at = time.monotonic()
                return found
            kept = found.spare or kept
            if found.spare is not None and found.silent <= self._given_up:
                return found.spare
            left = self._access.max_staleness - (time.monotonic() - began)
            if left <= 0:
                if kept is None:
                    raise self._nobody(what, found.why)
                self._given_up |= found.silent
                return kept
            time.sleep(min(backoff(attempt, 1.0), left))
            attempt += 1
            with contextlib.suppress(TwinlogError):
                self.route = self._client.metadata(timeout=min(ROUTE_SECONDS, max(left, 1.0)))

    def ahead(self, kind: Type, fields: Mapping[str, object]) -> None:
        """Ask already for what `ask` will be called for next, and do not wait for it.

        Only of the node that served last and will be asked first again, and only while the task is
        quick (`AHEAD_SECONDS`). When something else is asked instead, the answer is dropped.
        """
        if len(self._ahead) >= AHEAD_MAX or not 0 <= self._took <= AHEAD_SECONDS:
            return
        first = self.order()[:1]
        if first != [self._served_by]:
            return
        sent = caller_of(self._client).begin(first[0], kind, fields, timeout=ATTEMPT_SECONDS)
        if sent is not None:
            self._ahead.append(_Asked(first[0], kind, dict(fields), sent))

    def once(
        self, kind: Type, fields: Mapping[str, object], usable: Callable[[Frame], str | None]
    ) -> Frame | None:
        """Ask each node once until the answer of one is usable; None: no answer was."""
        found = self._round(kind, fields, usable, lambda answer: None)
        return found if isinstance(found, Frame) else None

    def _nobody(self, what: str, why: Mapping[str, str]) -> SourceUnavailable:
        each = "; ".join(f"{name} {reason}" for name, reason in why.items()) or "no node"
        text = f"{what}: no node served it within {self._access.max_staleness:g} s ({each})"
        hint = "see twinlog cluster status, raise maxStaleness, or set readFrom=any"
        return SourceUnavailable(text, code="offset-not-available", hint=hint)

    def _round(
        self,
        kind: Type,
        fields: Mapping[str, object],
        usable: Callable[[Frame], str | None],
        spare: Callable[[Frame], int | None],
    ) -> Frame | _Round:
        """Ask each node once; return the first usable answer, or what the others came to.

        Raises:
            SourceError: Each of them says that rules do not allow it: waiting changes nothing.
        """
        self._denied.clear()
        why: dict[str, str] = {}
        spares: dict[str, tuple[int, Frame]] = {}
        for name in self.order():
            early = self._early(name, kind, fields)
            if isinstance(early, Frame) and usable(early) is not None:
                early = None
            answer = self._one(name, kind, fields) if early is None else early
            reason = answer if isinstance(answer, str) else usable(answer)
            if reason is None and isinstance(answer, Frame):
                self._served_by = name
                self._given_up -= {name}
                return answer
            rank = None if isinstance(answer, str) else spare(answer)
            if rank is not None and isinstance(answer, Frame):
                spares[name] = rank, answer
            why[name] = reason or ""
        if why and self._denied.keys() >= why.keys():
            error = next(iter(self._denied.values()))
            raise SourceError(error.text, code=error.code, hint=hint_of(error))
        best = min(spares.values(), key=lambda each: each[0])[1] if spares else None
        self._given_up -= spares.keys()
        return _Round(why, best, self._may_be_asked() - spares.keys())

    def _may_be_asked(self) -> frozenset[str]:
        """Return the nodes that ``readFrom`` allows, those that do not serve right now too."""
        if self._access.read_from in ("slave", "any"):
            return frozenset(node.name for node in self.route.nodes)
        return frozenset(self.order())

    def _one(self, name: str, kind: Type, fields: Mapping[str, object]) -> Frame | str:
        """Ask one node; return its answer, or why it has no answer that counts."""
        try:
            answer = self._client.call(name, kind, fields, timeout=ATTEMPT_SECONDS)
        except TwinlogError as error:
            if isinstance(error, Denied):
                self._denied[name] = error
            return error.text.removeprefix(f"{name} ")
        if 0 < answer.epoch < self._access.epoch:
            return f"knows only epoch {answer.epoch}, not {self._access.epoch}"
        return answer

    def _early(self, name: str, kind: Type, fields: Mapping[str, object]) -> Frame | str | None:
        """Take what a node was asked ahead; None: nothing that counts, else as of `_one`."""
        asked, self._ahead = self._ahead, []
        for each in asked:
            if (each.node, each.kind, each.fields) == (name, kind, fields):
                try:
                    answer = caller_of(self._client).finish(each.sent, timeout=ATTEMPT_SECONDS)
                except TwinlogError as error:
                    return error.text.removeprefix(f"{name} ")
                old = answer is None or 0 < answer.epoch < self._access.epoch
                return None if old else answer
        return None

    def each(self, kind: Type, fields: Mapping[str, object], what: str) -> list[Frame]:
        """Ask every node once and return the answers of those that gave one, in order.

        Raises:
            SourceUnavailable: None did.
        """
        found = {name: self._one(name, kind, fields) for name in self.order()}
        answers = [answer for answer in found.values() if isinstance(answer, Frame)]
        if not answers:
            each = "; ".join(f"{name} {reason}" for name, reason in found.items()) or "no node"
            text = f"{what}: no node answered ({each})"
            raise SourceUnavailable(text, hint="see twinlog cluster status")
        return answers

    def order_to(
        self, name: str, kind: Type, fields: Mapping[str, object], *, timeout: float
    ) -> Frame:
        """Give one node an order that may be repeated, and return its answer.

        Raises:
            TwinlogError: It refused, or may or may not have carried it out.
        """
        return self._client.call(name, kind, fields, timeout=timeout)


def _epochs(answer: Frame) -> tuple[tuple[int, int], ...]:
    rows = answer.fields.get("epochs")
    if not isinstance(rows, list):
        return ()
    pairs = cast("list[list[int]]", rows)
    return tuple((start, epoch) for epoch, start in pairs)
