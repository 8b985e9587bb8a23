"""What a client does until a call is done, not done or unknown: routes, redirects, retries.

Nothing here touches a socket or a clock. A call is a generator: it yields `Step` values (ask this
node, wait) and is sent what came of them; a shell (``caller`` blocking, ``aio_caller`` awaiting)
carries the steps out. So both clients, the simulator and the tests run the same decisions.

Time is an argument: the shell that carries out steps sets `Session.now` before each one is resumed.

One deadline bounds a call with all its attempts. Pauses between attempts grow from 50 ms to 1 s,
with jitter, so that a thousand clients do not come back in step after a failover. `OutcomeUnknown`
is raised only when an attempt may have been carried out and it was not possible to repeat it.

Units: seconds of any clock that never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from twinlog.errors import (
    NotMaster,
    NotYetConfirmed,
    OutcomeUnknown,
    TwinlogError,
    Unavailable,
    UsageError,
)
from twinlog.session.link import OTHER_CLUSTER, Expected, Peer, error_of
from twinlog.session.routing import Address, Route, RoutingTable, parse_route
from twinlog.wire import schema
from twinlog.wire.frames import Frame, FrameError, Type, type_name

MASTER: Final = "master"
SLAVE: Final = "slave"
ANY: Final = "any"

BACKOFF_FIRST: Final = 0.05
BACKOFF_MAX: Final = 1.0
BACKOFF_STEADY: Final = 2
"""Attempt after which the pause does not grow for a while."""
BACKOFF_STILL: Final = 3
"""For how many attempts it does not."""

ATTEMPT_SECONDS: Final = 2.0
"""How long a question waits for one node: a paused node must not use up the whole deadline, and a
healthy one answers in a millisecond."""

REDIRECTS_MAX: Final = 3
"""Redirects, or moves of a node, that are followed without a pause: a master that handed over and
one that did so right after it make two. Nodes that name each other are asked no faster than others.
"""

CHANGE_SECONDS: Final = 5.0
"""The same for a change that may be repeated: it waits for the in-sync set as well."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Send ``frame`` to ``address`` and wait at most ``seconds``; the answer is sent back in.

    Without an answer `LinkDown` is thrown in.
    """

    address: Address
    frame: Frame
    seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait ``seconds``; None is sent back in."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Open:
    """Have the caller's own connection open to ``address``; an `Opened` is sent back in.

    One that is open there already stays, unless ``fresh`` asks for a new one; any other is closed
    first. Where the node cannot be reached within ``seconds`` (None: the shell's own limit),
    `LinkDown` is thrown in and nothing is open.
    """

    address: Address
    seconds: float | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``frame``, payload included, over the own connection; its number is sent back in.

    When the connection has ended, it is closed and `LinkDown` is thrown in.
    """

    frame: Frame
    seconds: float


@dataclass(frozen=True, slots=True)
class Take:
    """Wait at most ``seconds`` for an answer over the own connection; it, or None, is sent back in.

    When the connection has ended, it is closed and `LinkDown` is thrown in.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Opened:
    """What came of an `Open`.

    Attributes:
        peer: The node at the other end.
        local: The client's own (IP address, port).
        fresh: The connection is new: what was asked over the last one will not be answered.
    """

    peer: Peer
    local: tuple[str, int]
    fresh: bool


Step: TypeAlias = Ask | Pause | Open | Send | Take
Came: TypeAlias = Frame | Opened | int | None
"""What came of a step."""

Steps: TypeAlias = Generator[Step, Came, T]
"""A dialogue with the cluster that ends with a result."""


class LinkDown(Exception):
    """A connection ended, or did not bring an answer in time.

    Attributes:
        sent: Whether the node may have received the request.
        why: For a person.
        stranger: A node of another cluster answered: what to tell the caller.
    """

    def __init__(self, why: str, *, sent: bool, stranger: TwinlogError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        self.stranger = stranger

    def error(self, who: object) -> TwinlogError:
        """Return the error of a call that has no other node to ask."""
        return self.stranger or Unavailable(f"{who} {self.why}")


def not_opened(error: TwinlogError) -> Exception:
    """Return what the refusal of a greeting means to a session: a stranger is only not there."""
    if error.code != OTHER_CLUSTER:
        return error
    return LinkDown(f"is another cluster's: {error.text}", sent=False, stranger=error)


def backoff(attempt: int, random: float) -> float:
    """Return the seconds to wait after attempt number ``attempt`` (from 0), jittered downwards.

    A change of master takes some tenths of a second: during that time the pause stays short.

    >>> [backoff(n, 1.0) for n in (0, 1, 2, 5, 6, 7, 8, 99)]
    [0.05, 0.1, 0.2, 0.2, 0.4, 0.8, 1.0, 1.0]
    >>> backoff(0, 0.0)
    0.025
    """
    doubled = attempt if attempt <= BACKOFF_STEADY else max(BACKOFF_STEADY, attempt - BACKOFF_STILL)
    whole = min(BACKOFF_MAX, BACKOFF_FIRST * (1 << min(doubled, 10)))
    return whole * (0.5 + random / 2)


class Session:
    """Decides for one client; several calls may be under way.

    Args:
        endpoints: Where to ask first.
        random: Numbers from 0 to 1 for the jitter.
        expected: The cluster that must answer; None: the first that does.

    Attributes:
        now: Seconds; set before each step is resumed.
    """

    def __init__(
        self,
        endpoints: Iterable[Address],
        *,
        random: Callable[[], float],
        expected: Expected | None = None,
    ) -> None:
        self.table = RoutingTable(tuple(endpoints), expected)
        self.now = 0.0
        self._random = random

    def pause(self, attempt: int) -> float:
        """Return how long to wait after attempt number ``attempt``."""
        return backoff(attempt, self._random())

    def route(self, deadline: float, *, thorough: bool = False) -> Steps[Route]:
        """Ask nodes in turn until one tells a route that is not older than what is known.

        Args:
            deadline: See `now`.
            thorough: Ask every node that is not suspected, unless one tells of a newer epoch: the
                first may be the one that has not heard.

        Raises:
            Unavailable: None did before ``deadline``.
        """
        attempt, why = 0, "none was asked"
        known, found = self.table.epoch, None
        while True:
            for address in self.table.candidates():
                left = deadline - self.now
                if left <= 0 or (found is not None and self.table.suspected(address)):
                    break
                try:
                    route = yield from self._route_of(address, min(left, ATTEMPT_SECONDS))
                except LinkDown as down:
                    self.table.suspect(address, down.stranger)
                    why = f"{address} {down.why}"
                    continue
                except TwinlogError as error:
                    if not error.retryable:
                        raise
                    why = f"{address}: {error.text}"
                    continue
                if route is None:
                    why = f"{address} knows only an older epoch than {self.table.epoch}"
                    continue
                found = route
                # A newer epoch than the known one cannot come from a node that missed the failover.
                if not thorough or route.epoch > known:
                    return route
            if found is not None:
                return found
            if self.table.stranger is not None:
                raise self.table.stranger
            if not (yield from self._pause(attempt, deadline)):
                raise self._nobody(why)
            attempt += 1

    def _route_of(self, address: Address, seconds: float) -> Steps[Route | None]:
        # No topics: a route is asked for often, and the names of all topics may fill a frame.
        answer = yield Ask(address, Frame(Type.METADATA, fields={"topics": []}), seconds)
        assert isinstance(answer, Frame), "what an Ask is answered by"
        if answer.is_error:
            raise error_of(answer)
        schema.check(answer)
        route = parse_route(answer.fields)
        self.table.trust(address)
        return route if self.table.learn(route) else None

    def _nobody(self, why: str) -> Unavailable:
        addresses = ", ".join(str(address) for address in self.table.bootstrap)
        hint = "see whether the nodes run: twinlog cluster status"
        return Unavailable(f"no node answered ({addresses}); the last: {why}", hint=hint)

    def master(self, deadline: float) -> Steps[Address]:
        """Ask until a node names a master.

        Raises:
            Unavailable: No master was named before ``deadline``.
        """
        attempt = 0
        while True:
            route = yield from self.route(deadline, thorough=attempt > 0)
            if self.table.master is not None:
                return self.table.master
            if not (yield from self._pause(attempt, deadline)):
                text = f"the cluster {route.cluster} has no master at epoch {route.epoch}"
                hint = "make one: twinlog cluster failover --to NODE"
                raise Unavailable(text, hint=hint, epoch=route.epoch)
            attempt += 1

    def redirect(self, error: TwinlogError, address: Address) -> bool:
        """Take from a refusal who is master; say whether another node can be asked at once."""
        if not isinstance(error, NotMaster):
            return False
        named = error.facts.get("host"), error.facts.get("port")
        if isinstance(named[0], str) and isinstance(named[1], int):
            hinted = Address(named[0], named[1])
            # A node that refuses and names itself knows no better: it is asked last (below).
            if hinted != address:
                return self.table.hint(hinted, error.epoch)
        self.table.suspect(address)
        return False

    # In `call`, once set, maybe stays: a later plain refusal says nothing about an earlier
    # attempt. A question that may have arrived changed nothing; only a change leaves doubt
    # (`OutcomeUnknown`). A named node is the only one to ask: waiting helps only when it is busy.
    # The pause bounds the rate of requests, so that redirects may be followed at once again.
    def call(
        self,
        kind: Type,
        fields: Mapping[str, object],
        *,
        deadline: float,
        to: str = ANY,
        repeat: bool = True,
    ) -> Steps[Frame]:
        """Ask the master, any node or the node named ``to`` until there is a good answer.

        A node that is named is asked once: no other node can answer for it.

        Args:
            kind: Type of the request.
            fields: Its fields.
            deadline: See `now`.
            to: ``master``, ``any`` or a node's name.
            repeat: Whether carrying it out twice is the same as once.

        Raises:
            OutcomeUnknown: It may have been carried out, and ``repeat`` forbade asking again or
                the deadline came first.
            TwinlogError: What the node refused it with, or Unavailable.
        """
        attempt, turns, maybe, named = 0, 0, False, to not in (ANY, MASTER)
        last: TwinlogError = Unavailable("the deadline had passed before a node was asked")
        while True:
            try:
                address = yield from self.address_of(to, deadline)
            except Unavailable as error:
                raise self._result(kind, error, maybe) from None
            left = deadline - self.now
            if left <= 0:
                raise self._result(kind, last, maybe)
            frame, turns = Frame(kind, fields=dict(fields)), turns + 1
            try:
                seconds = left if named or not repeat else min(left, _patience(kind))
                found = yield from self._attempt(address, frame, seconds, to)
                if isinstance(found, Frame):
                    return found
                last = found
                if not last.retryable or (named and last.code != "busy"):
                    raise last
                if self.redirect(last, address) and turns <= REDIRECTS_MAX:
                    continue
            except LinkDown as down:
                self.table.suspect(address, down.stranger)
                maybe = maybe or (down.sent and schema.CALLS[kind].repeat is schema.Repeat.CHANGE)
                last = down.error(to if named else address)
                moved = named and not down.sent and (yield from self._moved(to, address, deadline))
                if moved and turns <= REDIRECTS_MAX:
                    continue
                if (maybe and not repeat) or named or self.table.stranger is not None:
                    raise self._result(kind, last, maybe) from None
            if not (yield from self._pause(attempt, deadline)):
                raise self._result(kind, last, maybe)
            attempt, turns = attempt + 1, 0
            if to == MASTER:
                yield from self.refresh(deadline)

    def metadata(self, *, deadline: float, to: str = ANY) -> Steps[Route]:
        """Return the route with all topics, which are asked for a page at a time.

        A topic created meanwhile may be missing, as if it had been created after the answer.

        Raises:
            TwinlogError: As `call`; of a part of the pages nothing is returned.
        """
        route: Route | None = None
        after: str | None = ""
        while after is not None:
            fields = {"after": after} if after else {}
            answer = yield from self.call(Type.METADATA, fields, deadline=deadline, to=to)
            page = parse_route(answer.fields)
            self.table.learn(page)
            route = page if route is None else route.with_page(page)
            more = answer.fields.get("more")
            # Pages are sorted by name: one that does not advance would make this loop endless.
            if isinstance(more, str) and more <= after:
                raise FrameError("fields", "METADATA answer: the next page does not come after")
            after = more if isinstance(more, str) else None
        assert route is not None, "there is a first page"
        return route

    def _attempt(
        self, address: Address, frame: Frame, seconds: float, to: str
    ) -> Steps[Frame | TwinlogError]:
        """Ask once; return the good answer, or what it was refused with."""
        answer = yield Ask(address, frame, seconds)
        assert isinstance(answer, Frame), "what an Ask is answered by"
        # R52: a master that does not know its confirm offset yet may hide acknowledged records.
        doubtful = to == MASTER and answer.fields.get("settled") is False
        if answer.is_error:
            error = error_of(answer)
            return NotMaster(f"{address} is no longer the master") if doubtful else error
        schema.check(answer)
        self.table.trust(address)
        if to != MASTER:
            return answer
        if not self._is_master(answer, address):
            return NotMaster(f"{address} is no longer the master")
        if doubtful:
            text = f"{address} does not know yet what of its log is confirmed"
            return NotYetConfirmed(text, hint="ask again")
        return answer

    def _moved(self, name: str, address: Address, deadline: float) -> Steps[bool]:
        """Say whether a node that cannot be reached serves at another address by now."""
        yield from self.refresh(deadline)
        node = self.table.route.node(name) if self.table.route else None
        return node is not None and node.address not in (None, address)

    def _is_master(self, answer: Frame, address: Address) -> bool:
        """Say whether a question for the master was answered by it, as far as the answer tells."""
        if answer.type == Type.METADATA:
            route = parse_route(answer.fields)
            self.table.learn(route)
            return route.master == address
        return answer.fields.get("role") in (None, MASTER)

    def refresh(self, deadline: float) -> Steps[None]:
        """Look for a newer route; a failure to find one is not an error: the caller asks again.

        Nor is a node's word that it is of another cluster: it may sit at an address of old.
        """
        try:
            yield from self.route(min(deadline, self.now + ATTEMPT_SECONDS), thorough=True)
        except TwinlogError:
            return

    def successor(
        self, address: Address | None, error: TwinlogError | None, deadline: float
    ) -> Steps[Address]:
        """Find the master after the node at ``address`` refused as one, or did not answer.

        Args:
            address: Who was asked last; None for the first search.
            error: What it refused with; None when it did not answer.
            deadline: See `now`.

        Raises:
            Unavailable: No node named a master before ``deadline``.
        """
        if address is not None:
            if error is not None and self.redirect(error, address) and self.table.master:
                return self.table.master
            yield from self.refresh(deadline)
        return self.table.master or (yield from self.master(deadline))

    def address_of(self, to: str, deadline: float) -> Steps[Address]:
        """Return where ``master``, ``any`` or the node named ``to`` can be asked.

        Raises:
            UsageError: The cluster has no node of that name.
            Unavailable: It serves no clients, or no node answered before the deadline.
        """
        if to == ANY:
            return self.table.candidates()[0]
        if to == MASTER:
            if self.table.master is not None:
                return self.table.master
            return (yield from self.master(deadline))
        if self.table.route is None or self.table.route.node(to) is None:
            yield from self.route(deadline)
        node = self.table.route.node(to) if self.table.route else None
        if node is None:
            names = ", ".join(n.name for n in self.table.route.nodes) if self.table.route else ""
            hint = f"the cluster has {names}"
            raise UsageError(f"there is no node {to}", code="unknown-node", hint=hint)
        if node.address is None:
            raise Unavailable(f"{to} does not serve clients ({node.state or 'state unknown'})")
        return node.address

    def _pause(self, attempt: int, deadline: float) -> Steps[bool]:
        """Wait before the next attempt; False when the deadline leaves no room for one.

        An attempt that is given no time would only turn a plain refusal into "unknown".
        """
        seconds = backoff(attempt, self._random())
        if self.now + 2 * seconds >= deadline:
            return False
        yield Pause(seconds)
        return True

    def _result(self, kind: Type, last: TwinlogError, maybe: bool) -> TwinlogError:
        if not maybe:
            return last
        text = f"{type_name(kind)} may or may not have been carried out: {last.text}"
        return OutcomeUnknown(text, hint="look before repeating it")


def _patience(kind: Type) -> float:
    """Return how long one attempt may take."""
    match schema.CALLS[kind].repeat:
        case schema.Repeat.QUESTION:
            return ATTEMPT_SECONDS
        case schema.Repeat.SEARCH:
            return math.inf  # a second attempt would only begin a second search
        case schema.Repeat.CHANGE:
            return CHANGE_SECONDS
