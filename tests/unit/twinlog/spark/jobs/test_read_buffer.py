"""The buffer that a thread borrows for pieces of a log."""

from __future__ import annotations

import threading
from pathlib import Path

from twinlog.spark.directory import read_buffer
from twinlog.store.files import FileSeries


def test_what_is_lent_is_the_same_memory_again() -> None:
    """A piece that fits costs no fresh memory; a larger one gets it; another thread has its own."""
    first = read_buffer.lend(1000)
    first[:3] = b"abc"
    assert bytes(read_buffer.lend(10)[:3]) == b"abc"
    read_buffer.lend(3 << 20)[:3] = b"xyz"
    assert bytes(first[:3]) == b"abc"
    assert bytes(read_buffer.lend(3)) == b"xyz"
    other: list[bytes] = []
    thread = threading.Thread(target=lambda: other.append(bytes(read_buffer.lend(3))))
    thread.start()
    thread.join()
    assert other == [b"\0\0\0"]


def test_a_piece_of_a_file(tmp_path: Path) -> None:
    """As many bytes as there are; none behind the end."""
    path = tmp_path / "00000000000000000000"
    path.write_bytes(b"0123456789")
    assert bytes(read_buffer.read(path, 3, 4)) == b"3456"
    assert bytes(read_buffer.read(path, 8, 4)) == b"89"
    assert not bytes(read_buffer.read(path, 10, 4))


def test_the_last_byte_that_is_written(tmp_path: Path) -> None:
    """It is found wherever it lies: in chunks before zeros, before holes, on their borders."""
    size, chunk = (3 << 20) + 100, 1 << 20
    path = tmp_path / "00000000000000000000"
    for places in ([], [0], [chunk - 1], [chunk], [5, 2 * chunk + 7], [size - 1], [3 * chunk]):
        path.unlink(missing_ok=True)
        with path.open("wb") as out:
            out.truncate(size)
            for place in places:
                out.seek(place)
                out.write(b"x" + bytes(20))
            out.truncate(size)
        series = FileSeries(tmp_path)
        for start in (0, 6, chunk):
            wanted = max((place + 1 for place in places if place >= start), default=start)
            assert series.last_written(series.files[0], start) == wanted
        series.close()
