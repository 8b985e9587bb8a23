"""``twinlog log epochs``: which epochs a store knows, and where each begins and ends.

Not here: the history itself (``twinlog.store.epochs``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit
from cli.fields import Fields
from cli.log.directory import open_store
from cli.parsing import PRIVATE


def epochs(directory: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Show the epochs a store knows: who wrote which bytes.

    Args:
        directory: The data directory of a node, or a RocketMQ store in controller mode.
    """
    with open_store(directory) as store:
        history, end = store.kept_epochs(), store.end
    ends = [start for _, start in history[1:]] + [end]
    found: list[Fields] = []
    for (epoch, start), following in zip(history, ends, strict=False):
        stop = max(min(following, end), start)  # RocketMQ's file may know more than the log has
        found.append({"epoch": epoch, "start": start, "end": stop, "bytes": stop - start})
    context.printer.answer(
        Answer(
            kind="LogEpochs",
            fields={"directory": str(directory), "epochs": found},
            tables=[Table.of("EPOCH> START> END> BYTES>:size", found)],
            items=found,
            names=[str(item["epoch"]) for item in found],
        )
    )
    return Exit.OK
