"""Archives and real processes: retention that waits for one, slaves that go, a driver that dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("pyarrow", reason="needs the extra spark")

from cli.dev.private_cluster import free_ports
from node.config.pages import Local, write_local
from tests.fixtures.processes import ROOT, SECONDS, Processes
from tests.stores.sample import Ours
from twinlog import Client
from twinlog.spark.archive import notify_nodes
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.integrity import ArchiveIntegrity
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.restore import RestoreSettings, restore
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Verdict
from twinlog.spark.nodes import nodes as access
from twinlog.spark.nodes.nodes import NodeAccess
from twinlog.spark.nodes.remote_log import RemoteLog

pytestmark = pytest.mark.processes

MiB = 1 << 20
WAITING = '\n[retention]\narchive = true\nkeep_bytes = "1 MiB"\ndelete_at = "any time"\n'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Two nodes with files of 1 MiB that would go at once, were it not for the archive."""
    folder = tmp_path_factory.mktemp("cluster")
    local = Local(failover="manual", nodes=2, base_port=free_ports(2), segment_size=MiB)
    write_local(folder / "cluster.toml", local)
    with (folder / "cluster.toml").open("a") as file:
        file.write(WAITING)
    found = Processes(folder, nodes=2)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def servers(cluster: Processes) -> tuple[str, ...]:
    """The nodes that run."""
    names = [name for name in cluster.running if name != "coordinator"]
    return tuple("{}:{}".format(*cluster.address(name)) for name in names)


def send(cluster: Processes, records: int) -> None:
    """Send records of 1 KiB."""
    with Client(servers(cluster), timeout=120.0) as client:
        client.create_topic("orders", 2)
        with client.producer("orders") as producer:
            for number in range(records):
                producer.send(b"%01024d" % number, key=f"k{number}")


def part(cluster: Processes, node: str, name: str) -> Mapping[str, object]:
    """A part of a node's status."""
    return cast("Mapping[str, object]", cluster.told(node)[name])


def starts(cluster: Processes) -> list[object]:
    """Where the nodes' logs start."""
    return [part(cluster, name, "offsets")["start"] for name in ("n1", "n2")]


def files(cluster: Processes, node: str) -> list[int]:
    """The log files on a node's disk."""
    return sorted(
        int(path.name) for path in (cluster.config.node(node).data / "commitlog").glob("0*")
    )


def test_retention_deletes_what_is_proven_and_nothing_else(
    cluster: Processes, tmp_path: Path
) -> None:
    """Nothing before it is notified; then exactly the manifest's files, on master and slave; the
    rest waits for the archive. What went comes back byte for byte."""
    to = tmp_path / "archive"
    send(cluster, 7000)
    held = {n: (cluster.config.node("n2").data / "commitlog" / f"{n:020d}").read_bytes()
            for n in files(cluster, "n2")[:3]}  # fmt: skip
    settings = ArchiveSettings(None, to, servers=servers(cluster))
    found = archive(PlainEngine(), replace(settings, silent=True))
    assert int(str(found.fields["covered_end"])) >= 5 * MiB and starts(cluster) == [0, 0]
    manifest = ArchiveDir(to).newest()
    three = replace(manifest, segments=manifest.segments[:3])

    def two_snapshots() -> bool:
        """A node makes one for each new file, about once a second; two let files go."""
        send(cluster, 300)
        limits = [int(str(part(cluster, name, "retention")["limit"])) for name in ("n1", "n2")]
        return min(limits) >= 4 * MiB

    cluster.until(two_snapshots, "snapshots that let four files go")
    assert starts(cluster) == [0, 0] and files(cluster, "n1")[0] == 0
    whole = ArchiveIntegrity(PlainEngine(), to, ())
    told = notify_nodes.notify(settings.servers, "g1", three, whole.namable, lambda: manifest)
    assert [(one.node, one.archived, one.state) for one in told] == [
        ("n1", 3 * MiB, "told"), ("n2", 3 * MiB, "told"),
    ]  # fmt: skip
    cluster.until(lambda: starts(cluster) == [3 * MiB] * 2, "three files to leave")
    cluster.until(
        lambda: all(part(cluster, n, "retention")["waits"] == "archive" for n in ("n1", "n2")),
        "the fourth to wait for the archive",
    )
    cluster.until(lambda: files(cluster, "n1")[0] == files(cluster, "n2")[0] == 3 * MiB, "removal")
    shown = subprocess.run(
        [sys.executable, "-m", "twinlog", "-c", str(cluster.path), "node", "show", "n2"],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=True,
    ).stdout  # fmt: skip
    assert "archived offset" in shown and str(3 * MiB) in shown
    restore(PlainEngine(), RestoreSettings(to, tmp_path / "back", end=3 * MiB))
    for base, data in held.items():
        assert (tmp_path / "back" / "commitlog" / f"{base:020d}").read_bytes() == data
    cluster.kill("n2")
    cluster.start("n2")
    assert part(cluster, "n2", "retention")["archived"] == 3 * MiB, "the mark is durable"


def test_a_slave_that_dies_while_its_log_is_read(
    cluster: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL between two pieces: the master goes on at the very byte."""
    monkeypatch.setattr(access, "ATTEMPT_SECONDS", SECONDS)  # who stands still is no dead slave
    first = int(str(starts(cluster)[0]))
    send(cluster, 3000)
    cluster.until(
        lambda: int(str(part(cluster, "n2", "offsets")["confirm"])) >= first + 2 * MiB,
        "a slave that has what is read",
    )
    data, nodes = b"", list[str]()
    log = RemoteLog(NodeAccess(servers(cluster), "slave", SECONDS))
    try:
        for piece in log.read(first, first + 2 * MiB):
            data += piece.data
            nodes.append(piece.node)
            if len(nodes) == 1:
                cluster.kill(piece.node)
    finally:
        log.close()
    master = cluster.config.node("n1").data / "commitlog"
    names = [f"{at:020d}" for at in (first, first + MiB)]
    assert data == b"".join((master / name).read_bytes() for name in names)
    assert nodes == ["n2", "n1"]


DRIVER = """
import os, sys, time
from pathlib import Path
from cli.app import main
from twinlog.spark.archive import archive_dir as place
real = os.link
def link(source, target):
    if sys.argv[1] == "after":
        real(source, target)
    print("here", flush=True)
    time.sleep(600)
place.os.link = link
main(["spark", "archive", "--path", sys.argv[2], "--to", sys.argv[3]], dict(os.environ))
"""


@pytest.mark.parametrize("step", ["before", "after"])
def test_sigkill_of_the_driver_in_the_commit(step: str, tmp_path: Path) -> None:
    """The manifest is there or not; the next run makes it good either way."""
    made, to = Ours(), tmp_path / "archive"
    made.open_epoch(1)
    for number in range(40):
        made.batch(b"x" * 100, b"%d" % number)
    root = made.write(tmp_path / "s", confirm=made.end)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, step, str(root), str(to)],
        cwd=ROOT,
        env={**os.environ, "TWINLOG_SPARK_ENGINE": "plain"},
        stdout=subprocess.PIPE,
    )
    assert driver.stdout is not None and driver.stdout.readline() == b"here\n"
    driver.kill()
    driver.wait(SECONDS)
    driver.stdout.close()
    assert ArchiveDir(to).newest().number == (step == "after")
    found = archive(PlainEngine(), ArchiveSettings(root, to, orphans_after=-60))
    assert found.fields["manifest"] == 1
    named = ArchiveDir(to).newest().files()
    held = {
        p.relative_to(to).as_posix() for f in ("data", "keys") for p in (to / f).rglob("*.parquet")
    }
    assert held <= named, "what the dead run left is collected"
    assert restore(PlainEngine(), RestoreSettings(to, None, check=True)).verdict is Verdict.FINE
