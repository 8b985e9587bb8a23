"""Whether a start is clean: nothing acknowledged can have been lost with the page cache. Pure.

Not here: where the facts come from (`storage.recovery.open`), what an unclean node may do
(``replication``). Rules: docs/protocol.md R21.
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
    """Return why this start is not clean, or "" when it is.

    Args:
        last: What the last start wrote; None for a new store.
        mark: The mark of a clean stop.
        lost: What it wrote is lost, so nothing tells what came after it.
        boot_id: Of the running kernel.
        device: Of the data directory now.
        end: The recovered end.
        cut_batches: Batches with a valid entry that recovery cut.
        flushed: Largest flushed offset that anything names.
    """
    if lost:
        return "what the last start wrote down is lost"
    if last is None:
        return ""
    if last.unclean_since is not None:
        return "an earlier start was not clean and has not been registered"
    if mark is not None and mark.end == end:
        return ""
    if last.io_error:
        return "the disk reported an error while the store was running"
    if last.quality == "durable" and end >= flushed:
        return ""
    if last.boot_id is None or boot_id is None:
        return "the kernel's boot id cannot be read"
    if last.boot_id != boot_id:
        return "the machine was restarted while the store was running"
    if last.device != device:
        return "the data directory lies on another device"
    if cut_batches:
        return f"{cut_batches} written batches were lost"
    return ""
