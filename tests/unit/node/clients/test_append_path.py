"""Appends of a turn ride together, in order, and each is answered once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.clients.append_path import AppendPath, AppendRequest, Reply, parse_sections, parse_terms
from node.clients.counts import ClientCounts
from node.clients.limits import KiB, Limits
from node.topics.quotas import Quotas
from storage.state.sections import Outcome, Section, SectionResult
from twinlog.errors import UsageError


class Client:
    """Remembers its answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, list[int]]] = []
        self.refusals: list[tuple[int, str]] = []

    def appended(self, request: int, size: int, results: Sequence[SectionResult], by: str) -> None:
        """Remember the log offsets."""
        self.answers.append((request, [result.log_offset for result in results]))

    def refused(self, request: int, size: int, code: str, text: str) -> None:
        """Remember the code."""
        self.refusals.append((request, code))


class Log:
    """Stands in for the driver: takes appends, answers when told."""

    def __init__(self) -> None:
        self.appends: list[tuple[list[Section], str, float, Reply]] = []

    def append(
        self, now: float, sections: Sequence[Section], *, ack: str, deadline: float, reply: Reply
    ) -> None:
        """Take an append."""
        self.appends.append((list(sections), ack, deadline, reply))

    def answer(self, number: int, code: str = "") -> None:
        """Answer one append: stored at 0, 1, 2 ..., or refused."""
        sections, _, _, reply = self.appends[number]
        if code:
            reply([SectionResult(Outcome.REFUSED, code=code) for _ in sections], None)
        else:
            places = [SectionResult(Outcome.STORED, 0, at) for at in range(len(sections))]
            reply(places, "n1,n2")


def path_to(log: Log, limits: Limits) -> AppendPath:
    """A path whose clock stands still."""
    return AppendPath(log, limits, ClientCounts(), clock=lambda: 0.0, waited=lambda _: None)


def request(client: Client, number: int, **terms: object) -> AppendRequest:
    """An append of one section of 10 bytes that arrived at 0."""
    size = int(str(terms.get("size", 10)))
    sections = [Section("t", 0, 1, bytes(size))] * int(str(terms.get("sections", 1)))
    ack = str(terms.get("ack", "confirmed"))
    return AppendRequest(client, number, sections, size, ack, 1000, 0.0)


def test_neighbours_with_the_same_terms_are_one_append() -> None:
    """Three small requests become one append; each gets its own results."""
    log, client = Log(), Client()
    path = path_to(log, Limits())
    for number, sections in ((1, 1), (2, 2), (3, 1)):
        path.add(request(client, number, sections=sections))
    path.run(0.0)
    assert [len(sections) for sections, *_ in log.appends] == [4]
    assert path.waiting == 3
    log.answer(0)
    assert client.answers == [(1, [0]), (2, [1, 2]), (3, [3])]
    assert path.waiting == 0


def test_the_order_of_arrival_is_kept_across_terms() -> None:
    """A request with other terms ends a group; nothing overtakes."""
    log, client = Log(), Client()
    path = path_to(log, Limits())
    for number, ack in ((1, "confirmed"), (2, "written"), (3, "confirmed")):
        path.add(request(client, number, ack=ack))
    path.run(0.0)
    assert [ack for _, ack, *_ in log.appends] == ["confirmed", "written", "confirmed"]


def test_a_group_is_one_batch_at_most() -> None:
    """Requests beyond 1 MiB start another append."""
    log, client = Log(), Client()
    path = path_to(log, Limits())
    for number in range(5):
        path.add(request(client, number, size=400 * KiB))
    path.run(0.0)
    assert [len(sections) for sections, *_ in log.appends] == [2, 2, 1]


def test_a_request_that_waited_too_long_is_refused_and_not_written() -> None:
    """Beyond 200 ms the client hears busy; its neighbours in time are written."""
    log, client = Log(), Client()
    path = path_to(log, Limits())
    late, fresh = request(client, 1), request(client, 2)
    fresh.arrived = 5.0
    path.add(late)
    path.add(fresh)
    path.run(5.1)
    assert client.refusals == [(1, "busy")]
    assert len(log.appends) == 1
    assert log.appends[0][2] == 6.0


def test_more_than_the_waiting_limit_is_busy() -> None:
    """Beyond producers_waiting_max nothing is appended until somebody is answered."""
    log, client = Log(), Client()
    path = path_to(log, Limits(producers_waiting_max=1))
    path.add(request(client, 1))
    path.run(0.0)
    path.add(request(client, 2))
    path.run(0.0)
    assert client.refusals == [(2, "busy")]
    log.answer(0)
    path.add(request(client, 3))
    path.run(0.0)
    assert len(log.appends) == 2


def test_a_refusal_of_the_node_is_the_requests_error_a_refusal_of_a_record_its_sections() -> None:
    """``not-master`` is said once; a bad record is named in its section's result."""
    log, client = Log(), Client()
    path = path_to(log, Limits())
    for number, code in enumerate(("not-master", "crc")):
        path.add(request(client, number))
        path.run(0.0)
        log.answer(number, code)
    assert client.refusals == [(0, "not-master")]
    assert client.answers == [(1, [-1])]


@pytest.mark.parametrize(
    "sections",
    [
        None,
        [],
        [["t", 0, 1, 9, 0, 0, 0]],
        [["t", 0, 1, 11, 0, 0, 0]],
        [["t", 0, 1, 5, 0, 0, 0]],
        [["t", -1, 1, 10, 0, 0, 0]],
        [["t", 0, 0, 10, 0, 0, 0]],
        [["t", 1 << 31, 1, 10, 0, 0, 0]],
        [["t", 0, 1 << 63, 10, 0, 0, 0]],
        [["t", 0, 1, 10, -1, 0, 0]],
        [["t", 0, 1, 10, 1, -1, 0]],
        [["t", 0, 1, 10, 1, 0, -1]],
        [["t", 0, 1, -10, 0, 0, 0]],
        [["t", 0, 1, 10, 0, 0]],
        [[7, 0, 1, 10, 0, 0, 0]],
        ["t"],
    ],
)
def test_sections_that_do_not_cover_the_payload_are_refused(sections: object) -> None:
    """Every byte of the payload belongs to exactly one section, or nothing is looked at."""
    with pytest.raises(UsageError):
        parse_sections({"sections": sections}, memoryview(bytes(10)))


def test_terms() -> None:
    """An append that asks for nothing waits for the default; a made-up name is refused."""
    assert parse_terms({}, "confirmed") == ("confirmed", 30_000)
    assert parse_terms({"ack": "flushed", "timeout_ms": 5}, "confirmed") == ("flushed", 5)
    for fields in ({"ack": "isr"}, {"timeout_ms": 0}, {"timeout_ms": "5"}):
        with pytest.raises(UsageError):
            parse_terms(fields, "confirmed")


@pytest.mark.parametrize(("seconds", "busy"), [(0.9, False), (1.5, True)])
def test_after_an_append_that_waited_for_memory_others_are_refused(
    seconds: float, *, busy: bool
) -> None:
    """For as long again; nothing of them is handed to the log."""
    now = [0.0]

    class Slow(Log):
        """Takes its time."""

        def append(
            self,
            now_: float,
            sections: Sequence[Section],
            *,
            ack: str,
            deadline: float,
            reply: Reply,
        ) -> None:
            super().append(now_, sections, ack=ack, deadline=deadline, reply=reply)
            now[0] += seconds

    log, client, counts = Slow(), Client(), ClientCounts()
    path = AppendPath(log, Limits(), counts, clock=lambda: now[0], waited=lambda _: None)
    path.add(request(client, 1))
    path.run(0.0)
    path.add(request(client, 2))
    path.run(0.0)
    assert client.refusals == ([(2, "busy")] if busy else [])
    assert len(log.appends) == (1 if busy else 2)
    assert counts.limits.get("page_cache_busy_seconds", 0) == (1 if busy else 0)
    now[0] += 1.0
    path.add(request(client, 3))
    path.run(0.0)
    assert len(log.appends) == (2 if busy else 3)


def test_sections_are_the_pieces_of_the_payload() -> None:
    """One after the other, none copied."""
    rows = [["t", 0, 2, 4, 0, 0, 0], ["u", 3, 1, 6, 7, 1, 9]]
    first, second = parse_sections({"sections": rows}, memoryview(b"0123456789"))
    assert (first.topic, first.count, bytes(first.data)) == ("t", 2, b"0123")
    assert (second.queue, second.producer, second.producer_epoch) == (3, 7, 1)
    assert (second.sequence, bytes(second.data)) == (9, b"456789")


def test_an_append_of_one_section() -> None:
    """The common case has a way of its own, and the same answer."""
    fields = {"sections": [["t", 3, 2, 4, 7, 1, 9]]}
    [alone] = parse_sections(fields, memoryview(b"0123"))
    assert alone == Section("t", 3, 2, memoryview(b"0123"), 7, 1, 9)
    longer = {"sections": [["t", 3, 2, 4, 7, 1, 9, "of a later version"]]}
    assert parse_sections(longer, memoryview(b"0123")) == [alone]


def test_a_path_knows_whether_a_run_is_due() -> None:
    """It is not asked to run for nothing."""
    log, client = Log(), Client()
    path = path_to(log, Limits())
    assert not path.pending
    path.add(request(client, 1))
    assert path.pending
    path.run(0.0)
    assert not path.pending


def test_a_quota_refuses_a_request_and_says_when_to_come_again() -> None:
    """What the log refuses does not count; without a quota nothing is asked."""
    log, waits = Log(), list[int]()
    limits: dict[str, tuple[int, int]] = {}
    quotas = Quotas(lambda: limits, lambda *_, **__: None)
    path = AppendPath(
        log, Limits(), ClientCounts(), clock=lambda: 0.0, waited=lambda _: None, quotas=quotas
    )

    class Slow(Client):
        def refused(self, request: int, size: int, code: str, text: str, wait_ms: int = 0) -> None:
            """Remember how long to wait."""
            waits.append(wait_ms)
            super().refused(request, size, code, text)

    def send(client: Client, number: int) -> None:
        path.add(request(client, number))
        path.run(0.0)

    client = Slow()
    for number in range(3):
        send(client, number)
    assert len(log.appends) == 3
    limits = {"t": (1, 0)}
    send(client, 3)
    send(client, 4)
    assert (client.refusals, waits) == ([(4, "quota")], [1000])
    log.answer(3, "busy")
    send(client, 5)
    log.answer(4, "bad-record")
    send(client, 6)
    log.answer(5)
    send(client, 7)
    assert [number for number, code in client.refusals if code == "quota"] == [4, 7]


def test_a_request_beyond_the_waiting_limit_costs_no_quota() -> None:
    """Nothing of it was stored: it is busy each time, and never over the quota."""
    log, client = Log(), Client()
    quotas = Quotas(lambda: limits, lambda *_, **__: None)
    limits = {"t": (1, 0)}
    path = AppendPath(
        log, Limits(producers_waiting_max=0), ClientCounts(), clock=lambda: 0.0,
        waited=lambda _: None, quotas=quotas,
    )  # fmt: skip
    for number in range(3):
        path.add(request(client, number))
        path.run(0.0)
    assert client.refusals == [(0, "busy"), (1, "busy"), (2, "busy")]
