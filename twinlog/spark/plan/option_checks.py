"""Options of the source that contradict each other; pure.

Not here: the options and their values one by one (`twinlog.spark.plan.options`).
"""

from __future__ import annotations

from posixpath import normpath

from twinlog.spark.errors import SourceError, listed
from twinlog.spark.plan.option_values import EARLIEST
from twinlog.spark.plan.options import Options


def refuse(found: Options, use: str) -> None:
    """Refuse options that contradict each other.

    Args:
        found: The options.
        use: ``batch`` or ``stream``.

    Raises:
        SourceError: Two of them do.
    """
    ways = {
        "subscribe": found.subscribe,
        "subscribePattern": found.pattern,
        "assign": found.assign,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        text = f"{listed(given, 'and')} are given"
        raise SourceError(text, code="option", hint="name the topics in one way")
    if found.path is None and found.servers is None and not found.archive:
        text = "nothing says where the records are"
        hint = "set servers, or give load() a store directory"
        raise SourceError(text, code="option", hint=hint)
    found.credentials.refuse(cluster=found.servers is not None)
    _with_archive(found)
    roots = [normpath(root) for root in found.path or ()]
    if len(set(roots)) < len(roots):
        text = f"a directory is named twice in {', '.join(found.path or ())}"
        raise SourceError(text, code="option", hint="each row would come twice")
    if found.path is not None and found.servers is not None:
        text = "servers and path are given"
        raise SourceError(text, code="option", hint="read a cluster or directories")
    if found.isolation == "written" and (found.servers is not None or use == "stream"):
        text = "isolation written reads directories, in batch queries"
        hint = "leave it out: nodes serve what is confirmed, and a stream must not read what is cut"
        raise SourceError(text, code="option", hint=hint)
    if found.servers is not None and found.split_mode == "log":
        text = "splitMode log reads directories"
        raise SourceError(text, code="option", hint="leave it out: nodes serve queues")
    _light(found)
    if found.ending_offsets.word == EARLIEST or any(
        value == EARLIEST
        for queues in found.ending_offsets.queues.values()
        for value in queues.values()
    ):
        text = "an end cannot be earliest or -2, the start"
        raise SourceError(text, code="option", hint="give -1 or a number")
    _bounds(found)
    if found.max_offsets_per_trigger and found.max_bytes_per_trigger:
        text = "maxOffsetsPerTrigger and maxBytesPerTrigger are given"
        raise SourceError(text, code="option", hint="one of them limits a batch")
    if found.include_headers and not found.kafka_columns:
        text = "includeHeaders belongs to kafkaColumns"
        raise SourceError(text, code="option", hint="set kafkaColumns to true")


def _light(found: Options) -> None:
    """Refuse light queues where they cannot be read."""
    light = [
        name
        for name in (*(found.subscribe or ()), *(found.assign or ()))
        if name.startswith("%LMQ%")
    ]
    if light and found.servers is not None:
        text = f"{light[0]} is a light queue: Spark reads those of directories"
        raise SourceError(text, code="option", hint=f"twinlog message read {light[0]} reads it")
    if light and found.split_mode == "log":
        text = f"splitMode log walks the log, where no record is of {light[0]}"
        raise SourceError(text, code="option", hint="use splitMode queue: queues name its records")


def _bounds(found: Options) -> None:
    """Refuse starts and ends that are given twice, or have no meaning."""
    bounds = (
        found.starting_timestamp,
        found.ending_timestamp,
        found.starting_by_time,
        found.ending_by_time,
        found.starting_offsets,
        found.ending_offsets.queues,
    )
    if found.range is not None and any(bounds):
        text = "range is given together with a start or an end"
        raise SourceError(text, code="option", hint="say it in one way")
    if found.split_mode == "log" and any((found.range, *bounds)):
        text = "splitMode log reads the whole log, so starts and ends by queue mean nothing"
        raise SourceError(text, code="option", hint="use splitMode queue, or filter the rows")


def _with_archive(found: Options) -> None:
    """Refuse what an archive cannot do, and a tier without one."""
    if found.archive is None:
        if found.tier == "archive":
            raise SourceError("tier archive needs an archive", code="option", hint="set archive")
        return
    if found.path is None and found.servers is None and found.tier == "live":
        text = "tier live needs a live store"
        raise SourceError(text, code="option", hint="set servers, or give load() a directory")
    if found.path is not None and len(found.path) > 1:
        text = "an archive belongs to one store, and several directories are given"
        raise SourceError(text, code="option", hint="read them one by one")
    if found.split_mode == "log":
        text = "splitMode log reads the log of a directory, not an archive"
        raise SourceError(text, code="option", hint="leave it out, or restore the archive first")
