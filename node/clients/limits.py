"""Limits of a node for its clients: every queue has a limit with a name.

Beyond a limit the client is answered ``busy`` or not read from; nothing grows with the number of
clients except what is listed here. An idle connection takes 4 KiB; one that stopped reading holds
the answers under way at that moment, which are mostly views of the mapped log.

Units are in the names. Not here: limits of frames (``twinlog.wire.frames``), of the log
(``storage.settings``) and of slaves (``replication.settings``).
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

KiB = 1024
MiB = 1024 * KiB


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the client server; defaults are those of ``cluster.toml``."""

    connections_max: int = 4096
    """Client connections at the same time; one more is answered ``busy`` and closed."""

    requests_in_flight_max: int = 4096
    """Unanswered requests of one connection; the next is answered ``busy``."""

    bytes_in_flight_max: int = 16 * MiB
    """Bytes of unanswered appends of one connection; the next append is answered ``busy``."""

    producers_waiting_max: int = 10_000
    """Appends of all connections waiting for their acknowledgement."""

    response_size_max: int = 8 * MiB
    """Records in one answer, bytes; the wire's own limit for a payload."""

    queue_wait_seconds: float = 0.2
    """An append that waited longer for the append path is refused ``busy``: the client can react
    early, and a copy that it sends elsewhere is not written here, too (RocketMQ's fast failure)."""

    page_cache_busy_seconds: float = 1.0
    """After an append that took longer than this because of the page cache, appends are refused
    ``busy`` for the same time: those that arrived meanwhile would wait, too (RocketMQ's rule)."""

    congested_bytes: int = 64 * KiB
    """Unsent answers of a connection beyond which it is not read from."""

    partial_frames_bytes_max: int = 256 * MiB
    """Memory of all half-received frames together; beyond it the largest are closed."""

    stall_seconds: float = 30.0
    """A connection that takes no answers, or does not finish its frame, for this long is closed."""

    hello_seconds: float = 10.0
    """A connection that has not sent HELLO by then is closed."""

    spin_seconds: float = 0.0005
    """How long the event loop polls for more work before it sleeps."""

    long_poll_seconds_max: float = 30.0
    """Longest time a read waits for new records, whatever it asks for."""

    cold_reads_max: int = 4
    """Threads for reads that must wait for the disk."""

    cold_bytes_max: int = 16 * MiB
    """Memory of answers made by threads (cold reads, searches, pieces of the log) that clients have
    not taken yet; beyond it the next ones wait. They are copies, unlike answers from memory."""

    cold_share_max: int = 4 * MiB
    """Share of one connection, or one answer: a slow client does not delay others."""

    cold_waiting_max: int = 4096
    """Answers that wait for this memory, one connection a quarter of them; the next is refused
    ``busy``."""

    cold_drain_seconds: float = 20.0
    """How long a client may leave an answer that holds this memory, plus the time its unsent bytes
    need at ``cold_drain_bytes_min``; then its connection is closed (``slow``)."""

    cold_drain_bytes_min: int = 256 * KiB
    """Bytes a second, see ``cold_drain_seconds``."""

    finds_max: int = 2
    """Searches at a time, one of each connection; each has a thread besides ``cold_reads_max``."""

    find_seconds_max: float = 60.0
    """A search stops after this time, or when its client is gone, and says so."""


def connections_that_fit(most: int) -> int:
    """Raise the limit of open files as far as the system grants; return how many may be clients.

    At most three eighths of them; queue files get nine sixteenths, and the rest is for the log: a
    store without a descriptor for a flush ends the node.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # some systems name a limit that they do not grant
    return most if soft == resource.RLIM_INFINITY else min(most, max(soft * 3 // 8, 1))


QUEUE_DESCRIPTORS_MAX = 65_536
"""Queue files that are open at a time, at most: each costs the kernel about 1 KiB."""
QUEUE_DESCRIPTORS_MIN = 64


def queue_descriptors_that_fit() -> int:
    """Return how many queue files may be open at a time: nine sixteenths of what is granted.

    A node with more queues opens and closes a file for each stretch of a queue's entries.
    """
    granted = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if granted == resource.RLIM_INFINITY:
        return QUEUE_DESCRIPTORS_MAX
    return max(min(granted * 9 // 16, QUEUE_DESCRIPTORS_MAX), QUEUE_DESCRIPTORS_MIN)
