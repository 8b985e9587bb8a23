"""Who is where: what a client knows of the cluster, and whom it asks next.

A `Route` is one METADATA answer. The `RoutingTable` keeps the newest one and the list it was born
with. Knowledge has an epoch: an answer of a smaller epoch than one seen before is ignored, because
it comes from a node that has not yet heard of its successor. The table never forgets the largest
epoch, also when the route it came with turns out to be dead.

Not here: connections and waiting (``twinlog.session.session``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, cast

from twinlog.errors import TopicClosed, TwinlogError, UnknownTopic, UsageError
from twinlog.session.link import Expected
from twinlog.units import parse_whole
from twinlog.wire.frames import FrameError

PORT_DEFAULT: Final = 7410
"""Client port of the first node that ``config init`` writes."""


class Address(NamedTuple):
    """Where a node serves clients."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``host:port``, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_endpoints(endpoints: str | Iterable[str]) -> tuple[Address, ...]:
    """Return the addresses in ``"host:port,host:port"`` or a list of ``"host:port"``.

    Raises:
        UsageError: No address, or text that is not one.

    >>> [str(address) for address in parse_endpoints("10.0.0.1, [::1]:7420")]
    ['10.0.0.1:7410', '[::1]:7420']
    """
    if not isinstance(cast("object", endpoints), Iterable):
        raise UsageError.other_type("endpoints", 'text as "host:port" or a list of it', endpoints)
    parts = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    found = tuple(_address(part.strip()) for part in parts if part.strip())
    if not found:
        raise UsageError("no node is named", hint="name at least one, such as 127.0.0.1:7410")
    return found


def _address(text: str) -> Address:
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        host = host if closed else ""
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = parse_whole(port) if port else PORT_DEFAULT
    if not host or number is None or not 0 < number < 65536:
        raise UsageError(
            f"{text!r} is not an address", hint="write host:port, such as 127.0.0.1:7410"
        )
    return Address(host, number)


@dataclass(frozen=True, slots=True)
class Node:
    """One node as METADATA tells it; a port of 0 is not served.

    Attributes:
        age: Seconds since the node last published itself.
    """

    name: str
    group: str
    host: str
    client_port: int
    slave_port: int = 0
    http_port: int = 0
    role: str = ""
    state: str = ""
    age: float = 0.0

    @property
    def address(self) -> Address | None:
        """Where it serves clients; None when it does not."""
        return Address(self.host, self.client_port) if self.host and self.client_port else None


@dataclass(frozen=True, slots=True)
class Route:
    """One answer to METADATA.

    Attributes:
        leader: Name of the master; None: there is no master.
        topics: Number of queues by topic name.
        writable: How many queues take messages, of topics where not all do.
        batched: Names of those whose queues are batch queues.
        family: 4 or 6: the address family of every store host, so of every record's length.
        message_size_max: Largest body, bytes.
    """

    cluster: str
    group: str
    epoch: int
    leader: str | None
    nodes: tuple[Node, ...]
    topics: Mapping[str, int]
    family: int
    message_size_max: int
    batched: frozenset[str] = frozenset()
    writable: Mapping[str, int] = field(default_factory=dict[str, int])

    def takes(self, topic: str) -> int:
        """Return how many queues of a topic take messages, from the first on.

        Raises:
            UnknownTopic: It does not exist.
            TopicClosed: It may not be written.
        """
        queues = self.topics.get(topic)
        if queues is None:
            raise UnknownTopic.named(topic)
        found = self.writable.get(topic, queues)
        if not found:
            hint = f"allow it: twinlog topic alter {topic} --perm rw"
            raise TopicClosed(f"topic {topic} may not be written", hint=hint)
        return min(found, queues)

    def node(self, name: str) -> Node | None:
        """Return the node of that name."""
        return next((node for node in self.nodes if node.name == name), None)

    def with_page(self, page: Route) -> Route:
        """Return the newer ``page`` with the topics of the pages before it, too."""
        return replace(
            page, topics={**self.topics, **page.topics}, batched=self.batched | page.batched,
            writable={**self.writable, **page.writable},
        )  # fmt: skip

    @property
    def master(self) -> Address | None:
        """Where the master serves clients, None while there is no master."""
        node = self.node(self.leader) if self.leader else None
        return node.address if node else None


def parse_route(fields: Mapping[str, object]) -> Route:
    """Return the route in the fields of a METADATA answer that `shapes.check` has passed.

    Raises:
        FrameError: ``fields``: a node or a topic is not what it must be.
    """
    leader = fields.get("leader")
    topics = _topics(fields["topics"])
    nodes = fields["nodes"]
    batched = cast("list[str]", fields.get("batched") or [])
    assert isinstance(nodes, list), "shapes.check"
    return Route(
        cluster=_text(fields, "cluster"),
        group=_text(fields, "group"),
        epoch=_whole(fields, "epoch"),
        leader=leader if isinstance(leader, str) else None,
        nodes=tuple(_node(entry) for entry in nodes),  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        topics=topics,
        family=_whole(fields, "family"),
        message_size_max=_whole(fields, "message_size_max"),
        batched=frozenset(batched),
        writable=_writable(fields.get("writable")),
    )


def _node(entry: object) -> Node:
    if not isinstance(entry, dict):
        raise FrameError("fields", "METADATA answer: a node must be a map")
    fields: dict[str, object] = entry  # pyright: ignore[reportUnknownVariableType]
    age = fields.get("age")
    return Node(
        name=_text(fields, "name"),
        group=_text(fields, "group"),
        host=_text(fields, "host"),
        client_port=_whole(fields, "client_port"),
        slave_port=_whole(fields, "slave_port"),
        http_port=_whole(fields, "http_port"),
        role=_text(fields, "role"),
        state=_text(fields, "state"),
        age=float(age) if isinstance(age, int | float) else 0.0,
    )


def _topics(value: object) -> Mapping[str, int]:
    found: dict[str, int] = {}
    if isinstance(value, dict):
        entries: dict[object, object] = value  # pyright: ignore[reportUnknownVariableType]
        for name, queues in entries.items():
            if not isinstance(name, str) or type(queues) is not int or queues < 1:
                raise FrameError("fields", f"METADATA answer: topic {name!r} has odd queues")
            found[name] = queues
    return found


def _writable(value: object) -> Mapping[str, int]:
    if not isinstance(value, dict):
        return {}
    entries = cast("Mapping[object, object]", value)
    return {
        name: queues
        for name, queues in entries.items()
        if isinstance(name, str) and type(queues) is int and queues >= 0
    }


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise FrameError("fields", f"METADATA answer: {name} must be text")
    return value or ""


def _whole(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if value is not None and type(value) is not int:
        raise FrameError("fields", f"METADATA answer: {name} must be a whole number")
    return value or 0


@dataclass(slots=True)
class RoutingTable:
    """The newest route and where to look for a newer one.

    Attributes:
        bootstrap: What the client was given; always asked too.
        expected: The cluster that it was given; None: the one of the first answer.
        route: The newest answer, None before the first.
        epoch: The largest epoch seen anywhere.
    """

    bootstrap: tuple[Address, ...]
    expected: Expected | None = None
    route: Route | None = None
    epoch: int = 0
    _hinted: Address | None = None
    _suspects: dict[Address, TwinlogError | None] = field(
        default_factory=dict[Address, "TwinlogError | None"]
    )

    @property
    def required(self) -> Expected | None:
        """The cluster that must answer: the given one, else that of the first answer."""
        if self.expected is not None or self.route is None:
            return self.expected
        return Expected(self.route.cluster, "the first node that answered this client")

    @property
    def stranger(self) -> TwinlogError | None:
        """Why there is no node to ask: every address that is known answers for another cluster."""
        found: TwinlogError | None = None
        for address in self.candidates():
            found = self._suspects.get(address)
            if found is None:
                return None
        return found

    def learn(self, route: Route) -> bool:
        """Take ``route`` unless it is of a smaller epoch, or of another cluster; say whether."""
        required = self.required
        other = required is not None and route.cluster != required.cluster
        # A smaller epoch comes from a node that has not heard of the failover: believing it leads
        # back.
        if route.epoch < self.epoch or other:
            return False
        self.route, self.epoch, self._hinted = route, route.epoch, None
        return True

    def hint(self, address: Address | None, epoch: int) -> bool:
        """Take a node's word for who is master; say whether it names one worth asking at once."""
        if epoch < self.epoch or address is None:
            return False
        self.epoch = epoch
        self._hinted = address
        # A hint to a silent node is kept, but not followed at once: the pause comes first.
        return address not in self._suspects

    def forgive(self) -> None:
        """Forget who did not answer: everybody is worth another try."""
        self._suspects.clear()

    @property
    def master(self) -> Address | None:
        """Where the master should be."""
        return self._hinted or (self.route.master if self.route else None)

    def suspect(self, address: Address, stranger: TwinlogError | None = None) -> None:
        """Note that ``address`` did not answer: it is asked last, and a hint to it is dropped.

        ``stranger``: another cluster did, with this error.
        """
        self._suspects.pop(address, None)
        self._suspects[address] = stranger
        if self._hinted == address:
            self._hinted = None

    def suspected(self, address: Address) -> bool:
        """Say whether ``address`` did not answer when it was last asked."""
        return address in self._suspects

    def trust(self, address: Address) -> None:
        """Note that ``address`` answered."""
        self._suspects.pop(address, None)

    def candidates(self) -> list[Address]:
        """Return every known address, the most promising first, suspects last."""
        known: dict[Address, None] = {}
        if self.master is not None:
            known[self.master] = None
        for node in self.route.nodes if self.route else ():
            if node.address is not None:
                known[node.address] = None
        for address in self.bootstrap:
            known[address] = None
        # Suspects in the order in which they failed: the one silent for the longest is retried
        # first.
        good = [address for address in known if address not in self._suspects]
        return good + [address for address in self._suspects if address in known]
