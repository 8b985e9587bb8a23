"""Faults, carried out on a stage and taken back.

`Injector.begin` resolves who is meant at that moment, does it, and returns what takes it back.
Rules of links and faults of disks are kept together, so that overlapping faults add up.

Not here: when (``run``), what the kinds mean (``scenario``).
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cli.cluster.change import order_failover, plan_failover
from cli.cluster.view import ClusterView
from cli.config_file import COORDINATOR
from cli.drill.link import PASS, Rule
from cli.drill.network import CLIENTS
from cli.drill.scenario import Fault
from cli.drill.stage import Stage, quick_look, stop_process, wait_for
from cli.failures import Exit, Failure
from twinlog.errors import OutcomeUnknown, TwinlogError
from twinlog.wire.frames import Type

MASTER_SECONDS = 20.0
"""How long a fault about the master waits for there to be one."""
FAILOVER_SECONDS = 10.0
"""How long a failover waits until the old master is seen as gone."""
ORDER_SECONDS = 15.0

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Begun:
    """A fault that was done: to whom, in words, and what takes it back."""

    fault: Fault
    targets: tuple[str, ...]
    text: str
    undo: Undo | None = None


class Injector:
    """Does faults and takes them back.

    Args:
        stage: The cluster.
        seed: For what is drawn: the bit of a flip.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._chance = random.Random(seed)
        self._rules: dict[tuple[str, str], list[Rule]] = {}
        self._copies: dict[str, Path] = {}

    def prepare(self, faults: tuple[Fault, ...]) -> None:
        """Before a round: copy what an ``old-copy`` will put back, while its node is stopped."""
        for fault in faults:
            if fault.do == "old-copy":
                for name in self._names(fault.to):
                    self._copy(name)

    def _copy(self, name: str) -> None:
        data = self._stage.data(name)
        aside = data.with_name(f"{name}-copy")
        shutil.rmtree(aside, ignore_errors=True)
        stop_process(self._stage, name)
        shutil.copytree(data, aside)
        self._stage.processes().request("start", name)
        self._copies[name] = aside

    def begin(self, fault: Fault) -> Begun:
        """Do a fault.

        Raises:
            Failure: It could not be done; the drill cannot tell (exit 2).
        """
        kind = fault.kind
        if kind.link:
            return self._link(fault)
        if kind.orders:
            return self._order(fault)
        names = self._names(fault.to)
        doing = {
            "kill": self._kill, "power": self._power, "stop": self._stop, "pause": self._pause,
            "wipe": self._wipe, "old-copy": self._old_copy, "swap": self._swap, "flip": self._flip,
            "forget": self._forget,
        }  # fmt: skip
        if fault.do not in doing:
            return self._disk(fault, names)
        undo = doing[fault.do](names, fault)
        text = f"{fault.do} {', '.join(names)}"
        if fault.do == "power":
            text += f" ({sum(map(self._stage.lose_power, names))} bytes were not flushed)"
        return Begun(fault, names, text, undo)

    # ── who ─────────────────────────────────────────────────────────────────────────────────────

    def _view(self) -> ClusterView:
        return wait_for(
            self._stage, "a master", lambda view: view.master is not None, MASTER_SECONDS
        )

    def _names(self, word: str) -> tuple[str, ...]:
        """The processes that a word means now.

        Raises:
            Failure: The cluster has none of that name, or no master.
        """
        match word:
            case "coordinator":
                return (self._stage.serving(),)
            case "nodes":
                return self._stage.nodes
            case "all":
                return (*self._stage.nodes, *self._stage.coordinators)
            case "master" | "slave" | "slaves":
                leader = self._leader()
                slaves = tuple(name for name in self._stage.nodes if name != leader)
                return {"master": (leader,), "slave": slaves[:1], "slaves": slaves}[word]
            case _ if word in self._known() or word == CLIENTS:
                return (word,)
            case _:
                known = ", ".join(self._known())
                told = f'the cluster has no "{word}"; it has {known}'
                raise Failure(Exit.UNDECIDED, told)

    def _known(self) -> tuple[str, ...]:
        return (*self._stage.nodes, *self._stage.coordinators, *self._stage.members)

    def _leader(self) -> str:
        """The master by its own word, else the one that the register still names."""
        view = quick_look(self._stage.context)
        if view is not None and view.master is None and view.leader:
            return view.leader
        master = self._view().master
        assert master is not None
        return master.name

    # ── processes ───────────────────────────────────────────────────────────────────────────────

    def _signal(self, what: str, names: tuple[str, ...]) -> None:
        for name in names:
            self._stage.processes().request(what, name)

    def _kill(self, names: tuple[str, ...], fault: Fault) -> Undo:
        self._signal("kill", names)
        return lambda: self._signal("start", names)

    def _power(self, names: tuple[str, ...], fault: Fault) -> Undo:
        self._signal("kill", names)
        return lambda: self._signal("start", names)

    def _stop(self, names: tuple[str, ...], fault: Fault) -> Undo:
        for name in names:
            stop_process(self._stage, name)
        return lambda: self._signal("start", names)

    def _pause(self, names: tuple[str, ...], fault: Fault) -> Undo:
        self._signal("pause", names)
        return lambda: self._signal("resume", names)

    # ── files ───────────────────────────────────────────────────────────────────────────────────

    def _wipe(self, names: tuple[str, ...], fault: Fault) -> None:
        self._signal("kill", names)
        for name in names:
            shutil.rmtree(self._stage.data(name))
        self._signal("start", names)

    def _old_copy(self, names: tuple[str, ...], fault: Fault) -> None:
        self._signal("kill", names)
        for name in names:
            data = self._stage.data(name)
            shutil.rmtree(data)
            self._copies.pop(name).rename(data)
        self._signal("start", names)

    def _swap(self, names: tuple[str, ...], fault: Fault) -> Undo:
        if len(names) != 2:
            raise Failure(Exit.UNDECIDED, f"swap needs two nodes, not {', '.join(names)}")

        def exchange() -> None:
            one, two = (self._stage.data(name) for name in names)
            aside = one.with_name("aside")
            one.rename(aside)
            two.rename(one)
            aside.rename(two)

        def start() -> None:
            for name in names:
                with suppress(Failure):  # it may refuse, which is what is looked for
                    self._stage.processes().request("start", name)

        def undo() -> None:
            self._signal("kill", names)
            exchange()
            self._signal("start", names)

        self._signal("kill", names)
        exchange()
        start()
        return undo

    def _flip(self, names: tuple[str, ...], fault: Fault) -> None:
        for name in names:
            folder = self._stage.data(name) / "commitlog"
            files = sorted(path for path in folder.iterdir() if path.name.isdigit())
            view = self._view()
            end = view.node(name).flushed or 0
            path = files[0] if fault.where == "sealed" else self._holding(files, end - 1)
            start = int(path.name)
            most = min(path.stat().st_size, end - start)
            at = self._chance.randrange(most // 4, max(most // 4 + 1, most * 3 // 4))
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ (1 << self._chance.randrange(8))]))

    def _forget(self, names: tuple[str, ...], fault: Fault) -> None:
        """Drop a node's log files from the page cache; pages that a node has mapped stay."""
        for name in names:
            for path in (self._stage.data(name) / "commitlog").iterdir():
                # Retention may delete a file meanwhile; what is dirty cannot be dropped.
                with suppress(FileNotFoundError), path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    @staticmethod
    def _holding(files: list[Path], offset: int) -> Path:
        return max((path for path in files if int(path.name) <= max(0, offset)), key=str)

    # ── links ───────────────────────────────────────────────────────────────────────────────────

    def _link(self, fault: Fault) -> Begun:
        network = self._stage.network
        assert network is not None
        targets = self._names(fault.to)
        sources = tuple(
            name for name in ((*self._stage.nodes, COORDINATOR, CLIENTS) if fault.source == "all"
                              else self._names(fault.source)) if name not in targets
        )  # fmt: skip
        rule = {
            "cut": Rule(cut=True), "reset": Rule(closed=True), "delay": Rule(delay=fault.amount),
            "loss": Rule(loss=fault.amount), "bandwidth": Rule(rate=fault.amount),
        }[fault.do]  # fmt: skip
        links = [(source, target) for source in sources for target in targets]
        back = [(target, source) for source, target in links]
        hurt = {"both": links + back, "to": links, "from": back}[fault.direction]
        for link in hurt:
            self._rules.setdefault(link, []).append(rule)
        self._apply()

        def undo() -> None:
            for link in hurt:
                self._rules[link].remove(rule)
            self._apply()

        arrow = {"both": "and", "to": "from", "from": "towards"}[fault.direction]
        told = f"{fault.do} {', '.join(targets)} {arrow} {', '.join(sources)}"
        return Begun(fault, targets, told, undo)

    def _apply(self) -> None:
        network = self._stage.network
        assert network is not None
        network.set({link: _joined(rules) for link, rules in self._rules.items() if rules})

    # ── disks and clocks ────────────────────────────────────────────────────────────────────────

    def _disk(self, fault: Fault, names: tuple[str, ...]) -> Begun:
        said: dict[str, object] = {
            "disk-slow": {"slow_seconds": fault.amount},
            "disk-error": {"error": errno.EIO},
            "disk-full": {"full": True},
            "clock": {"clock_ms": int(fault.amount * 1000)},
        }
        faults = said[fault.do]
        assert isinstance(faults, dict)
        for name in names:
            self._stage.disk_faults(name, faults)  # pyright: ignore[reportUnknownArgumentType]

        def undo() -> None:
            for name in names:
                self._stage.disk_faults(name, {})

        return Begun(fault, names, f"{fault.do} of {', '.join(names)}", undo)

    # ── orders ──────────────────────────────────────────────────────────────────────────────────

    def _order(self, fault: Fault) -> Begun:
        old = self._leader()
        new = self._switchover(old) if fault.do == "switchover" else self._failover(old)
        return Begun(fault, (old, new), f"{fault.do} from {old} to {new}")

    def _switchover(self, old: str) -> str:
        """Ask the master to hand over to the slave after it by name.

        Raises:
            Failure: It refused; the drill cannot tell (exit 2).
        """
        view = self._view()
        able = [node.name for node in view.nodes if node.in_sync and node.name != old]
        if not able:
            raise Failure(Exit.UNDECIDED, "no slave is in sync, so there is no switchover")
        target = next((name for name in able if name > old), able[0])
        fields: dict[str, object] = {
            "op": "transfer", "to": target, "timeout_ms": int(ORDER_SECONDS * 1000),
        }  # fmt: skip
        with suppress(OutcomeUnknown):
            try:
                ask = self._stage.context.ask
                ask(view.node(old).address, Type.ADMIN, fields, ORDER_SECONDS)
            except OutcomeUnknown:
                raise
            except TwinlogError as error:
                told = f"{old} did not hand over to {target}: {error.text}"
                raise Failure(Exit.UNDECIDED, told) from None
        return target

    def _failover(self, old: str) -> str:
        until = time.monotonic() + FAILOVER_SECONDS
        while True:
            view = quick_look(self._stage.context)
            try:
                if view is not None and not view.node(old).reachable:
                    plan = plan_failover(view, None)
                    options = replace(self._stage.context.options, timeout=ORDER_SECONDS)
                    context = self._stage.context
                    order_failover(plan, replace(context, options=options, started=context.clock()))
                    return plan.target.name
            except Failure as failure:
                if time.monotonic() > until:
                    raise Failure(Exit.UNDECIDED, failure.text, facts=failure.facts) from None
            if time.monotonic() > until:
                raise Failure(Exit.UNDECIDED, f"{old} still answers: no failover is needed")
            time.sleep(0.05)


def _joined(rules: list[Rule]) -> Rule:
    """Several rules of one link as one: the worst of each.

    >>> _joined([Rule(delay=1.0), Rule(cut=True)]) == Rule(cut=True, delay=1.0)
    True
    """
    found = PASS
    for rule in rules:
        rates = [rate for rate in (found.rate, rule.rate) if rate]
        found = Rule(
            cut=found.cut or rule.cut,
            closed=found.closed or rule.closed,
            delay=max(found.delay, rule.delay),
            loss=max(found.loss, rule.loss),
            rate=min(rates, default=0.0),
        )
    return found
