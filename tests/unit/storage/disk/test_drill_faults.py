"""A disk that a drill makes slow, full or faulty, and right again when the file is gone."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from storage.disk.disk import RealDisk
from storage.disk.drill_faults import LOOK_SECONDS, PATH, DrillFaults, lose_power
from storage.errors import DiskError, DiskFull

SECONDS = 30.0


class Asked:
    """A disk under a drill, and the file that says what is wrong."""

    def __init__(self, root: Path) -> None:
        self.path = root / PATH
        self.path.parent.mkdir(parents=True)
        self.faults = DrillFaults(root, look_seconds=0.0)
        self.disk = RealDisk(root, drill=self.faults)

    def say(self, faults: dict[str, object] | None) -> None:
        """Write the file, or remove it."""
        if faults is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_text(json.dumps(faults))


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """A disk, nothing wrong with it."""
    return Asked(tmp_path)


def test_an_error_is_met_and_ends(asked: Asked) -> None:
    """Flushes and new files; reading goes on."""
    asked.disk.write_file("a", b"a", "test")
    asked.say({"error": errno.EIO})
    with pytest.raises(DiskError, match="EIO"):
        asked.disk.fsync("a", "test")
    with pytest.raises(DiskError, match="EIO"):
        asked.disk.write_file("a", b"b", "test")
    with pytest.raises(DiskError, match="EIO"):
        asked.disk.map("m", 4096, op="test", create=True)
    assert asked.disk.read("a", "test") == b"a"
    asked.say(None)
    asked.disk.fsync("a", "test")


def test_a_full_disk_takes_no_new_file(asked: Asked) -> None:
    """And shows as full; a file that is there can be written and flushed."""
    mapping = asked.disk.map("m", 4096, op="test", create=True)
    asked.say({"full": True})
    assert asked.disk.free_bytes()[0] == 0
    with pytest.raises(DiskFull):
        asked.disk.map("n", 4096, op="test", create=True)
    with pytest.raises(DiskFull):
        asked.disk.create_sparse("s", 4096, "test")
    mapping.buffer[:1] = b"x"
    mapping.flush_range(0, 1, "test")
    asked.say(None)
    assert asked.disk.free_bytes()[0] > 0
    mapping.close()


def test_a_slow_flush_ends_when_the_file_is_gone(asked: Asked) -> None:
    """It waits, and looks meanwhile."""
    mapping = asked.disk.map("m", 4096, op="test", create=True)
    asked.say({"slow_seconds": 500.0})
    flushing = threading.Thread(target=mapping.flush_range, args=(0, 1, "test"))
    flushing.start()
    flushing.join(4 * LOOK_SECONDS)
    assert flushing.is_alive()
    asked.say(None)
    flushing.join(SECONDS)
    assert not flushing.is_alive()
    mapping.close()


@pytest.mark.parametrize("text", ["", "[]", '{"error": "x", "full": 1, "clock_ms": null}'])
def test_an_odd_file_is_no_fault(text: str, asked: Asked) -> None:
    """Half of a file, or of another kind."""
    asked.path.write_text(text)
    asked.faults.flush()
    asked.faults.create()
    assert (asked.faults.full, asked.faults.clock_ms) == (False, 0)


def test_a_clock_is_ahead(asked: Asked) -> None:
    """By what the file says."""
    asked.say({"clock_ms": 3_600_000})
    assert asked.faults.clock_ms == 3_600_000


def test_a_loss_of_power_takes_what_was_not_flushed(asked: Asked, tmp_path: Path) -> None:
    """Of log files only; a restart without one remembers what an earlier process flushed."""
    asked.disk.make_dir("commitlog", "test")
    mapping = asked.disk.map("commitlog/0", 8192, op="test", create=True)
    mapping.buffer[:5000] = b"a" * 5000
    mapping.flush_range(0, 3000, "test")
    mapping.flush_range(1000, 2000, "test")
    other = asked.disk.map("queue", 4096, op="test", create=True)
    other.buffer[:4] = b"kept"
    boot = asked.disk.boot_id()
    again = RealDisk(tmp_path, drill=DrillFaults(tmp_path))
    assert again.boot_id() == boot
    third = again.map("commitlog/0", 8192, op="test")
    third.flush_range(0, 100, "test")
    assert lose_power(tmp_path) == 2000
    assert asked.disk.read("commitlog/0", "test") == b"a" * 3000 + bytes(5192)
    assert asked.disk.read("queue", "test")[:4] == b"kept"
    assert asked.disk.boot_id() != boot
    assert lose_power(tmp_path) == 0


def test_a_log_file_that_was_never_flushed_is_lost(asked: Asked, tmp_path: Path) -> None:
    """All of it; without a log nothing happens."""
    assert lose_power(tmp_path) == 0
    asked.disk.make_dir("commitlog", "test")
    mapping = asked.disk.map("commitlog/0", 4096, op="test", create=True)
    mapping.buffer[:1] = b"a"
    assert lose_power(tmp_path) == 1
    assert asked.disk.read("commitlog/0", "test") == bytes(4096)
