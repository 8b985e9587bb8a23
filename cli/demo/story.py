"""``twinlog demo``: start a cluster, feed it, kill its master, and check every promise.

The story, on a cluster of one coordinator and three nodes in a temporary directory:

1. the flights of a month are sent, acknowledged ``confirmed``, and read back from a slave, row by
   row;
2. a second load of 5,000 messages a second runs, and two members of a group handle all messages;
   the master is killed (SIGKILL) in the middle; the demo asks the coordinator for another master,
   as an operator would; load and group go on by themselves; the load ends 3 s after the new
   master's first acknowledgement;
3. the old master starts again, cuts what was never confirmed, and catches up;
4. everything acknowledged is held against everything that can be read and against what the group
   handled, and the three logs are compared byte for byte.

Exit 0: every promise was kept.  1: one was broken.  2: the demo could not tell.  130: Ctrl-C; then
nothing is left running.

Not here: processes (``cli.dev.private_cluster``), sending (``load``), the group
(``workers``), bookkeeping (``ledger``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cli.answer import Answer, Cell, Seconds, Size, Table, columns
from cli.cluster.status import fetch_history
from cli.context import Context
from cli.demo.input import Flight, flights
from cli.demo.ledger import Comparison, Handlings, Ledger, compare
from cli.demo.load import TOPIC, PacedLoad, send_all
from cli.demo.workers import Workers
from cli.dev.private_cluster import PrivateCluster, first_difference
from cli.failures import NOTHING_LEFT, Exit, Failure, Interrupted, undisturbed
from cli.fields import whole
from cli.parsing import PRIVATE
from twinlog.store.reader import StoreReader
from twinlog.units import MiB, format_duration

if TYPE_CHECKING:
    from node.config.pages import Local

SEGMENT_SIZE = 16 * MiB
"""One log file: small, so that the demo crosses files and stays light on a laptop's disk."""
QUEUES = 8
BEFORE_KILL_SECONDS = 2.0
AFTER_FAILOVER_SECONDS = 3.0
"""How long the second load goes on after the new master's first acknowledgement."""
FAILOVER_SECONDS = 25.0
STEPS = 8


def _local() -> Local:
    """Three nodes at ports of the system's choice, so that no other cluster is disturbed."""
    from node.config.pages import Local

    # The demo shows the command that makes another node master.
    return Local(base_port=0, segment_size=SEGMENT_SIZE, failover="manual")


@dataclass
class Report:
    """What the demo found out, step by step."""

    flights: int = 0
    load_seconds: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    from_slave: Comparison | None = None
    at_end: Comparison | None = None
    handlings: Handlings = field(default_factory=Handlings)
    lag: int | None = None
    old_master: str = ""
    new_master: str = ""
    write_gap: float | None = None
    cut_bytes: int = 0
    equal_to: int = 0
    difference: int | None = None

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        both = (self.from_slave, self.at_end)
        read = all(one is not None and one.kept for one in both)
        return (
            read and self.group_even and self.difference is None and bool(self.ledger.acknowledged)
        )

    @property
    def group_even(self) -> bool:
        """Whether the group handled all that was acknowledged, has nothing left, none too early."""
        missing = self.handlings.missing(self.ledger.acknowledged)
        return not missing and self.lag == 0 and not self.handlings.too_early


class Demo:
    """The running demo: a cluster, a report, and the steps in order."""

    def __init__(self, cluster: PrivateCluster, context: Context, rate: int) -> None:
        self.cluster = cluster
        self.context = context
        self.rate = rate
        self.report = Report()
        self._step = 0

    def say(self, text: str) -> None:
        """Begin a step."""
        self._step += 1
        self.context.printer.note(f"{self._step}/{STEPS}  {text}")

    def show(self, text: str) -> None:
        """Show progress within a step."""
        self.context.printer.status(f"     {text}")

    def run(self, rows: list[Flight]) -> None:
        """Do all of it.

        Raises:
            Failure: Something that is no broken promise went wrong; the demo could not tell.
        """
        self.report.flights = len(rows)
        self._start()
        self._load(rows)
        self._read_back(rows)
        self._lose_the_master(rows)
        self._bring_it_back()
        self._check(rows)

    def _start(self) -> None:
        self.say("a coordinator and three nodes start")
        began = time.monotonic()
        self.cluster.write(_local())
        self.cluster.start()
        view = self.cluster.wait_in_sync()
        seconds = format_duration(time.monotonic() - began)
        names = ", ".join(node.name for node in view.nodes)
        self._detail(f"{names} in sync, {view.leader} is master, after {seconds}")

    def _load(self, rows: list[Flight]) -> None:
        self.say(f"{len(rows)} flights are sent to topic {TOPIC}, each one confirmed")
        began = time.monotonic()
        with self.cluster.client() as client:
            client.create_topic(TOPIC, QUEUES)
            send_all(client, rows, self.report.ledger, self.show)
        self.report.load_seconds = time.monotonic() - began
        rate = len(rows) / self.report.load_seconds
        count = len(self.report.ledger.acknowledged)
        self._detail(f"{count} confirmed in {self.report.load_seconds:.1f} s, {rate:.0f}/s")

    def _read_back(self, rows: list[Flight]) -> None:
        view = self.cluster.wait_equal()
        slave = next(node.name for node in view.nodes if not node.master)
        self.say(f"all of them are read from slave {slave} and compared row by row")
        with self.cluster.client() as client:
            found = client.read(TOPIC, "start:", read_from=slave)
            self.report.from_slave = compare(
                self.report.ledger.acknowledged, found, lambda row: rows[row]
            )
        self._detail(_in_words(self.report.from_slave))

    def _lose_the_master(self, rows: list[Flight]) -> None:
        report, cluster = self.report, self.cluster
        old = cluster.wait_in_sync().leader or ""
        self.say(f"a second load runs, {self.rate} messages a second; a group handles all messages")
        before = len(report.ledger.acknowledged)
        load = PacedLoad(cluster.client, rows, report.ledger, rate=self.rate, first_row=len(rows))
        workers = Workers(cluster.client, TOPIC)
        report.handlings = workers.handlings
        workers.start()
        load.start()
        self._wait_for(load, lambda: len(report.ledger.acknowledged) > before, "the second load")
        time.sleep(BEFORE_KILL_SECONDS)
        load.check()
        self.say(f"master {old} is killed (SIGKILL); another one is asked for")
        cluster.kill(old)
        killed = time.monotonic()
        report.old_master = old
        report.new_master = cluster.failover(old)
        self._wait_for(
            load, lambda: report.ledger.first_after(killed) is not None, "the new master"
        )
        report.write_gap = report.ledger.gap(killed)
        gap = format_duration(report.write_gap or 0.0)
        self._detail(f"{report.new_master} is master; nothing was acknowledged for {gap}")
        self.say("load and group go on by themselves")
        time.sleep(AFTER_FAILOVER_SECONDS)
        load.stop(FAILOVER_SECONDS)
        confirmed = report.ledger.acknowledged
        report.lag = workers.finish(confirmed, FAILOVER_SECONDS)
        handled = report.handlings.handled(confirmed)
        self._detail(f"{len(confirmed)} messages are confirmed in all, {handled} of them handled")

    def _wait_for(self, load: PacedLoad, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + FAILOVER_SECONDS
        while not done():
            load.check()
            if time.monotonic() > until:
                raise Failure(
                    Exit.UNDECIDED,
                    f"nothing was acknowledged by {what} within {FAILOVER_SECONDS:g} s",
                    hints=(f"what the processes said: {self.cluster.processes.own}/*.log",),
                )
            time.sleep(0.005)

    def _bring_it_back(self) -> None:
        report = self.report
        self.say(f"{report.old_master} starts again, cuts what was never confirmed, catches up")
        epoch = self.cluster.wait("a master", lambda view: view.master is not None).epoch
        with StoreReader(self.cluster.data()[report.old_master]) as stopped:
            old_end = stopped.end
        self.cluster.restart(report.old_master)
        self.cluster.wait_equal(30.0)
        last = fetch_history(self.cluster.context)[-1]
        report.cut_bytes = max(0, old_end - (whole(last, "start") or 0))
        self._detail(f"{report.cut_bytes} bytes cut, epoch {epoch}, all three in sync")

    def _check(self, rows: list[Flight]) -> None:
        report = self.report
        self.say("what was acknowledged is held against what is there")
        view = self.cluster.wait_equal()
        with self.cluster.client() as client:
            found = client.read(TOPIC, "start:", read_from=report.old_master)
            report.at_end = compare(
                report.ledger.acknowledged, found, lambda row: rows[row % len(rows)]
            )
        report.equal_to = view.confirm or 0
        report.difference = first_difference(list(self.cluster.data().values()), report.equal_to)
        if report.difference is not None:
            report.equal_to = report.difference
        self._detail(_in_words(report.at_end))

    def _detail(self, text: str) -> None:
        self.context.printer.note(f"     {text}")


def _in_words(found: Comparison) -> str:
    return (
        f"{found.found} found, {len(found.lost)} lost, {len(found.duplicated)} duplicated, "
        f"{len(found.different)} different"
    )


def demo(
    *,
    input_: Path | None = None,
    rate: int = 5000,
    keep: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Start a cluster, load flights, kill the master, fail over, and check every promise.

    Takes less than a minute, needs nothing, and leaves nothing behind. Exit 1 when a promise was
    broken.

    Args:
        input_: Another CSV file with a header line, plain, ``.gz`` or ``.xz``.
        rate: Messages a second of the second load.
        keep: Leave the cluster running, and its files where they are.
    """
    if rate < 100:
        raise Failure(Exit.USAGE, f"--rate is {rate}; below 100 a second nothing is seen")
    rows = flights(input_)
    cluster = PrivateCluster(context, "demo")
    running = Demo(cluster, context, rate)
    began = time.monotonic()
    kept_running = False
    try:
        running.run(rows)
        if keep:
            cluster.keep()
            kept_running = True
    except KeyboardInterrupt:
        raise Interrupted(NOTHING_LEFT) from None
    finally:
        if not kept_running:
            with undisturbed():
                cluster.close()
    answer = answer_of(running.report, cluster, time.monotonic() - began, kept_running)
    context.printer.answer(answer)
    return Exit.OK if running.report.kept else Exit.NO


def answer_of(report: Report, cluster: PrivateCluster, seconds: float, kept: bool) -> Answer:
    """The table and the document at the end."""
    end = report.at_end or Comparison(0, (), (), (), 0)
    acknowledged = len(report.ledger.acknowledged)
    fields: dict[str, object] = {
        "acknowledged": acknowledged,
        "found": end.found,
        "lost": len(end.lost),
        "duplicated": len(end.duplicated),
        "different": len(end.different),
        "handled": report.handlings.handled(report.ledger.acknowledged),
        "handled_again": report.handlings.again,
        "handled_too_early": len(report.handlings.too_early),
        "group_lag": report.lag,
        "unknown": len(report.ledger.unknown),
        "write_gap_seconds": report.write_gap,
        "cut_bytes": report.cut_bytes,
        "logs_equal": report.difference is None,
        "logs_equal_to_offset": report.equal_to,
        "promises_kept": report.kept,
        "read_from_slave": report.from_slave.found if report.from_slave else 0,
        "flights": report.flights,
        "load_seconds": round(report.load_seconds, 3),
        "old_master": report.old_master,
        "new_master": report.new_master,
        "seconds": round(seconds, 3),
        "directory": str(cluster.directory) if kept else None,
    }
    gap: Cell = None if report.write_gap is None else Seconds(report.write_gap)
    equal = f"equal up to {report.equal_to}" if report.difference is None else "NOT EQUAL"
    rows: list[tuple[Cell, ...]] = [
        ("acknowledged", acknowledged),
        ("found", end.found),
        ("lost", len(end.lost)),
        ("duplicated", len(end.duplicated)),
        ("handled by the group", report.handlings.handled(report.ledger.acknowledged)),
        ("handled twice", report.handlings.again + len(report.handlings.too_early)),
        ("write gap", gap),
        ("cut from the old master", Size(report.cut_bytes)),
        ("the three logs", equal),
        ("promises kept", report.kept),
    ]
    path = cluster.path if kept else "data/cluster.toml"
    following = "twinlog dev up" if not kept else f"twinlog -c {path} cluster status"
    tail = f"next: {following}"
    if kept:
        tail += f"\nstop it: twinlog dev down --data {cluster.directory} --wipe"
    return Answer(
        kind="Demo",
        fields=fields,
        tables=[Table(columns("WHAT VALUE>"), rows)],
        tail=tail,
        items=[],
        names=[str(cluster.directory)] if kept else [],
    )
