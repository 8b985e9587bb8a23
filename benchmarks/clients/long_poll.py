"""From confirmed on the master to seen by a reader that waits: at the master, and at a slave.

    python benchmarks/clients/long_poll.py [--messages 2000] [--every 2] [--json FILE]

A reader of its own process asks a node for the next record and is parked there (READ with
``wait_ms``); a producer sends one record of 100 B at a time with confirmed acknowledgement, some
milliseconds apart. Both note the system's monotonic clock, which processes share. *After the
acknowledgement* is from the moment when the producer holds it to the moment when the reader holds
the record: how much later a slave knows what clients know. It is negative where the reader is
first, for acknowledgement and record travel at the same time. *After the send* has both ways in it.

Starts a cluster of its own (a coordinator, a master, two slaves) in a temporary folder and ends it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cluster.own_cluster import Cluster, cluster, environment
from twinlog.client.blocking import Client
from twinlog.session.connection import Connection
from twinlog.session.routing import parse_endpoints
from twinlog.wire.frames import Frame, Type

TOPIC = "long-poll"
BODY = bytes(100)
WARM = 100
"""Messages at the beginning that do not count."""
WAIT_SECONDS = 20.0


def reader(address: str, first: int, count: int) -> None:
    """Print when each record was seen, as JSON; the other side of `seen_by`."""
    connection = Connection(parse_endpoints(address)[0], client="long-poll", seconds=5.0)
    seen: dict[int, float] = {}
    at = first
    print("ready", flush=True)
    while at < first + count:
        fields: dict[str, object] = {"topic": TOPIC, "queue": 0, "offset": at, "wait_ms": 10_000}
        answer = connection.ask(Frame(Type.READ, fields=fields), WAIT_SECONDS)
        now = time.monotonic()
        following = int(str(answer.fields.get("next", at)))
        if answer.is_error or (answer.fields["status"] == "none" and following <= at):
            raise SystemExit(f"no record came: {answer.fields}")
        seen |= dict.fromkeys(range(at, following), now)
        at = following
    print(json.dumps(seen))


def seen_by(
    running: Cluster, node: str, client: Client, options: argparse.Namespace
) -> list[tuple[float, float]]:
    """(after the send, after the acknowledgement) of each record, seconds."""
    first = client.offsets(TOPIC)[0][1]
    words = [__file__, "--reader", running.address(node), str(first), str(options.messages)]
    sent: dict[int, tuple[float, float]] = {}
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit("the reader did not start")
        for _ in range(options.messages):
            time.sleep(options.every / 1000)
            began = time.monotonic()
            receipt = client.send(TOPIC, BODY)
            sent[receipt.queue_offset] = began, time.monotonic()
        seen = {int(key): float(at) for key, at in json.loads(process.stdout.readline()).items()}
    rows = [(seen[at] - began, seen[at] - held) for at, (began, held) in sorted(sent.items())]
    return rows[WARM:]


def figures(rows: list[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, microseconds."""
    ordered = sorted(one * 1e6 for one in rows)
    points = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        name: ordered[min(int(len(ordered) * part), len(ordered) - 1)]
        for name, part in points.items()
    }


def main() -> int:
    """Measure master and slave in turn, twice, and print the table."""
    if len(sys.argv) > 1 and sys.argv[1] == "--reader":
        reader(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--every", type=float, default=2.0, help="milliseconds between sends")
    parser.add_argument("--folder", type=Path, help="on the file system to measure")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.messages = max(options.messages, 2 * WARM)
    found: dict[str, dict[str, dict[str, float]]] = {}
    lines = ["| reader waits at | after | p50 | p99 | largest |", "|---|---|---|---|---|"]
    with cluster(options.folder) as running:
        nodes = {"the master": "n1", "a slave": "n2"}
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in nodes}
        with Client([running.address("n1")]) as client:
            client.create_topic(TOPIC, 1)
            for _ in range(2):
                for name, node in nodes.items():
                    rows[name] += seen_by(running, node, client, options)
    for name, all_ in rows.items():
        found[name] = {}
        for at, what in enumerate(("the send", "the acknowledgement")):
            one = found[name][what] = figures([row[at] for row in all_])
            cells = " | ".join(f"{one[key]:,.0f} us" for key in ("p50", "p99", "max"))
            lines.append(f"| {name} | {what} | {cells} |")
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
