"""Epochs along the log, and the records that open them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.log.epoch_history import EpochHistory, EpochPattern, EpochRecord, encode_epoch
from twinlog.format.epoch_file import epoch_file_pack


def record(epoch: int, start: int, previous: int = 0) -> EpochRecord:
    """An epoch record."""
    return EpochRecord(epoch, start, "n1", 1, 0, previous, 0, 0, "test", "test")


def history(*epochs: tuple[int, int]) -> EpochHistory:
    """A history of epochs and their starts."""
    found = EpochHistory()
    for epoch, start in epochs:
        assert found.add(record(epoch, start))
    return found


TWO = ((1, 0), (3, 500))


@pytest.mark.parametrize(
    ("epochs", "value", "at", "refused"),
    [
        (TWO, record(3, 500, 1), 900, ""),
        (TWO, record(3, 501, 1), 900, "another start"),
        (TWO, record(2, 900, 3), 900, "older than the last"),
        (TWO, record(4, 900, 3), 900, ""),
        (TWO, record(4, 901, 3), 900, "does not start at its record"),
        (TWO, record(4, 900, 2), 900, "follows another one"),
        ((), record(4, 100, 3), 900, ""),
        ((), record(4, 901, 3), 900, "starts after its record"),
    ],
)
def test_an_epoch_record_continues_the_history(
    epochs: tuple[tuple[int, int], ...], value: EpochRecord, at: int, refused: str
) -> None:
    """At the head of a file it repeats; else it opens the next epoch, at its own place."""
    found = history(*epochs).refusal(value, at)
    assert found is None if not refused else refused in str(found)


def test_an_epoch_is_entered_once() -> None:
    """By its record, or by the filler before it; a cut takes it out again."""
    found = history(*TWO)
    assert not found.add(record(3, 500))
    found.open(3, 700)
    found.open(5, 900)
    assert [(one.epoch, one.start) for one in found.epochs] == [*TWO, (5, 900)]
    assert found.file() == epoch_file_pack([*TWO, (5, 900)])
    found.cut(900)
    assert (found.last, found.last_start) == (3, 500)
    found.cut(0)
    assert (found.last, found.last_start, found.epochs) == (0, 0, ())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_epoch_record_by_its_pattern_is_the_encoded_one(host: str) -> None:
    """Whatever differs from file to file; chains of fewer bytes are left to the encoder."""
    value = EpochRecord(3, 700, "n1", 1 << 60, 1_700_000_000_000, 2, 650, 700, "kill", "n2")
    pattern = EpochPattern(value, (host, 7410))
    for chain, place in ((1 << 16, 0), (0xFFFFFFFF, 1 << 40), (123_456_789, 1024)):
        places = {"log_offset": place, "queue_offset": place // 9, "store_timestamp": place + 5}
        encoded = encode_epoch(replace(value, chain=chain), **places, store_host=(host, 7410))
        assert pattern.fill(**places, chain=chain) == encoded
    assert pattern.fill(log_offset=0, queue_offset=0, store_timestamp=0, chain=65_535) is None
