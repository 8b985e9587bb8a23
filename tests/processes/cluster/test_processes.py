"""What only real processes show: signals, memory, a frozen master, exit codes."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from node.clients.limits import connections_that_fit
from node.config.pages import Local, write_local
from tests.fixtures.processes import SECONDS, MiB, Processes, greeted
from tests.fixtures.wire_client import records
from twinlog import Client
from twinlog.errors import TwinlogError
from twinlog.wire import frames

pytestmark = [pytest.mark.processes, pytest.mark.slow]

KiB = 1024
AWAY_SECONDS = 30.0
PAUSED_SECONDS = 10.0


class Acknowledged(list[int]):
    """Numbers that were acknowledged, in order; ``errors`` are the sends that were not."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[TwinlogError] = []


def client_of(processes: Processes, timeout: float = 60.0) -> Client:
    """A client that knows every node."""
    names = [name for name in processes.running if name != "coordinator"]
    endpoints = [":".join(map(str, processes.address(name))) for name in names]
    return Client(endpoints, timeout=timeout)


@contextmanager
def load(processes: Processes, topic: str = "load") -> Iterator[Acknowledged]:
    """Confirmed sends from a thread for as long as the block; gives the acknowledged numbers."""
    acknowledged = Acknowledged()
    stop = threading.Event()

    def run() -> None:
        with client_of(processes, timeout=60.0) as client:
            number = 0
            while not stop.is_set():
                try:
                    client.send(topic, b"%d" % number)
                except TwinlogError as error:
                    acknowledged.errors.append(error)
                else:
                    acknowledged.append(number)
                number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join(90)
        assert not thread.is_alive()


def raw(processes: Processes, name: str) -> socket.socket:
    """A greeted plain socket to a node."""
    return greeted(processes.address(name))[0]


def a_read(topic: str, request: int) -> bytes:
    """A READ of up to 8 MiB from the beginning."""
    fields: dict[str, object] = {
        "topic": topic,
        "queue": 0,
        "offset": 0,
        "max_bytes": 8 * MiB,
        "max_records": 1 << 20,
        "wait_ms": 0,
        "tags": None,
    }
    return frames.encode_whole(frames.Frame(frames.Type.READ, request=request, fields=fields))


def test_memory_is_bounded_whatever_clients_do(processes: Processes) -> None:
    """1,000 idle connections, 100 readers that stop reading, 20 clients cut inside a frame.

    The master grows by less than 100 x 256 KiB + 16 MiB, and a sender is served as before.
    """
    connections_that_fit(1500)  # a login shell grants this process fewer, until it asks for more
    master = processes.master() or ""
    with client_of(processes) as client, ExitStack() as stack:
        client.create_topic("big", 1)
        with client.producer("big") as producer:
            for _ in range(8 * 1024):
                producer.send(bytes(KiB))
        for _ in client.read("big", limit=8 * 1024):
            pass
        before = processes.memory(master)
        for _ in range(1000):
            stack.enter_context(raw(processes, master))
        for _ in range(100):
            sock = stack.enter_context(raw(processes, master))
            for request in range(2, 34):
                sock.sendall(a_read("big", request))
        section = records("big", bytes(200 * KiB))
        fields: dict[str, object] = {"sections": [section.row()]}
        frame = frames.Frame(frames.Type.APPEND, request=2, fields=fields, payload=section.data)
        for _ in range(20):
            with raw(processes, master) as sock:
                sock.sendall(frames.encode_whole(frame)[: 100 * KiB])
        client.send("big", b"still served")
        grown = processes.memory(master) - before
        assert grown < 100 * 256 * KiB + 16 * MiB, f"grew by {grown / MiB:.1f} MiB"


def test_writes_go_on_while_the_coordinator_is_away(processes: Processes) -> None:
    """Killed for 30 s under load: no send is refused; role changes say that it does not answer."""
    with client_of(processes) as client:
        client.create_topic("load", 1)
    with load(processes) as acknowledged:
        processes.until(lambda: len(acknowledged) > 50, "load")
        processes.kill("coordinator")
        mark, over = len(acknowledged), time.monotonic() + AWAY_SECONDS
        processes.until(lambda: time.monotonic() > over, "its absence")
        processes.until(lambda: len(acknowledged) > mark + 500, "load in its absence")
        assert not acknowledged.errors
        mark = len(acknowledged)
        processes.until(lambda: len(acknowledged) > mark + 50, "load without a coordinator")
        with pytest.raises(TwinlogError):
            processes.fail_over("n2")
        processes.start("coordinator")
        heir = "n2" if processes.master() != "n2" else "n3"
        processes.until(lambda: takes(processes, heir), "a coordinator that decides again")
        mark = len(acknowledged)
        processes.until(lambda: len(acknowledged) > mark + 50, "load under the new master")
    with client_of(processes) as client:
        bodies = [int(message.body) for message in client.read("load")]
    assert set(acknowledged) <= set(bodies)
    assert len(bodies) == len(set(bodies))


def takes(processes: Processes, heir: str) -> bool:
    """Whether the coordinator carries out a failover; it waits for reports after its start."""
    try:
        return bool(processes.fail_over(heir)["ok"])
    except TwinlogError:
        return False


def test_a_paused_master_loses_nothing_and_is_fenced(processes: Processes) -> None:
    """SIGSTOP, failover, SIGCONT: what it had not confirmed is cut, and its clients learn of it."""
    with client_of(processes) as client:
        client.create_topic("load", 1)
    old = processes.master() or ""
    with load(processes) as acknowledged:
        processes.until(lambda: len(acknowledged) > 100, "load")
        processes.send(old, signal.SIGSTOP)
        over = time.monotonic() + PAUSED_SECONDS
        heir = next(name for name in ("n1", "n2", "n3") if name != old)
        processes.failover(heir)
        mark = len(acknowledged)
        processes.until(lambda: len(acknowledged) > mark + 100, "load under the heir")
        processes.until(lambda: time.monotonic() > over, "the pause")
        processes.send(old, signal.SIGCONT)
        processes.until(lambda: processes.status(old).get("role") == "slave", "the fence")
        processes.settled()
    assert processes.told(old)["leader"] == heir
    with client_of(processes) as client:
        bodies = [int(message.body) for message in client.read("load", read_from=old)]
    assert set(acknowledged) <= set(bodies)


def test_signals_stop_in_order_with_their_exit_codes(processes: Processes) -> None:
    """TERM ends with 0, Ctrl-C with 130, both cleanly; the run file is gone."""
    slaves = [name for name in ("n1", "n2", "n3") if name != processes.master()]
    for name, number, code in zip(slaves, (signal.SIGTERM, signal.SIGINT), (0, 130), strict=True):
        assert processes.stop(name, number) == code, processes.tail(name)
        assert not processes.run_file(name).exists()
        processes.start(name)
        assert processes.document(name)["clean"] is True
    processes.settled()


def test_the_task_tree_is_dumped_on_usr1(processes: Processes) -> None:
    """SIGUSR1 writes where every task stands, and changes nothing."""
    processes.send("n1", signal.SIGUSR1)
    processes.until(lambda: "tasks_dumped" in processes.tail("n1"), "the dump")
    assert "clients/server.py" in processes.tail("n1")
    processes.settled()


def test_a_directory_in_use_ends_with_its_code(processes: Processes) -> None:
    """A second process of the same node: refused with its reason, exit 69, the first goes on."""
    other = processes.folder / "other.toml"
    write_local(other, Local(failover="manual", base_port=0, segment_size=16 * MiB))
    again = Processes.__new__(Processes)
    again.folder, again.path, again.config = processes.folder, other, processes.config
    again.running = {}
    process = again.spawn("n1")
    assert process.wait(SECONDS) == 69, again.tail("n1")
    assert "stop that process" in again.tail("n1")
    assert processes.running["n1"].poll() is None
    processes.settled()


def test_a_node_with_a_log_at_an_empty_coordinator_is_refused(tmp_path: Path) -> None:
    """The register was lost: no node is elected by itself, and the node says what to do."""
    processes = Processes(tmp_path, nodes=1)
    try:
        processes.start_all()
        with client_of(processes) as client:
            client.create_topic("t", 1)
            client.send("t", b"x")
        processes.stop("n1")
        processes.stop("coordinator")
        shutil.rmtree(processes.config.coordinator.data)
        processes.start("coordinator", "n1")
        wanted = "that it had before; if that is lost: twinlog coordinator recover"
        processes.until(lambda: wanted in processes.tail("n1"), "what to do")
        assert processes.master() is None
    finally:
        processes.close()
