"""A running node deletes old files while a reader still holds one."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from tests.fixtures.processes import MiB, Processes, greeted
from twinlog import Client
from twinlog.errors import OffsetGone
from twinlog.format.messages import messages_of
from twinlog.wire import frames

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BODY = bytes(1024)


def one_node(folder: Path, hold: str) -> Processes:
    """A cluster of one with files of 2 MiB, which keeps about three of them."""
    found = Processes(folder, nodes=1, segment_size=2 * MiB)
    text = found.path.read_text()
    assert "[retention]" not in text
    found.path.write_text(
        f'{text}\n[retention]\nkeep_bytes = "6 MiB"\ndelete_at = "any time"\nlook = "100 ms"\n'
        f'pause = "0 s"\nhold = "{hold}"\n'
    )
    return Processes(folder, nodes=1)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Processes]:
    """It waits for readers."""
    yield from _running(one_node(tmp_path, "1 h"))


@pytest.fixture
def hurried(tmp_path: Path) -> Iterator[Processes]:
    """It does not."""
    yield from _running(one_node(tmp_path, "100 ms"))


def _running(found: Processes) -> Iterator[Processes]:
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def retention(processes: Processes) -> Mapping[str, object]:
    """What the node says of it."""
    return cast("Mapping[str, object]", processes.told("n1")["retention"])


def gone(processes: Processes) -> int:
    """How many files have left the log."""
    deleted = cast("Mapping[str, int]", retention(processes)["deleted"])
    return sum(deleted.values())


def first_file(processes: Processes) -> Path:
    """The oldest file of the log."""
    return processes.config.node("n1").data / "commitlog" / f"{0:020d}"


def send(client: Client, count: int) -> None:
    """So many messages of 1 KiB."""
    with client.producer("t") as producer:
        for _ in range(count):
            producer.send(BODY)


def hold(processes: Processes) -> tuple[socket.socket, frames.FrameReader]:
    """Ask for everything and take nothing: what the system cannot buffer stays views of the log."""
    sock, reader = greeted(processes.address("n1"))
    fields: dict[str, object] = {
        "topic": "t", "queue": 0, "offset": 0, "max_bytes": 8 * MiB, "max_records": 1 << 20,
        "wait_ms": 0, "tags": None, "where": None,
    }  # fmt: skip
    for request in (7, 8, 9, 10):
        frame = frames.Frame(frames.Type.READ, request=request, fields=fields)
        sock.sendall(frames.encode_whole(frame))
    return sock, reader


def read_all(sock: socket.socket, reader: frames.FrameReader) -> list[frames.Frame]:
    """Take the four answers."""
    found: list[frames.Frame] = []
    while len(found) < 4:
        while (frame := reader.next()) is not None:
            found.append(frame)
        if len(found) < 4:
            data = sock.recv(1 << 20)
            assert data
            reader.feed(data)
    return found


def whole(answers: list[frames.Frame]) -> None:
    """The first was asked before the file left and has everything; later ones may say it left."""
    found = [[message.body for message in messages_of(frame.payload)] for frame in answers]
    assert len(found[0]) >= 1500
    for bodies, frame in zip(found, answers, strict=True):
        assert set(bodies) <= {BODY}
        assert frame.fields["status"] == ("found" if bodies else "before-start")


def grow(processes: Processes, client: Client) -> None:
    """Write until the first file leaves: two snapshots must lie behind it."""

    def left() -> bool:
        send(client, 512)
        return gone(processes) > 0

    processes.until(left, "a file that leaves")


def test_a_file_that_is_held_waits_and_then_goes(patient: Processes) -> None:
    """Its reader gets every byte; others learn at once that it is deleted; writes continue."""
    with Client(["{}:{}".format(*patient.address("n1"))], timeout=120.0) as client:
        client.create_topic("t", 1)
        send(client, 1500)
        sock, reader = hold(patient)
        with sock:
            grow(patient, client)
            assert int(str(retention(patient)["leaving"])) >= 1
            assert first_file(patient).exists()
            start, _ = client.offsets("t")[0]
            assert start > 1000
            with pytest.raises(OffsetGone):
                next(client.read("t", "0:"))
            first = next(client.read("t")).queue_offset  # files leave while we ask
            assert start <= first <= client.offsets("t")[0][0]
            whole(read_all(sock, reader))
        patient.until(lambda: retention(patient)["leaving"] == 0, "the file gone")
        assert not first_file(patient).exists()
        assert retention(patient)["forced"] == 0
        _, end = client.offsets("t")[0]
        assert client.send("t", b"on").queue_offset == end


def test_a_file_is_not_held_for_ever(hurried: Processes) -> None:
    """Its name goes, and that is counted; who holds it keeps the bytes until it lets go."""
    with Client(["{}:{}".format(*hurried.address("n1"))], timeout=120.0) as client:
        client.create_topic("t", 1)
        send(client, 1500)
        sock, reader = hold(hurried)
        with sock:
            grow(hurried, client)
            hurried.until(lambda: not first_file(hurried).exists(), "the name gone")
            hurried.until(lambda: retention(hurried)["leaving"] == 0, "nothing that waits")
            assert int(str(retention(hurried)["forced"])) >= 1
            whole(read_all(sock, reader))
