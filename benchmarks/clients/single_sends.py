"""What a single send costs the client: the fast way beside the general one, in one run.

    python benchmarks/clients/single_sends.py [--rounds 7] [--sends 20000]

No node and no socket: a record becomes a request, a plain answer comes, the section is stored. The
two ways take turns, and the table shows the least and the median time of a send, so a busy machine
changes little. `twinlog.producer.fast_path` exists because of this table. Besides, what it costs to
add a record to a section of many.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from twinlog.producer.core import ProducerCore
from twinlog.producer.fast_path import SingleSender
from twinlog.producer.new_message import PLAIN, NewMessage
from twinlog.producer.settings import ProducerSettings, Target
from twinlog.wire.frames import ANSWER, Frame, Type

BODY = b"x" * 100
STORED: list[object] = [0, 5, 500, 590, "", "", -1]


def core() -> ProducerCore:
    """A producer whose master is known."""
    target = Target("t", 4, 4, 77, 4 << 20, 1 << 30)
    made = ProducerCore(target, ProducerSettings(window=1), random=lambda: 1.0)
    made.unrouted = False
    return made


def answer(count: int = 1) -> Frame:
    """The plain answer to a request of ``count`` sections."""
    fields: dict[str, object] = {"results": [STORED] * count, "confirmed_by": ["n1", "n2"]}
    return Frame(Type.APPEND, ANSWER, fields={**fields, "epoch": 3})


def fast(sends: int) -> None:
    """As a client sends one message."""
    single, said = SingleSender(core()), answer()
    for _ in range(sends):
        now = time.monotonic()
        section, request = single.send(BODY, PLAIN, now, 1, timeout=30.0)
        assert request is not None
        single.on_answer(request.number, said, now)
        assert section.done


def general(sends: int) -> None:
    """The same by way of the lanes."""
    made, said = core(), answer()
    for _ in range(sends):
        now = time.monotonic()
        section = made.add(BODY, PLAIN, now, 1)
        made.close(section, now)
        request = made.next_request(now)
        assert request is not None
        made.on_answer(request.number, said, now)
        assert section.done


def adding(message: NewMessage) -> Callable[[int], None]:
    """Records into sections of many, sent and answered as they fill."""

    def run(sends: int) -> None:
        made = core()
        for _ in range(sends):
            made.add(BODY, message, time.monotonic(), time.time_ns() // 1_000_000)
            if made.due:
                while request := made.next_request(time.monotonic()):
                    made.on_answer(request.number, answer(len(request.pieces)), 1.0)

    return run


WAYS: dict[str, Callable[[int], None]] = {
    "single send, fast way": fast,
    "single send, general way": general,
    "one record of many": adding(PLAIN),
    "one record of many, with key and tag": adding(NewMessage("key-42", "paid")),
}


def main() -> int:
    """Take the ways in turn and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sends", type=int, default=20_000)
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(options.rounds):
        for name, way in WAYS.items():
            began = time.perf_counter()
            way(options.sends)
            found[name].append((time.perf_counter() - began) / options.sends * 1e6)
    print("| | least | median |\n|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {min(times):.2f} us | {statistics.median(times):.2f} us |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
