"""Whether a start is clean: no acknowledged record can have been lost with the page cache. Pure.

Not here: where the facts come from (`storage.recovery.open`), what an unclean node may do
(``replication``). Rules: docs/protocol.md R26, R21.
"""

from __future__ import annotations

from storage.marks.run import CleanMark, Run


def decide_clean(
    last: Run | None,
    mark: CleanMark | None,
    *,
    lost: bool,
    boot_id: str | None,
    device: int,
    end: int,
    cut_batches: int,
    flushed: int,
) -> str:
    """Return why this start is not clean, or "" if it is.

    Args:
        last: The run file of the last start; None for a new store.
        mark: The mark of a clean stop.
        lost: The run file is unreadable, so nothing is known about the last run.
        boot_id: Of the running kernel.
        device: Of the data directory now.
        end: The recovered end.
        cut_batches: Batches with a valid entry that recovery cut.
        flushed: Largest flushed offset that the checkpoint or any valid entry names.
    """
    if lost:
        return "the record of the last start is lost"
    # A new store has acknowledged nothing.
    if last is None:
        return ""
    # First of all: a clean stop after an unclean start must not hide it before the register has
    # heard of it (mutant always_clean).
    if last.unclean_since is not None:
        return "an earlier start was not clean and has not been registered"
    # With another end, the log was changed after the clean stop.
    if mark is not None and mark.end == end:
        return ""
    # The kernel reports a lost page once; a later flush that succeeds proves nothing.
    if last.io_error:
        return "the disk reported an error while the store was running"
    # Acknowledged meant flushed, so a power failure has lost nothing that counts.
    if last.quality == "durable" and end >= flushed:
        return ""
    # From here on the page cache must have survived: the same kernel and the same device.
    if last.boot_id is None or boot_id is None:
        return "the kernel's boot id cannot be read"
    if last.boot_id != boot_id:
        return "the machine was restarted while the store was running"
    if last.device != device:
        return "the data directory is on another device"
    # Same kernel, and yet written entries had no bytes: something else changed the files.
    if cut_batches:
        return f"{cut_batches} written batches were lost"
    return ""
