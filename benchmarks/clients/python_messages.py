"""What reading a message costs the Python client, from an answer's bytes to the caller's loop.

    python benchmarks/clients/python_messages.py [--rounds 7] [--size 1024]

No node and no socket: answers of one MiB, as nodes send them, go through the reader's core, and the
caller looks at nothing, at each body, or at body, key and tag. The table shows the least and the
median time of a message.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable

from twinlog.consumer.core import Cursor, ReaderCore, ReadSettings
from twinlog.format import record
from twinlog.format.messages import Message
from twinlog.session.routing import Address, RoutingTable
from twinlog.wire.frames import ANSWER, Frame, Type

ANSWER_BYTES = 1 << 20
ANSWERS = 20


def answers(size: int) -> tuple[list[Frame], int]:
    """Answers that follow each other, and how many messages they hold."""
    text = record.encode_properties({"KEYS": "key-42", "TAGS": "paid", "region": "EU"})
    found: list[Frame] = []
    at = 0
    for _ in range(ANSWERS):
        payload, first = bytearray(), at
        while len(payload) < ANSWER_BYTES:
            payload += record.encode(
                "orders", 0, b"x" * size, properties=text, queue_offset=at, log_offset=at * 4096
            )
            at += 1
        fields: dict[str, object] = {
            "status": "found", "next": at, "start": 0, "end": 1 << 40, "count": at - first,
            "skipped": 0, "confirm": 0, "age_ms": 0, "node": "n1", "role": "master",
        }  # fmt: skip
        found.append(Frame(Type.READ, ANSWER, fields=fields, payload=memoryview(bytes(payload))))
    return found, at


def read(frames: list[Frame], look: Callable[[Iterable[Message]], None]) -> None:
    """Take every answer, and look at its messages as a caller does."""
    cursor = Cursor(0, 0, None)
    table = RoutingTable((Address("h", 1),))
    core = ReaderCore(ReadSettings("orders", follow=True), [cursor], table, 0.0)
    core.routed(fresh=True)
    for number, frame in enumerate(frames):
        core.on_asked(number, cursor)
        core.on_answer(number, frame, 0.0, 0.0)
        messages, core.messages = core.messages, type(core.messages)()
        look(messages)


def nothing(messages: Iterable[Message]) -> None:
    """Count them."""
    for _ in messages:
        pass


def bodies(messages: Iterable[Message]) -> None:
    """Look at each body."""
    for message in messages:
        message.body  # noqa: B018


def keys(messages: Iterable[Message]) -> None:
    """Look at body, key and tag."""
    for message in messages:
        message.body, message.key, message.tag  # noqa: B018


def main() -> int:
    """Take the ways in turn and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=1024)
    options = parser.parse_args()
    frames, count = answers(options.size)
    ways = {"nothing": nothing, "the body": bodies, "body, key and tag": keys}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, look in ways.items():
            began = time.perf_counter()
            read(frames, look)
            found[name].append((time.perf_counter() - began) / count * 1e6)
    print("| looks at | least | median | messages/s at least |\n|---|---|---|---|")
    for name, times in found.items():
        least, median = min(times), statistics.median(times)
        print(f"| {name} | {least:.2f} us | {median:.2f} us | {1e6 / least:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
