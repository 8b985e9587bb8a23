"""Each request against each right that it needs: with it, without it, and who is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from node.access.gate import NEEDS, Gate
from node.access.grants import Grants
from node.access.visitor import Visitor
from storage.state.access import NOBODY, Access, Rule, User
from twinlog.errors import Denied, TwinlogError, UsageError
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.format.system_topics import DELAY_TOPIC, HALF_TOPIC, TIMER_TOPIC
from twinlog.format.waiting.delay_levels import REAL_QUEUE, REAL_TOPIC
from twinlog.session.link import Link, Peer
from twinlog.session.tls_files import Login
from twinlog.wire import frames, scram
from twinlog.wire.frames import Frame, Type
from twinlog.wire.rights import Need
from twinlog.wire.schema import CALLS

KEPT = scram.verifier("open sesame", b"saltsalt", 4096)
SECTION = ["orders", 0, 1, 4, 0, 0, 0]
MEMBER = {"group": "billing", "member": 1}
POP = {
    **MEMBER, "pop": 1, "topics": ["orders"], "max_records": 1, "max_bytes": 1,
    "invisible_ms": 0, "wait_ms": 0,
}  # fmt: skip
READ_ORDERS: Need = ("read", "topic", "orders")
WRITE_ORDERS: Need = ("write", "topic", "orders")
READ_BILLING: Need = ("read", "group", "billing")
OPERATE: Need = ("operate", "cluster", "")
MANY = {"ack": "confirmed", "timeout_ms": 1, "sections": [SECTION, ["bills", *SECTION[1:]]]}
BILLS: Need = ("write", "topic", "bills")

Case = tuple[Type, Mapping[str, object], list[Need]]
CASES: list[Case] = [
    (Type.METADATA, {}, []),
    (Type.METADATA, {"topics": ["orders"]}, [("see", "topic", "orders")]),
    (Type.APPEND, MANY, [WRITE_ORDERS, BILLS]),
    (
        Type.READ,
        {
            "topic": "orders",
            "queue": 0,
            "offset": 0,
            "max_bytes": 1,
            "max_records": 1,
            "wait_ms": 0,
        },
        [READ_ORDERS],
    ),
    (Type.OFFSETS, {"topic": "orders"}, [READ_ORDERS]),
    (Type.TOPIC, {"op": "list"}, []),
    (Type.TOPIC, {"op": "show", "name": "orders"}, [("see", "topic", "orders")]),
    (Type.TOPIC, {"op": "create", "name": "orders"}, [("manage", "topic", "orders")]),
    (Type.TOPIC, {"op": "later", "name": "orders"}, [("manage", "topic", "orders")]),
    (Type.GET, {"log_offset": 1}, []),
    (Type.FIND, {"topic": "orders", "key": "k"}, [READ_ORDERS]),
    (Type.LOG, {"offset": 0, "max_bytes": 1}, [OPERATE]),
    (Type.STATUS, {}, []),
    *[(Type.ADMIN, {"op": op}, [OPERATE]) for op in ("stop", "transfer", "promise", "later")],
    (Type.PRODUCER, {}, []),
    (Type.GROUP, {"op": "list"}, []),
    (Type.GROUP, {"op": "show", "name": "billing"}, [("see", "group", "billing")]),
    *[
        (Type.GROUP, {"op": op, "name": "billing"}, [("manage", "group", "billing")])
        for op in ("create", "alter", "delete", "reset", "skip", "later")
    ],
    (
        Type.JOIN,
        {**MEMBER, "name": "m", "topics": ["orders"], "mode": "shared", "session_ms": 0},
        [READ_BILLING, READ_ORDERS],
    ),
    (Type.BEAT, {**MEMBER, "generation": 0, "finished": [], "wait_ms": 0}, [READ_BILLING]),
    (Type.POP, POP, [READ_BILLING, READ_ORDERS]),
    (Type.SETTLE, {**MEMBER, "rows": []}, [READ_BILLING]),
    (Type.COMMIT, {**MEMBER, "generation": 0, "rows": []}, [READ_BILLING]),
    (
        Type.TOGETHER,
        {**MANY, **MEMBER, "generation": 0, "settles": [], "commits": []},
        [WRITE_ORDERS, BILLS, READ_BILLING],
    ),
    (Type.END, {"group": "billing", "halves": [1], "outcome": 1}, [READ_BILLING]),
    (Type.CHECKS, {"group": "billing", "max": 1, "wait_ms": 0}, [READ_BILLING]),
    (Type.WAITING, {"what": "halves", "first": 0, "limit": 1}, [OPERATE]),
    (Type.CANCEL, {"log_offset": 7, "due_ms": 1}, [WRITE_ORDERS]),
    (Type.ACCESS, {"op": "self"}, []),
    *[(Type.ACCESS, {"op": op}, [OPERATE]) for op in ("list", "check", "change", "later")],
]
BEFORE_LOGIN = {Type.HELLO, Type.LOGIN}
IDS = [f"{kind.name}-{fields.get('op', number)}" for number, (kind, fields, _) in enumerate(CASES)]


class World:
    """A gate over users and rules that the test changes."""

    def __init__(self, *rules: Rule) -> None:
        users = {"alice": User("alice", ("shop",), KEPT), "bob": User("bob")}
        self.access = Access(users, frozenset(rules))
        self.told: list[tuple[str, dict[str, object]]] = []
        self.gate = Gate(lambda: self.access, "the operator's", self._tell, self._draw)
        self._drawn = 0

    def _tell(self, name: str, level: str, **facts: object) -> None:
        self.told.append((name, facts))

    def _draw(self) -> str:
        self._drawn += 1
        return f"random-{self._drawn}"

    def visitor(self, user: str | None = "alice") -> Visitor:
        """Someone with a certificate."""
        return Visitor(self.gate, "10.0.0.9:1", user)


def rules_for(needs: list[Need]) -> list[Rule]:
    """One rule for each need."""
    given = {"see": "manage"}
    return [
        Rule("@shop", given.get(right, right), thing if thing == "cluster" else f"{thing}:{name}")
        for right, thing, name in needs
    ]


def asked(
    world: World, kind: Type, fields: Mapping[str, object], user: str | None = "alice"
) -> None:
    """Ask for admission; the record at every log offset waits for topic orders."""
    world.visitor(user).admit(Frame(kind, fields=dict(fields)), lambda offset: "orders")


def test_every_request_has_a_case() -> None:
    """A new request is in this table, too."""
    assert (
        {kind for kind, _, _ in CASES} | BEFORE_LOGIN
        == set(CALLS)
        == {kind for kind in Type if int(kind) in NEEDS}
    )


@pytest.mark.parametrize(("kind", "fields", "needs"), CASES, ids=IDS)
def test_a_request_passes_with_all_that_it_needs_and_without_any_of_it_not(
    kind: Type, fields: Mapping[str, object], needs: list[Need]
) -> None:
    """The refusal names user, right and thing; the operator passes."""
    rules = rules_for(needs)
    asked(World(*rules), kind, fields)
    asked(World(Rule("alice", "operate", "cluster")), kind, fields)
    for missing in range(len(rules)):
        world = World(*(rule for number, rule in enumerate(rules) if number != missing))
        with pytest.raises(Denied) as caught:
            asked(world, kind, fields)
        right, thing, name = needs[missing]
        what = thing if thing == "cluster" else f"{thing}:{name}"
        assert caught.value.facts == {"user": "alice", "right": right, "what": what}
        assert [told for told, _ in world.told] == ["access_denied"]
        assert not caught.value.retryable


@pytest.mark.parametrize(("kind", "fields", "needs"), CASES, ids=IDS)
@pytest.mark.parametrize("user", [None, "carol"])
def test_who_is_not_known_may_ask_nothing(
    kind: Type, fields: Mapping[str, object], needs: list[Need], user: str | None
) -> None:
    """Whatever rules there are for others."""
    with pytest.raises(Denied, match=r"who you are|no user carol") as caught:
        asked(World(*rules_for(needs)), kind, fields, user)
    assert caught.value.code == "login"


@pytest.mark.parametrize("kind", sorted(BEFORE_LOGIN))
def test_a_greeting_and_a_login_need_nothing(kind: Type) -> None:
    """Else nobody could log in."""
    world = World()
    fields: dict[str, object] = {"user": "alice", "nonce": "n"}
    if kind == Type.HELLO:
        fields = {"min": 1, "max": 1, "features": 0, "client": "x"}
    asked(world, kind, fields, None)
    assert not world.told


def test_fields_of_another_shape_are_refused_before_rights_are_read_from_them() -> None:
    """A list in the place of a name would name nothing that a rule forbids."""
    world = World(Rule("alice", "read", "topic:orders"))
    for fields in ({"topic": ["secret"]}, {}, {"topic": b"secret"}):
        with pytest.raises(UsageError) as caught:
            asked(world, Type.OFFSETS, fields)
        assert caught.value.code == "fields"


def test_prefixes_teams_and_the_topics_of_a_group() -> None:
    """What docs/access.md says of names."""
    rules = [
        Rule("alice", "read", "topic:orders-*"),
        Rule("alice", "read", "group:billing"),
        Rule("alice", "manage", "group:lab"),
        Rule("alice", "read", "topic:*"),
    ]
    some = Grants(User("alice"), rules[:3])
    assert some.may(("read", "topic", "orders-eu"))
    assert not some.may(("read", "topic", "orders"))
    assert some.may(("read", "topic", "%DLQ%billing"))
    assert not some.may(("write", "topic", "%DLQ%billing"))
    assert some.may(("write", "topic", "%RETRY%lab"))
    assert not some.may(("read", "topic", "%DLQ%lab"))
    assert some.sees("group", "lab")
    assert not some.sees("topic", "bills")
    every = Grants(User("alice"), rules)
    for own in ("rmq_sys_TWINLOG_META", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "TBW102"):
        assert not every.may(("read", "topic", own)), "the log holds what passwords are compared to"
    assert every.may(("read", "topic", "anything"))


def test_administration_is_told_of() -> None:
    """Who, what, from where; a list or a question is none."""
    world = World(Rule("alice", "manage", "topic:orders"))
    asked(world, Type.TOPIC, {"op": "create", "name": "orders"})
    asked(world, Type.TOPIC, {"op": "list"})
    asked(world, Type.TOPIC, {"op": "show", "name": "orders"})
    assert world.told == [
        (
            "access_used",
            {
                "user": "alice", "peer": "10.0.0.9:1", "request": "TOPIC", "op": "create",
                "what": "topic:orders",
            },
        )
    ]  # fmt: skip


def test_a_change_is_looked_at_although_a_request_took_it_meanwhile() -> None:
    """Others' requests go by the new rules at once; who waits is looked through all the same."""
    world = World(Rule("alice", "read", "topic:orders"))
    visitor = world.visitor()
    visitor.admit(Frame(Type.OFFSETS, fields={"topic": "orders"}), lambda offset: "")
    assert world.gate.moved()
    world.access = Access(world.access.users)
    with pytest.raises(Denied):
        world.visitor("bob").admit(
            Frame(Type.OFFSETS, fields={"topic": "orders"}), lambda offset: ""
        )
    assert world.gate.moved()
    assert visitor.robbed()
    assert not world.gate.moved()


def test_a_user_who_loses_a_right_is_robbed_and_one_who_wins_is_not() -> None:
    """Also by another password, by leaving a team, and by being removed."""
    world = World(Rule("@shop", "read", "topic:orders"))
    visitor = world.visitor()
    read = Frame(Type.OFFSETS, fields={"topic": "orders"})
    visitor.admit(read, lambda offset: "")
    alice, before = world.access.users["alice"], world.access
    more = Access(before.users, before.rules | {Rule("alice", "read", "topic:b")})
    world.access = more
    assert world.gate.moved()
    assert not visitor.robbed()
    assert not world.gate.moved()
    for users, rules in [
        ({"alice": alice}, before.rules),
        ({"alice": replace(alice, teams=())}, more.rules),
        ({"alice": replace(alice, verifier=None)}, more.rules),
        ({}, more.rules),
    ]:
        world.access = more
        visitor = world.visitor()
        visitor.admit(read, lambda offset: "")
        world.access = Access(users, rules)
        assert visitor.robbed()
        assert not visitor.robbed(), "it is told once"
    with pytest.raises(Denied):
        visitor.admit(read, lambda offset: "")


# ── logging in ──────────────────────────────────────────────────────────────────────────────────


def log_in(world: World, user: str, password: str, tamper: Callable[[Frame], None]) -> Peer | None:
    """Let a client's `Link` and a node's `Visitor` speak; ``tamper`` changes what is answered."""
    visitor, link = world.visitor(None), Link("test", None, Login(user, password), "own")
    answer: dict[str, object] = {
        "version": 1, "features": frames.ACCESS, "node": "n1", "cluster": "c", "group": "g",
        "family": 4, "segment_size": 1,
    }  # fmt: skip
    link.feed(frames.encode_whole(frames.answer(Frame(Type.HELLO), answer)))
    assert not list(link.answers())
    while link.peer is None and (sent := link.due()) is not None:
        reader = frames.FrameReader()
        reader.feed(sent)
        request = reader.next()
        assert request is not None
        visitor.admit(request, lambda offset: "")
        said = frames.answer(request, dict(visitor.log_in(request.fields)))
        tamper(said)
        link.feed(frames.encode_whole(said))
        assert not list(link.answers())
    assert link.peer is None or visitor.user == user
    return link.peer


def nothing(frame: Frame) -> None:
    """Leave the answer as it is."""


def test_a_login_with_the_right_password() -> None:
    """Of a user of the log, and of the operator."""
    world = World()
    assert log_in(world, "alice", "open sesame", nothing) is not None
    assert log_in(world, "operator", "the operator's", nothing) is not None


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "open"), ("carol", "open sesame"), ("bob", "x"), ("operator", "open sesame")],
)
def test_a_login_that_is_refused_says_not_why(user: str, password: str) -> None:
    """A user that is not there, or has a certificate only, looks like a wrong password."""
    world = World()
    with pytest.raises(Denied, match=r"^user or password is wrong$"):
        log_in(world, user, password, nothing)
    assert world.told[-1][0] == "access_denied"
    first = world.gate.verifier(user)
    assert first == world.gate.verifier(user), "a salt that changes would tell"
    assert first.iterations >= scram.ITERATIONS_MIN


def test_a_node_that_does_not_know_the_password_gets_nothing_of_use() -> None:
    """A program on a node's port: it cannot sign, and it cannot ask for a cheap hash."""

    def unsigned(frame: Frame) -> None:
        if "signature" in frame.fields:
            frame.fields["signature"] = bytes(32)

    def cheap(frame: Frame) -> None:
        if "iterations" in frame.fields:
            frame.fields["iterations"] = 1

    def other_nonce(frame: Frame) -> None:
        if "nonce" in frame.fields:
            frame.fields["nonce"] = "another"

    for tamper in (unsigned, cheap, other_nonce):
        with pytest.raises(Denied, match="does not know the password"):
            log_in(World(), "alice", "open sesame", tamper)


def test_a_proof_is_of_use_once_and_in_its_place() -> None:
    """Not a second time, not for another user, not after the password has changed."""
    world = World()
    secret = scram.salted("open sesame", KEPT.salt, KEPT.iterations)

    def proof(visitor: Visitor, user: str = "alice") -> dict[str, object]:
        first = visitor.log_in({"user": "alice", "nonce": "own"})
        whole = str(first["nonce"])
        spoken = scram.said("alice", "own", whole, KEPT.salt, KEPT.iterations)
        return {"user": user, "nonce": whole, "proof": scram.proof(secret, spoken)}

    visitor = world.visitor(None)
    fields = proof(visitor)
    visitor.log_in(fields)
    for again in (visitor, world.visitor(None)):
        with pytest.raises(TwinlogError):
            again.log_in(fields)
    listened = world.visitor(None)
    listened.log_in({"user": "alice", "nonce": "own"})
    with pytest.raises(Denied):
        listened.log_in(fields)
    other = world.visitor(None)
    with pytest.raises(UsageError):
        other.log_in(proof(other, user="operator"))
    late = world.visitor(None)
    fields = proof(late)
    world.access = NOBODY
    with pytest.raises(Denied):
        late.log_in(fields)
    assert late.user is None


def test_a_certificate_never_names_the_operator() -> None:
    """Who signs certificates for clients would be one."""
    with pytest.raises(Denied):
        asked(World(), Type.STATUS, {}, "operator")


def test_http_takes_who_operates_the_cluster() -> None:
    """The password is hashed once, then compared."""
    world = World(Rule("alice", "operate", "cluster"))
    assert world.gate.operates("alice")("open sesame")
    assert world.gate.operates("alice")("open sesame")
    assert world.gate.operates("operator")("the operator's")
    assert not world.gate.operates("alice")("open")
    assert not world.gate.operates("carol")("open sesame")
    world.access = Access(world.access.users)
    assert not world.gate.operates("alice")("open sesame")


def stored(topic: str, properties: Mapping[str, str]) -> bytes:
    """One record as it is sent."""
    encoder = RecordEncoder(topic, 0)
    encoder.add(b"x", properties=encode_properties(properties), born_timestamp=1)
    return bytes(encoder.take())


@pytest.mark.parametrize("kind", [Type.APPEND, Type.TOGETHER])
@pytest.mark.parametrize("topic", [DELAY_TOPIC, TIMER_TOPIC, HALF_TOPIC])
def test_what_is_delivered_later_needs_the_right_to_where_it_goes(kind: Type, topic: str) -> None:
    """A record that does not say where is for the operator alone."""
    fields = {**MANY, "sections": [], **MEMBER, "generation": 0, "settles": [], "commits": []}
    cases: list[tuple[dict[str, str], str | None]] = [
        ({REAL_TOPIC: "orders", REAL_QUEUE: "0"}, None),
        ({REAL_TOPIC: "bills", REAL_QUEUE: "0"}, "topic:bills"),
        ({}, f"topic:{topic}"),
    ]
    for properties, missing in cases:
        first, data = stored("orders", {}), stored(topic, properties)
        rows = [["orders", 0, 1, len(first), 0, 0, 0], [topic, 0, 1, len(data), 0, 0, 0]]
        frame = Frame(kind, fields={**fields, "sections": rows}, payload=first + data)
        visitor = World(*rules_for([WRITE_ORDERS, READ_BILLING])).visitor()
        if missing is None:
            visitor.admit(frame, lambda offset: "")
            continue
        with pytest.raises(Denied) as caught:
            visitor.admit(frame, lambda offset: "")
        assert caught.value.facts["what"] == missing
