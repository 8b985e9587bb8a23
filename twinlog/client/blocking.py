"""The blocking client: plain sockets, no thread of its own, no event loop.

One `Client` keeps one connection to each node it talks to, and one for each topic and
acknowledgement that it sends single messages with: at most 64, the least recently used is given up
for the next (``twinlog.producer.single_sends``). Producers and readers have their own.

Many threads may share a client: questions run side by side, single messages to the same topic take
turns. A producer, and the iterator of a read, belong to one thread at a time. After a fork the
child opens connections of its own. Pickling a client pickles its settings, so Spark workers can be
handed one.

Three outcomes: a call returns (done), raises `OutcomeUnknown` (it may be done), or raises another
`TwinlogError` (not done). Retries, redirects to the master and duplicates after a failover are
dealt with inside, within one deadline for each call.

Times are seconds, or text with a unit (``"2 ms"``); sizes are bytes, or text (``"256 KiB"``).

Not here: decisions (``session``, ``producer``, ``consumer``); ``AsyncClient``
(``twinlog.client.aio``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, Self, Unpack, overload

from twinlog.client.arguments import (
    AnyConsumeFields,
    BroadcastFields,
    ConsumeFields,
    Duration,
    Size,
    awaited,
    broadcast_settings,
    expected_of,
    group_settings,
    producer_settings,
    read_settings,
    seconds_of,
    shared_settings,
)
from twinlog.client.calls import Calls, place_of
from twinlog.client.checks import Answering, Decide, answer
from twinlog.client.one_way import OneWay, OneWaySends
from twinlog.client.search import FOUND_DEFAULT, Finding, Search
from twinlog.client.topics import TopicMethods
from twinlog.client.transactions import Sent, Transaction
from twinlog.consumer.blocking import Messages
from twinlog.consumer.core import Cursor
from twinlog.consumer.start_offsets import survey
from twinlog.errors import OffsetBeyond, UnknownGroup
from twinlog.format.address import parse_address
from twinlog.format.compression import parse_compression
from twinlog.format.messages import Message, Receipt
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP
from twinlog.groups.blocking import Broadcast, Consumer, Deliveries
from twinlog.groups.seat import BROADCAST
from twinlog.groups.settings import SHARED
from twinlog.groups.telling import GroupSteps, Telling, asked_node
from twinlog.producer.blocking import Producer
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage, packed
from twinlog.producer.settings import ProducerSettings
from twinlog.producer.single_sends import Senders
from twinlog.ranges import parse_range
from twinlog.session.caller import Caller
from twinlog.session.connection import secure_of
from twinlog.session.link import Expected
from twinlog.session.login import shown
from twinlog.session.routing import Route, parse_endpoints
from twinlog.session.session import ANY, MASTER, Steps
from twinlog.session.tls_files import Tls
from twinlog.units import KiB
from twinlog.wire.frames import Frame, Type


class Client(TopicMethods, OneWaySends):
    """See the module.

    Args:
        endpoints: ``"host:port,host:port"`` or a list; any node of the cluster will do.
        timeout: How long one call may take, retries and a failover included.
        name: What nodes may log about this client.
        cluster: Name of the cluster that must answer: a node of another one gets no request, and
            calls raise `UsageError`, code ``other-cluster``. None: the first that answers; from
            then on no other.
        tls: The files for TLS, or the path of the authority's certificate alone; None: those that
            ``TWINLOG_TLS_CA``, ``TWINLOG_TLS_CERT`` and ``TWINLOG_TLS_KEY`` of the environment
            name, else no TLS is spoken. Changed files are read again at the next connection. A
            node that does not speak TLS, or whose certificate is refused, gets no request: calls
            raise `UsageError`, code ``tls``.
        user: Who we are, for clusters that ask (docs/access.md); default: ``TWINLOG_USER`` of the
            environment.
        password: Of that user; default: in the file ``TWINLOG_PASSWORD_FILE``, or
            ``TWINLOG_PASSWORD``. It is not sent. A wrong one, and what rules do not allow, is
            `Denied`.

    Raises:
        UsageError: An endpoint is not an address, or a user has no password.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] = "127.0.0.1:7410",
        *,
        timeout: Duration = 30.0,
        name: str = "twinlog-python",
        cluster: str | Expected | None = None,
        tls: Tls | str | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self.name = name
        self.timeout = seconds_of(timeout)
        self._endpoints = parse_endpoints(endpoints)
        self.cluster = cluster
        self.tls = shown(tls, user, password)
        login = None if self.tls is None else self.tls.login
        self._caller = Caller(
            self._endpoints, name=name, expected=expected_of(cluster),
            secure=secure_of(self.tls), login=login,
        )  # fmt: skip
        self._calls = Calls(self._caller.session)
        self._senders: Senders[Producer] = Senders()
        self._one_way = OneWay(self._caller, self.timeout)
        self._choosing = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings."""
        endpoints = tuple(str(address) for address in self._endpoints)
        return partial(
            Client, endpoints, timeout=self.timeout, name=self.name, cluster=self.cluster,
            tls=self.tls,
        ), ()  # fmt: skip

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; after an error nothing more is waited for."""
        if kind is not None:
            self._one_way.forget()
        self.close()

    def close(self) -> None:
        """Close all connections; the client can be used again and opens new ones.

        Raises:
            TwinlogError: What `flush` says of one-way messages; they are waited for at most 5 s.
        """
        try:
            self._one_way.close()
        finally:
            self._caller.close()
            with self._choosing:
                self._close_senders()

    def _close_senders(self) -> None:
        for sender in self._senders:
            sender.close()
        self._senders.clear()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        acknowledge: str = "confirmed",
        compress: str | None = None,
        timeout: Duration | None = None,
        **message: Unpack[MessageFields],
    ) -> Receipt:
        """Send one message and return where it was stored.

        Args:
            topic: Name.
            body: The message.
            acknowledge: ``written``, ``flushed``, ``replicated`` or ``confirmed``. A message with
                the property ``WAIT=false`` waits for ``written`` only, as in RocketMQ.
            compress: ``none``, ``zlib``, ``lz4`` or ``zstd``, perhaps with a level (``zlib:9``):
                what is done to a body of 4 KiB or more when that makes it smaller.
            timeout: Instead of the client's.
            message: The fields of `NewMessage`: ``key``, ``tag``, ``order_key``, ``properties``,
                ``light``, ``queue``, ``born_ms``, ``delay_level``,
                ``delay``, ``at``, ``transaction``.

        Raises:
            OutcomeUnknown: It may or may not be stored.
            TwinlogError: It is not stored.
        """
        said = NewMessage(**message) if message else PLAIN
        if said.properties:
            acknowledge = awaited(acknowledge, said)
        stored, flags = packed(parse_compression(compress), body)
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        sender = self._borrow(topic, acknowledge)
        try:
            section = sender.one(seconds, stored, said, flags)
        finally:
            with self._choosing:
                self._senders.give_back((topic, acknowledge))
        return section.receipt()

    def _borrow(self, topic: str, acknowledge: str) -> Producer:
        """Return the sender of a topic, which is not closed before it is given back."""
        self._own_process()
        with self._choosing:
            sender = self._senders.get(topic, acknowledge) or self._sender(topic, acknowledge)
            self._senders.take(topic, acknowledge)
            return sender

    def _sender(self, topic: str, acknowledge: str) -> Producer:
        """Make and keep a sender; in the place of another one, and with its connection, if full."""
        settings = ProducerSettings(acknowledge=acknowledge, timeout=self.timeout, window=1)
        oldest = self._senders.remove_oldest(lambda _: True) if self._senders.full else None
        left = oldest.leave() if oldest is not None else None
        origin = self._senders.origin(acknowledge)
        sender = Producer(self._caller, topic, settings, origin=origin)
        sender.take_over(left)
        self._senders.add(topic, acknowledge, sender)
        return sender

    def producer(
        self,
        topic: str,
        *,
        acknowledge: str = "confirmed",
        batch: Size = 256 * KiB,
        linger: Duration = 0.002,
        window: int = 5,
        compress: str | None = None,
        timeout: Duration | None = None,
    ) -> Producer:
        """Return a producer for many messages to ``topic``; see `Producer` and `ProducerSettings`.

        Raises:
            UsageError: A setting is out of its limits.
        """
        self._own_process()
        seconds = self.timeout if timeout is None else timeout
        settings = producer_settings(
            acknowledge=acknowledge,
            batch=batch,
            linger=linger,
            window=window,
            compress=compress,
            timeout=seconds,
        )
        return Producer(self._caller, topic, settings)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def read(
        self,
        topic: str,
        range: str = "start:",
        *,
        queue: int | None = None,
        tag: str | None = None,
        where: str | None = None,
        read_from: str = ANY,
        limit: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
        max_staleness: Duration | None = None,
    ) -> Messages:
        """Yield the messages in ``range`` of each queue, in order within a queue.

        Args:
            topic: Name.
            range: See ``twinlog.ranges``.
            queue: Only this queue.
            tag: Only messages with this tag; several as ``"a || b"``.
            where: Only messages whose properties match this filter; see ``twinlog.filters.sql92``.
            read_from: ``any``, ``master``, ``slave`` (the master only while no slave answers) or
                a node's name (only that node).
            limit: At most this many messages in all.
            follow: At the end wait for more, for ever.
            timeout: Instead of the client's: how long there may be no progress (`ReadSettings`).
            max_staleness: How old the data may be: seconds, text with a unit, or ``any``. Then a
                copy is read while there is no master. None: as old as nodes are set to serve it.

        The result tells with `source` who served the last answer, and how old its data may be.

        Raises:
            RangeError, FilterError, UsageError: ``range``, ``where`` or ``limit`` is not valid.
            OffsetGone, OffsetBeyond: Named offsets that are not there.
            NotYetConfirmed, Unavailable: No node could serve for ``timeout``.
            UnknownTopic, Corrupt: As they say.
        """
        self._own_process()
        seconds = self.timeout if timeout is None else timeout
        settings = read_settings(
            topic, read_from=read_from, tag=tag, where=where, limit=limit, follow=follow,
            timeout=seconds, max_staleness=max_staleness, every=queue is None,
        )  # fmt: skip
        wanted = parse_range(range)

        def begin() -> Steps[list[Cursor]]:
            deadline = time.monotonic() + settings.to_begin(self.timeout)
            return survey(
                self._caller.session, settings, wanted, queue=queue, deadline=deadline,
                wall_ms=time.time_ns() // 1_000_000,
            )  # fmt: skip

        return Messages(self._caller, settings, begin)

    def get(
        self,
        address: str,
        *,
        read_from: str = MASTER,
        timeout: Duration | None = None,
        max_staleness: Duration | None = None,
    ) -> Message:
        """Return the message at ``topic/queue@offset``, ``log@offset`` or a message id.

        Args:
            address: A message id is RocketMQ's: store host and log offset in hex.
            read_from: ``master``, ``any``, ``slave`` or a node's name.
            timeout: Instead of the client's.
            max_staleness: How old the data may be: seconds, text with a unit, or ``any``. Then a
                copy is read while there is no master. None: as old as nodes are set to serve it.

        Raises:
            UsageError: It is not an address, nothing begins there, or the id is of another store.
            NotYetConfirmed: It is stored but not confirmed.
        """
        topic, queue, offset = parse_address(address)
        if topic:
            wanted = f"{offset}:{offset + 1}"
            found = self.read(
                topic, wanted, queue=queue, read_from=read_from, timeout=timeout,
                max_staleness=max_staleness,
            )  # fmt: skip
            for message in found:
                return message
            raise OffsetBeyond(f"nothing is stored at {address} yet", end=offset)
        seconds = self._seconds(timeout)
        steps = self._calls.message(
            address, read_from=read_from, timeout=seconds, max_staleness=max_staleness
        )
        return self._caller.run(steps)

    def cancel(self, sent: Receipt | str, *, timeout: Duration | None = None) -> None:
        """Take back a message that waits for a time: on return it will never be delivered.

        The answer is final, whatever fails meanwhile; asked again, it is the same.

        Args:
            sent: What `send` with ``delay`` or ``at`` returned, or the address of it.
            timeout: Instead of the client's.

        Raises:
            TooLate: It was delivered, or is on its way.
            UsageError: Nothing waits there, code ``not-waiting``; or it is not an address.
        """
        message = self.get(place_of(sent), timeout=timeout)
        self._caller.run(self._calls.cancel(message, self._seconds(timeout)))

    def transaction(self, group: str, *, check_after: Duration | None = None) -> Transaction:
        """Return a transaction: ``with client.transaction("shop") as tx: tx.send(...)``.

        ``group`` names the producers that may end it, and that are asked (`answer_checks`) if
        nothing has: for the first time ``check_after`` its first message. See `Transaction`.
        """
        return Transaction(Sent(group, check_after), self.send, self._end)

    def answer_checks(self, group: str, decide: Decide, *, duration: Duration | None = None) -> int:
        """Answer, as a producer of ``group``, what became of transactions that nothing has ended.

        Returns how many were ended. ``decide`` looks up a `Check` and returns ``"commit"``,
        ``"rollback"``, or None: not known now, ask later; its errors end this.

        Args:
            group: As of `transaction`.
            decide: See above.
            duration: For how long; 0: what is due now; None: until an error.

        Raises:
            TwinlogError: No master answered for the client's ``timeout``.
        """
        seconds = None if duration is None else seconds_of(duration)
        answering = Answering(self._caller.session, group, self.timeout, seconds)
        return answer(self._caller, answering, decide)

    def _end(self, sent: Sent, outcome: int, timeout: Duration | None) -> None:
        self._caller.run(sent.end(self._calls, outcome, self._seconds(timeout)))

    def find(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int | None = None,
        most: int = FOUND_DEFAULT,
        unique: bool = False,
        read_from: str = MASTER,
        timeout: Duration | None = None,
        max_staleness: Duration | None = None,
    ) -> Finding:
        """Return the messages with a key, newest first.

        Args:
            topic: Name.
            key: One of a message's keys, or its unique id.
            begin: Stored at or after, ms since 1970.
            end: Stored at or before, ms since 1970.
            most: At most this many messages.
            unique: Look for the unique id alone.
            read_from: ``master``, ``any``, ``slave`` or a node's name.
            timeout: Instead of the client's.
            max_staleness: How old the data may be: seconds, text with a unit, or ``any``. Then a
                copy is read while there is no master. None: as old as nodes are set to serve it.

        Raises:
            UnknownTopic: There is no such topic.
            Unavailable: No node could answer; code ``index-off``: the node keeps no key index.
            UsageError: It is not a key, or a number is out of its limits.
        """
        search = Search(topic, key, begin, end, most, unique)
        seconds = self._seconds(timeout)
        steps = self._calls.find(
            search, read_from=read_from, timeout=seconds, max_staleness=max_staleness
        )
        return self._caller.run(steps)

    # ── consuming ───────────────────────────────────────────────────────────────────────────────

    @overload
    def consume(
        self, topics: str | Sequence[str], group: str, *, mode: Literal["broadcast"],
        **options: Unpack[BroadcastFields],
    ) -> Broadcast: ...  # fmt: skip
    @overload
    def consume(
        self, topics: str | Sequence[str], group: str, *,
        mode: Literal["shared", "ordered"] = "shared", **options: Unpack[ConsumeFields],
    ) -> Deliveries: ...  # fmt: skip
    def consume(
        self, topics: str | Sequence[str], group: str, *, mode: str = SHARED,
        **options: Unpack[AnyConsumeFields],
    ) -> Deliveries | Broadcast:  # fmt: skip
        """Yield the messages that a group has to handle, as one of its members.

        Each is acknowledged when the next one is asked for. A loop that is left by an error or by
        ``break`` counts its message as failed; it comes again after the group's back-off. Messages
        that were fetched ahead are given back, and the member leaves the group.

        With ``mode="broadcast"`` each named member is given all messages of one topic, in the order
        of each queue, and has positions of its own; see `Broadcast`.

        Args:
            topics: One topic or several.
            group: Name; a group that does not exist is made, and begins at the end of its topics.
            mode: ``shared``, ``ordered`` (the messages of a queue are handled one after the other)
                or ``broadcast``; what the group is.
            options: See `ConsumeFields`, of broadcast members `BroadcastFields`.

        Raises:
            LeaseLost: A body took longer than its lease, and the message was handed out again.
            UnknownGroup, GroupDiffers: The group does not exist, or has another mode or filter.
            Unavailable: No master answered for ``timeout``.
        """
        if mode == BROADCAST:
            self._own_process()
            return Broadcast(
                self._caller, *broadcast_settings(group, topics, options, self.timeout)
            )
        settings = shared_settings(
            group, topics, mode, fields=options, name=self.name, seconds=self.timeout
        )
        self._own_process()
        return Deliveries(Consumer(self._caller, settings))

    def consumer(
        self, group: str, topics: str | Sequence[str], *, mode: str = SHARED,
        **options: Unpack[ConsumeFields],
    ) -> Consumer:  # fmt: skip
        """Return a member of a group that says itself what became of each message.

        Args:
            group: Name; as `consume`.
            topics: One topic or several.
            mode: ``shared`` or ``ordered``: the next message of a queue comes once the one before
                is settled.
            options: See `ConsumeFields`.

        Raises:
            FilterError, UsageError: An option is not valid.
        """
        self._own_process()
        settings = group_settings(
            group, topics, mode, fields=options, name=self.name, seconds=self.timeout
        )
        return Consumer(self._caller, settings)

    def history(
        self,
        group: str,
        *,
        since: str = "start",
        read_from: str = ANY,
        timeout: Duration | None = None,
        max_staleness: Duration | None = None,
    ) -> GroupSteps:
        """Yield what a group did, oldest first: members, leases, what became of messages.

        It is read from the log, so it reaches back as far as that is kept, over all failovers.

        Args:
            group: Name; of a group that was deleted, too.
            since: ``start``, or a time as ``-1h`` or ``2026-11-21T10:00Z``.
            read_from: ``any``, ``master``, ``slave`` or a node's name.
            timeout: Instead of the client's: how long there may be no progress.
            max_staleness: How old the data may be; as `read`.

        Raises:
            UnknownGroup: There is no such group, and the log tells of none since then.
            RangeError: ``since`` is not a time.
        """
        told = Telling(group, since)
        try:
            fields = {"op": "show", "name": group}
            node = asked_node(read_from)
            told.know(self.call(node, Type.GROUP, fields, timeout=timeout).fields)
        except UnknownGroup as error:
            told.missing = error
        rows = self.read(
            SYSTEM_TOPIC_GROUP, told.range, read_from=read_from, timeout=timeout,
            max_staleness=max_staleness,
        )  # fmt: skip
        return GroupSteps(told, rows)

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    def metadata(self, *, timeout: Duration | None = None) -> Route:
        """Return what a node says of the cluster now: nodes, master, topics."""
        return self._caller.run(self._calls.metadata(self._seconds(timeout)))

    def call(
        self,
        node: str,
        kind: Type,
        fields: Mapping[str, object] | None = None,
        *,
        timeout: Duration | None = None,
        repeat: bool = True,
    ) -> Frame:
        """Ask one node (by name), ``master`` or ``any``, and return its good answer.

        Args:
            node: Whom to ask; a node that is named is asked once.
            kind: Type of the request.
            fields: Its fields.
            timeout: Instead of the client's.
            repeat: Whether carrying it out twice is the same as once.

        Raises:
            OutcomeUnknown: It may have been carried out.
            TwinlogError: What the node refused it with, or Unavailable.
        """
        steps = self._calls.ask(node, kind, fields or {}, self._seconds(timeout), repeat=repeat)
        return self._caller.run(steps)

    def _own_process(self) -> None:
        """Forget the parent's connections after a fork; they go on being the parent's."""
        if self._caller.forked():
            self._choosing = threading.Lock()
            self._close_senders()
            self._one_way.forget()


def caller_of(client: Client) -> Caller:
    """Return what carries out a client's calls: for the other parts of this package."""
    return client._caller  # pyright: ignore[reportPrivateUsage]
