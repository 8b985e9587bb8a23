"""Work queues: messages handed out and acknowledged, beside Redis Streams, in one run.

    python benchmarks/clients/work_queues.py [--rounds 3] [--seconds 3] [--only TEXT] [--json FILE]

Both have one master and one slave on loopback, bodies of 100 B; a message counts when the slave has
its acknowledgement. Redis: XREADGROUP, XACK and WAIT 1. twinlog: POP and SETTLE, two pops under
way, the outcomes of one leave with the next. Both generators speak to a socket and look at no
message but for what an acknowledgement needs; *Python consumer* is `Client.consumer`. Peers take
turns (A B A B ...), the table shows medians, minimum and maximum. Each run is a new group over the
same messages.

* *bytes of log*: what the master's log grew by, for one message, everything included
* *servers' CPU*: of master and slave, seconds for a million messages
* *one at a time*: one message popped, handled and its acknowledgement confirmed
* *redelivery*: from the end of a lease without an answer to the arrival at a waiting pop, ms
* *positions*: 1,000 broadcast groups commit 8 queues each a second; the master's share of a core,
  without the time in which it polls for the next request (``limits.spin``)
* *start*: seconds of CPU that 440,000 rows (leases and acknowledgements) add to a start

Needs redis-server. Starts only processes of its own, in a temporary folder, and stops them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psutil

from benchmarks.key_cells import redis, twinlog
from storage.messaging.fold import Messaging
from twinlog import Client
from twinlog.format.group_rows import AckRow, LeaseRow, ShareRow, encode_rows
from twinlog.session.link import Link
from twinlog.wire.frames import Frame, Type

Figures = dict[str, float]
Run = Callable[[float], Figures]

TOPIC, QUEUES, BODY, MESSAGES = "jobs", 8, b"x" * 100, 300_000
FEW, LEASES = "few", 100
GROUPS, ROWS = 1000, 440_000
INVISIBLE_MS = 30_000
COLUMNS = ("rate", "p50_us", "p99_us", "servers_cpu", "log_bytes", "core_percent", "seconds")
_numbers = itertools.count(1)


# ── twinlog ─────────────────────────────────────────────────────────────────────────────────────


class Wire:
    """One connection to the master that sends what its caller says; answers come in any order."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = Link("work_queues")
        self._answers: deque[Frame] = deque()
        self.arrived: dict[int, float] = {}
        """When the answer to each request came, seconds."""
        self._socket.sendall(self._link.hello())
        while self._link.peer is None:
            self._receive()

    def _receive(self) -> None:
        self._link.received(self._socket.recv_into(self._link.buffer()) or sys.exit("hung up"))
        for answer in self._link.answers():
            self._answers.append(answer)
            self.arrived[answer.request] = time.perf_counter()

    def send(self, *requests: tuple[Type, dict[str, object]]) -> list[int]:
        """Send requests together; return their numbers."""
        made = [self._link.request(Frame(kind, fields=fields)) for kind, fields in requests]
        self._socket.sendall(b"".join([pieces[0] for _, pieces in made]))
        return [number for number, _ in made]

    def next(self) -> Frame:
        """Return the next good answer."""
        while not self._answers:
            self._receive()
        found = self._answers.popleft()
        if found.is_error:
            raise SystemExit(f"the node refused: {found.fields}")
        return found

    def ask(self, kind: Type, fields: dict[str, object]) -> Frame:
        """Send one request and return its answer; those of others are kept."""
        (number,) = self.send((kind, fields))
        others: list[Frame] = []
        while (answer := self.next()).request != number:
            others.append(answer)
        self._answers.extendleft(reversed(others))
        return answer

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Member:
    """A member of a group, by frames; of a new one unless it is named."""

    def __init__(
        self,
        wire: Wire,
        invisible_ms: int = INVISIBLE_MS,
        mode: str = "shared",
        group: str = "",
        topic: str = TOPIC,
    ) -> None:
        self.wire, self.group = wire, group or f"g{next(_numbers)}-{time.time_ns()}"
        settings = {"start": "start", "mode": mode}
        if not group:
            wire.ask(Type.GROUP, {"op": "create", "name": self.group, "settings": settings})
        self._topic = topic
        self.under_way = 0
        """Requests without an answer, for who counts them."""
        fields: dict[str, object] = {"name": "a", "member": 0, "topics": [topic], "mode": mode}
        fields |= {"group": self.group, "session_ms": 60_000}
        self.joined = wire.ask(Type.JOIN, fields).fields
        self._invisible = invisible_ms
        self._pop = 0

    def own(self, fields: dict[str, object]) -> dict[str, object]:
        """The fields of a request of this member."""
        return {"group": self.group, "member": self.joined["member"], **fields}

    def pop(self, most: int, wait_ms: int = 1000) -> tuple[Type, dict[str, object]]:
        """The next pop."""
        self._pop += 1
        self.under_way += 1
        fields: dict[str, object] = {"pop": self._pop, "topics": [self._topic], "max_records": most}
        fields |= {"max_bytes": 1 << 20, "invisible_ms": self._invisible, "wait_ms": wait_ms}
        return Type.POP, self.own(fields)

    def settle(self, rows: Any) -> tuple[Type, dict[str, object]]:
        """Acknowledge what a pop brought."""
        self.under_way += 1
        acks = [[row[2], row[3], 1, row[4], row[4] + row[5] - 1, 0] for row in rows]
        return Type.SETTLE, self.own({"rows": acks})


class Cluster:
    """The nodes of `twinlog dev up`, what they cost and how their log grows."""

    def __init__(self, path: Path) -> None:
        runs = [json.loads(found.read_text()) for found in path.glob("data/n*/twinlog/run.json")]
        runs = runs or [json.loads(each.read_text()) for each in path.rglob("n*/twinlog/run.json")]
        self.processes = [psutil.Process(run["pid"]) for run in runs]
        self.addresses = [("127.0.0.1", int(run["ports"]["clients"])) for run in runs]
        with Client([f"{host}:{port}" for host, port in self.addresses]) as client:
            leader = client.metadata().leader
            client.create_topic(TOPIC, queues=QUEUES)
            client.create_topic(FEW, queues=1)
            client.send(FEW, BODY)
            with client.producer(TOPIC) as producer:
                for _ in range(MESSAGES):
                    producer.send(BODY)
        self.master = next(at for at, name in enumerate(path_names(path)) if name == leader)

    def wire(self) -> Wire:
        """A connection to the master."""
        return Wire(self.addresses[self.master])

    def cpu(self, at: int | None = None) -> float:
        """CPU seconds of all nodes, or of one."""
        chosen = self.processes if at is None else [self.processes[at]]
        return sum(sum(process.cpu_times()[:2]) for process in chosen)

    def work(self, wire: Wire) -> float:
        """CPU seconds of the master without those in which it polled."""
        counters: Any = wire.ask(Type.STATUS, {}).fields["counters"]
        return self.cpu(self.master) - counters["loop_polling_seconds"]

    def end(self, wire: Wire) -> int:
        """Where the confirmed log ends."""
        found = wire.ask(Type.OFFSETS, {"topic": TOPIC, "queues": [0]}).fields["confirm"]
        assert isinstance(found, int)
        return found


def path_names(path: Path) -> list[str]:
    """Names of the nodes, in the order in which their run files are found."""
    found = list(path.glob("data/n*/twinlog/run.json")) or list(path.rglob("n*/twinlog/run.json"))
    return [each.parent.parent.name for each in found]


def percentiles(times: list[float]) -> Figures:
    """p50 and p99, microseconds."""
    times = sorted(times)
    return {"p50_us": times[len(times) // 2] * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}


def frames_cell(cluster: Cluster, most: int, members: int = 1) -> Run:
    """Pops of ``most``, two under way; the outcomes of one leave with the next.

    Several members of one group take turns: each has two pops under way.
    """

    def run(seconds: float) -> Figures:
        wires = [cluster.wire() for _ in range(members)]
        first = Member(wires[0])
        people = [first, *[Member(wire, group=first.group) for wire in wires[1:]]]
        before, cpu, began = cluster.end(wires[0]), cluster.cpu(), time.perf_counter()
        popped = acked = open_pops = 0
        held = {member: deque[int]() for member in people}
        for member in people:
            member.wire.send(member.pop(most), member.pop(most))
            open_pops += 2
        for member in itertools.cycle(people):
            if not open_pops and acked >= popped:
                break
            if not member.under_way:
                continue
            answer = member.wire.next()
            member.under_way -= 1
            if answer.type == Type.SETTLE:
                acked += held[member].popleft()
                continue
            open_pops -= 1
            rows: Any = answer.fields["rows"]
            count = sum(row[5] for row in rows)
            popped += count
            more = [member.pop(most)] if wire_open(popped, began, seconds) else []
            open_pops += len(more)
            if count:
                held[member].append(count)
                member.wire.send(member.settle(rows), *more)
            elif more:
                member.wire.send(*more)
        took, cpu = time.perf_counter() - began, cluster.cpu() - cpu
        grown = cluster.end(wires[0]) - before
        for wire in wires:
            wire.close()
        return {"rate": acked / took, "servers_cpu": cpu * 1e6 / acked, "log_bytes": grown / acked}

    return run


def wire_open(popped: int, began: float, seconds: float) -> bool:
    """Whether more is asked for."""
    return time.perf_counter() - began < seconds and popped < MESSAGES - 2048


def single_cell(cluster: Cluster) -> Run:
    """One message popped, then its acknowledgement confirmed."""

    def run(seconds: float) -> Figures:
        wire = cluster.wire()
        member, times = Member(wire), list[float]()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            rows = wire.ask(*member.pop(1)).fields["rows"]
            wire.ask(*member.settle(rows))
            times.append(time.perf_counter() - began)
        wire.close()
        return {"rate": len(times) / seconds, **percentiles(times)}

    return run


def consumer_cell(cluster: Cluster, most: int) -> Run:
    """`Client.consumer`, one message after the other."""

    def run(seconds: float) -> Figures:
        group = f"c{next(_numbers)}-{time.time_ns()}"
        settings = {"start": "start"}
        host, port = cluster.addresses[cluster.master]
        wire = cluster.wire()
        wire.ask(Type.GROUP, {"op": "create", "name": group, "settings": settings})
        wire.close()
        with (
            Client(f"{host}:{port}") as client,
            client.consumer(group, TOPIC, batch=most) as consumer,
        ):
            cpu, began, count = cluster.cpu(), time.perf_counter(), 0
            for message in consumer:
                message.ack()
                count += 1
                if not count & 63 and not wire_open(count, began, seconds):
                    break
            consumer.settle()
            took, cpu = time.perf_counter() - began, cluster.cpu() - cpu
        return {"rate": count / took, "servers_cpu": cpu * 1e6 / count}

    return run


def redelivery_cell(cluster: Cluster) -> Run:
    """How late messages are handed out again: of many groups, each with one that is parked."""

    def run(seconds: float) -> Figures:
        wire, ends, late = cluster.wire(), dict[int, float](), list[float]()
        for _ in range(LEASES):
            member = Member(wire, invisible_ms=3000, topic=FEW)
            fields = wire.ask(*member.pop(1)).fields
            rows: Any = fields["rows"]
            left: Any = rows[0][7] - cast("int", fields["now_ms"])
            (number,) = wire.send(member.pop(1, 20_000))
            ends[number] = time.perf_counter() + left / 1000
        while ends:
            answer = wire.next()
            late.append(wire.arrived[answer.request] - ends.pop(answer.request))
        wire.close()
        return {"rate": len(late), **percentiles(late)}

    return run


def positions_cell(cluster: Cluster) -> Run:
    """1,000 groups commit 8 queues a second."""
    made: list[Member] = []

    def run(seconds: float) -> Figures:
        wire = cluster.wire()
        made[:] = [Member(wire, mode="broadcast") for _ in range(GROUPS)]
        at, cpu, began = 1, cluster.work(wire), time.perf_counter()
        for second in range(max(2, int(seconds))):
            for number, member in enumerate(made):
                rows: Any = member.joined["rows"]
                commits = [[row[2], row[3] + at] for row in rows]
                own = member.own({"generation": member.joined["generation"], "rows": commits})
                wire.send((Type.COMMIT, own))
                ahead = began + second + (number + 1) / GROUPS - time.perf_counter()
                if ahead > 0:
                    time.sleep(ahead)
                if number >= 16:
                    wire.next()
            for _ in range(16):
                wire.next()
            at += 1
        took, cpu = time.perf_counter() - began, cluster.work(wire) - cpu
        wire.close()
        return {"rate": (at - 1) * GROUPS * QUEUES / took, "core_percent": 100 * cpu / took}

    return run


def start_cell() -> Run:
    """Rows folded as a start does it: leases of 32 and their acknowledgements, 64 rows a record."""
    rows: list[Any] = []
    for number in range(ROWS // 2):
        share, n = number % 64 + 1, number // 64 + 1
        first = (n - 1) * 32
        rows.append(LeaseRow(share, n, first, 32, 1 << 50, n, 1_760_000_000_000 + n, 1))
        rows.append(AckRow(share, n, first, first + 31))
    bodies = [encode_rows(rows[at : at + 64]) for at in range(0, ROWS, 64)]

    def run(seconds: float) -> Figures:
        fold = Messaging()
        fold.apply_body(
            encode_rows([ShareRow(at + 1, "g", TOPIC, 0, at, 0) for at in range(64)]), 0, 0, 1
        )
        began = time.process_time()
        for at, body in enumerate(bodies, 1):
            fold.apply_body(body, 0, at, at + 1)
        took = time.process_time() - began
        assert all(share.n == ROWS // 128 + (share.id <= ROWS // 2 % 64) for share in fold.shares())
        return {"seconds": took, "rate": ROWS / took}

    return run


# ── Redis ───────────────────────────────────────────────────────────────────────────────────────

MARK = b"$8\r\nTHE-MARK\r\n"


class Redis:
    """One connection; an ECHO after each pipeline marks the end of its answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, *commands: tuple[object, ...]) -> bytes:
        """Send a pipeline and return its answers as they came."""
        parts: list[bytes] = []
        for command in (*commands, ("ECHO", "THE-MARK")):
            parts.append(b"*%d\r\n" % len(command))
            for word in command:
                data = word if isinstance(word, bytes) else str(word).encode()
                parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        self._socket.sendall(b"".join(parts))
        found = bytearray()
        while not found.endswith(MARK):
            found += self._socket.recv(1 << 20)
        return bytes(found[: -len(MARK)])


def redis_fill(port: int) -> None:
    """The messages."""
    link = Redis(port)
    for at in range(0, MESSAGES, 1000):
        link.ask(
            *[("XADD", TOPIC, f"{number + 1}-1", "b", BODY) for number in range(at, at + 1000)]
        )


def redis_cell(port: int, processes: list[psutil.Process], most: int) -> Run:
    """XREADGROUP, then XACK and WAIT with the next one; with one message, wait before the next."""

    def cpu() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    def run(seconds: float) -> Figures:
        link, group, times = Redis(port), f"g{next(_numbers)}", list[float]()
        link.ask(("XGROUP", "CREATE", TOPIC, group, "0"))
        read = ("XREADGROUP", "GROUP", group, "a", "COUNT", most, "STREAMS", TOPIC, ">")
        spent, began, acked, at = cpu(), time.perf_counter(), 0, 0
        while wire_open(acked, began, seconds):
            asked = time.perf_counter()
            if most == 1 or not at:
                found = link.ask(read)
                count = found.count(b"-1\r\n$") or found.count(b"-1\r\n*")
                assert count == most, found[:200]
            ids = [f"{number}-1" for number in range(at + 1, at + most + 1)]
            done = ("XACK", TOPIC, group, *ids), ("WAIT", 1, 1000)
            link.ask(*done, *(() if most == 1 else (read,)))
            at, acked = at + most, acked + most
            times.append(time.perf_counter() - asked)
        took = time.perf_counter() - began
        found = {"rate": acked / took, "servers_cpu": (cpu() - spent) * 1e6 / acked}
        return found | percentiles(times) if most == 1 else found

    return run


# ── all of them ─────────────────────────────────────────────────────────────────────────────────


def measure(cells: list[tuple[str, Run]], rounds: int, seconds: float) -> dict[str, Any]:
    """Every cell in turn, ``rounds`` times."""
    found: dict[str, list[Figures]] = {name: [] for name, _ in cells}
    for round_ in range(rounds):
        for name, run in cells:
            found[name].append(run(seconds))
            print(f"round {round_ + 1}  {name}  {found[name][-1]}", file=sys.stderr)
    return {
        name: {
            figure: [statistics.median(each), min(each), max(each)]
            for figure in runs[0]
            for each in [[run[figure] for run in runs]]
        }
        for name, runs in found.items()
    }


def table(found: dict[str, Any]) -> str:
    """All figures, as Markdown."""
    lines = ["| cell | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, figures in found.items():
        words = [
            "{:,.{d}f} [{:,.{d}f}..{:,.{d}f}]".format(*each, d=0 if each[0] >= 100 else 2)
            if (each := figures.get(column))
            else ""
            for column in COLUMNS
        ]
        lines.append(f"| {name} | " + " | ".join(words) + " |")
    return "\n".join(lines)


@contextlib.contextmanager
def all_cells(folder: Path) -> Iterator[list[tuple[str, Run]]]:
    """The cells: peers next to each other."""
    with redis(folder) as port, twinlog(folder):
        processes = [
            process
            for process in psutil.process_iter(["name", "cmdline"])
            if process.info["name"] == "redis-server" and process.ppid() == psutil.Process().pid
        ]
        cluster = Cluster(folder / "twinlog")
        redis_fill(port)
        cells: list[tuple[str, Run]] = []
        for most in (32, 256):
            cells.append((f"Redis, {most}", redis_cell(port, processes, most)))
            cells.append((f"pops of {most}", frames_cell(cluster, most)))
            cells.append((f"pops of {most}, 4 members", frames_cell(cluster, most, 4)))
        cells.append(("Python consumer, batch 256", consumer_cell(cluster, 256)))
        cells.append(("Redis, one at a time", redis_cell(port, processes, 1)))
        cells.append(("one at a time", single_cell(cluster)))
        cells.append(("redelivery", redelivery_cell(cluster)))
        cells.append(("positions", positions_cell(cluster)))
        cells.append(("start", start_cell()))
        yield cells


def main() -> int:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 21))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="twinlog-bench-"))
    try:
        with all_cells(folder) as cells:
            cells = [cell for cell in cells if options.only in cell[0]]
            found = measure(cells, options.rounds, options.seconds)
            print(table(found))
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
