"""The read path against sendfile: the same bytes, out of the page cache, to the same client.

    python benchmarks/clients/read_path.py [--seconds 1] [--rounds 3] [--size 256MiB] [--hot SIZE]

*twinlog*: one node (``twinlog dev up``) with a topic of records of 1 KiB, read by requests of up to
1 MiB (READ), of which `DEPTH` are under way on one connection: queue entries compared with the log,
slices of the mapped file, a CRC over each answer.

*The peer*: ``sendfile.c``, compiled here: a server that answers each request with a header and
``sendfile(2)`` of as many bytes of the node's own log file. One C client drives both and receives
every byte into the same buffer, so what differs is the server.

Both run in turn on loopback. Rates are wall time, with server and client on two cores; beside them
CPU seconds for each GB, which other work on the machine disturbs less: of both sides together, for
the kernel carries a byte of loopback in whichever process it finds running. Starts only processes
of its own, in a temporary folder, and stops them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.units import parse_size
from twinlog.wire import frames as wire

PROGRAM = [sys.executable, "-m", "twinlog"]
HERE = Path(__file__).parent
DEPTH = 4
CHUNK = 1 << 20
SECTION = 230
"""Records of a section."""
TOPIC = "read-path"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Node:
    """Where the node listens, who it is, and its first log file."""

    port: int
    pid: int
    log: Path

    def cpu(self) -> float:
        """CPU seconds it has used."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS


def hello() -> bytes:
    """The first frame of every client."""
    return wire.encode_whole(wire.Frame(wire.Type.HELLO, request=1, fields={"min": 1, "max": 1}))


def reading(number: int, offset: int, records: int) -> bytes:
    """A request for ``records`` records."""
    fields: dict[str, object] = {"topic": TOPIC, "queue": 0, "offset": offset}
    fields |= {"max_bytes": CHUNK, "max_records": records, "wait_ms": 0}
    return wire.encode_whole(wire.Frame(wire.Type.READ, request=number, fields=fields))


def ask(link: socket.socket, reader: wire.FrameReader, request: bytes) -> wire.Frame:
    """One answer of the node."""
    link.sendall(request)
    while (found := reader.next()) is None:
        reader.feed(link.recv(1 << 18))
    return found


def requests(node: Node, folder: Path, size: int) -> tuple[Path, Path]:
    """Files of requests for the same bytes: for the node, and for the peer."""
    ours, theirs = [hello()], [hello()]
    with socket.create_connection(("127.0.0.1", node.port)) as link:
        reader = wire.FrameReader()
        ask(link, reader, hello())
        offset = at = 0
        while at < size - CHUNK:
            found = ask(link, reader, reading(offset + 1, offset, 1 << 16))
            count, length = int(str(found.fields["count"])), len(found.payload)
            if not count:
                raise SystemExit(f"the node stored only {at} bytes of {size}: {found.fields}")
            ours.append(reading(len(ours), offset, count))
            place = struct.pack(">QQ", at, length)
            theirs.append(wire.encode_whole(wire.Frame(wire.Type.READ, payload=place)))
            offset, at = offset + count, at + length
    paths = folder / "ours", folder / "theirs"
    for path, frames in zip(paths, (ours, theirs), strict=True):
        path.write_bytes(b"".join(frames))
    return paths


def client(program: Path, port: int, frames: Path, seconds: float) -> dict[str, float]:
    """What the client saw."""
    words = [str(program), "read", str(port), str(frames), str(DEPTH), str(seconds)]
    found: dict[str, float] = json.loads(subprocess.check_output(words))
    return found


def row(seen: dict[str, float], server: float) -> dict[str, float]:
    """Rate, and CPU of both sides for each GB."""
    size = seen["bytes"] / 1e9
    return {"rate": size / seen["seconds"], "server": server / size, "client": seen["cpu"] / size}


def of_node(program: Path, node: Node, frames: Path, seconds: float) -> dict[str, float]:
    """One run against the node."""
    before = node.cpu()
    seen = client(program, node.port, frames, seconds)
    return row(seen, node.cpu() - before)


def of_peer(program: Path, node: Node, frames: Path, seconds: float) -> dict[str, float]:
    """One run against sendfile."""
    words = [str(program), "serve", str(node.log)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        seen = client(program, int(server.stdout.readline()), frames, seconds)
        return row(seen, float(server.stdout.readline()))


def measure(
    node: Node, folder: Path, options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """Runs of both, in turn."""
    program = folder / "sendfile"
    subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "sendfile.c")], check=True)
    ours, theirs = requests(node, folder, options.size)
    found: dict[str, list[dict[str, float]]] = {"READ": [], "sendfile": []}
    for _ in range(options.rounds):
        found["READ"].append(of_node(program, node, ours, options.seconds))
        found["sendfile"].append(of_peer(program, node, theirs, options.seconds))
    return found


def started(data: Path, size: int, hot: int) -> Node:
    """A node with records in its topic, of which the last ``hot`` bytes count as hot."""
    up = ["dev", "up", "--background", "-n", "1", "--base-port", "0", "--data", str(data)]
    hot = {"TWINLOG_STORAGE_HOT_MEMORY": str(hot), "TWINLOG_STORAGE_SEGMENT_SIZE": "1GiB"}
    surroundings = {**os.environ, **hot}
    subprocess.run([*PROGRAM, *up], check=True, stdout=subprocess.DEVNULL, env=surroundings)
    there = [*PROGRAM, "-c", str(data / "cluster.toml")]
    words = ["topic", "create", TOPIC, "--queues", "1", "-q"]
    subprocess.run([*there, *words], check=True, stdout=subprocess.DEVNULL)
    run = json.loads((data / "n1" / "twinlog" / "run.json").read_text())
    log = min((data / "n1" / "commitlog").iterdir())
    node = Node(run["ports"]["clients"], run["pid"], log)
    write(node, size)
    return node


def write(node: Node, size: int) -> None:
    """Append records, a section of 256 KiB at a time."""
    encoder = RecordEncoder(TOPIC, 0)
    for _ in range(SECTION):
        encoder.add(bytes(1024), properties=encode_properties({"TAGS": "a"}), born_timestamp=1)
    data = bytes(encoder.take())
    row = [TOPIC, 0, SECTION, len(data), 0, 0, 0]
    fields: dict[str, object] = {"ack": "written", "timeout_ms": 10_000, "sections": [row]}
    request = wire.encode_whole(wire.Frame(wire.Type.APPEND, fields=fields, payload=data))
    with socket.create_connection(("127.0.0.1", node.port)) as link:
        reader = wire.FrameReader()
        ask(link, reader, hello())
        for _ in range(size // len(data)):
            ask(link, reader, request)  # what is not stored is missed when requests are made


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """Medians, and ours as parts of the peer's."""
    lines = ["| server | GB/s | server CPU, s per GB | client CPU, s per GB |", "|---|---|---|---|"]
    middle = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    for name, one in middle.items():
        cells = f"{one['rate']:.2f} | {one['server']:.3f} | {one['client']:.3f}"
        lines.append(f"| {name} | {cells} |")
    ours, peer = middle["READ"], middle["sendfile"]
    spent = [one["server"] + one["client"] for one in (ours, peer)]
    lines.append(
        f"\nrate {ours['rate'] / peer['rate']:.0%} of sendfile's; bytes for each second of CPU of "
        f"server and client together {spent[1] / spent[0]:.0%}"
    )
    return "\n".join(lines)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 21))
    parser.add_argument("--size", type=parse_size, default=256 << 20)
    parser.add_argument(
        "--hot", type=parse_size, help="hot_memory; less than --size: read from the page cache"
    )
    parser.add_argument("--folder", type=Path, help="on the file system to measure")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="twinlog-bench-", dir=options.folder))
    data = folder / "twinlog"
    try:
        hot = options.hot or 8 * options.size
        found = measure(started(data, options.size, hot), folder, options)
        print(table(found))
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
    finally:
        down = ["dev", "down", "--wipe", "--yes", "--data", str(data)]
        subprocess.run([*PROGRAM, *down], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
