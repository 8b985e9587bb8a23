"""A disk that really is full: small file systems, real processes, and the operator who makes room.

The same stories with an injected error and more of its corners are in `test_full_disk`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.clock import Clock, use
from tests.fakes.patience import be_patient
from tests.fixtures.permission import NOT_ALLOWED
from tests.fixtures.processes import ROOT
from tests.fixtures.small_disks import SmallDisks
from twinlog import Client, TwinlogError, Unavailable

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SENDS_MAX = 40
"""Messages of 200 KB: several times the log files that a full disk still has."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisks]:
    """Two nodes, each on a file system of its own; one may be out of sync."""
    if os.geteuid() != 0:
        pytest.skip(NOT_ALLOWED)
    found = SmallDisks(tmp_path)
    try:
        if found.trouble:
            refused = "Operation not permitted" in found.trouble
            pytest.skip(f"{NOT_ALLOWED}: {found.trouble}" if refused else found.trouble)
        found.start_all()
        yield found
    finally:
        found.close()


def body(number: int) -> bytes:
    """A message that no other equals."""
    return b"%06d" % number + bytes(200_000)


def send(address: str, sent: list[bytes]) -> None:
    """Send once; what was acknowledged goes to ``sent``.

    An answer may take a minute, so that none is lost to a machine that stands still. A refusal for
    now is the last word: the pause behind it is longer than that, and jumped over.
    """
    clock = Clock()
    clock.jumps = True
    with pytest.MonkeyPatch.context() as patched:
        be_patient(patched)
        use(clock, patched)
        for name in ("FIRST", "MAX"):
            patched.setattr(f"twinlog.session.session.BACKOFF_{name}", 3600.0)
        with Client(address, timeout=60.0) as client:
            client.send("t", body(len(sent)), queue=0)
    sent.append(body(len(sent)))


def send_until_refused(address: str, sent: list[bytes]) -> TwinlogError:
    """Send until the node has no room."""
    for _ in range(SENDS_MAX):
        try:
            send(address, sent)
        except TwinlogError as error:
            return error
    raise AssertionError(f"{SENDS_MAX} sends of 200 KB found room on a full disk")


def test_a_full_file_system_loses_nothing(small: SmallDisks) -> None:
    """First the slave's disk is full, then the master's; each goes on by itself when there is room.

    Refused means refused: what is read at the end is exactly what was acknowledged.
    """
    master = small.settled()
    slave = "n2" if master == "n1" else "n1"
    sent: list[bytes] = []
    address = ":".join(map(str, small.address(master)))
    with Client(address, timeout=120.0) as client:
        client.create_topic("t", queues=1)

        small.fill(slave)
        while slave in in_sync(small, master):
            assert len(sent) < SENDS_MAX
            sent.append(body(len(sent)))
            client.send("t", sent[-1], queue=0)
        assert "disk" in str(small.peer(master, slave)["why"])
        small.until(lambda: "full-slave" in problems(small), "the sentence of a full slave")
        small.kill(slave)
        small.start(slave)  # a start finds room even now
        assert slave not in in_sync(small, master)
        small.free(slave)
        small.settled(2)

        small.fill(master)
        refused = send_until_refused(address, sent)
        assert isinstance(refused, Unavailable)
        assert f"unavailable: disk of {master} is full" in refused.text
        assert read(client, master) == sent
        small.free(master)
        small.until(lambda: accepted(address, sent), "a write after space was freed")
        small.settled(2)
        for name in (master, slave):
            small.until(lambda name=name: len(read(client, name)) >= len(sent), "the queues")  # type: ignore[misc]
            assert read(client, name) == sent


def problems(small: SmallDisks) -> list[str]:
    """Codes of what ``cluster health`` says is wrong."""
    line = [sys.executable, "-m", "twinlog", "-c", str(small.path), "cluster", "health"]
    found = subprocess.run(
        [*line, "-o", "name"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    return found.stdout.split()


def in_sync(small: SmallDisks, master: str) -> list[str]:
    """The in-sync set as the master sees it."""
    found = small.told(master)["in_sync"]
    assert isinstance(found, list)
    return [str(name) for name in found]  # pyright: ignore


def accepted(address: str, sent: list[bytes]) -> bool:
    """Send one message; whether there was room."""
    try:
        send(address, sent)
    except Unavailable:
        return False
    return True


def read(client: Client, name: str) -> list[bytes]:
    """Everything that a node serves."""
    return [message.body for message in client.read("t", queue=0, read_from=name)]
