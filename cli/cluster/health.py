"""What is wrong with a cluster: one sentence for each trouble, each with the command that goes on.

`SENTENCES` is everything the command line can say about the state of a cluster; the page
``docs/when-something-is-broken.md`` has a section for each of them.  `judge` decides which of them
are true of a `ClusterView`.  Grades: *healthy*: the master takes writes, every node is in sync, and
the coordinator keeps the register that the nodes follow; *degraded*: writes work, something is
missing; *unavailable*: writes do not work.

Pure.  Not here: asking (``view``), tables (``status``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cli.answer import rfc3339
from cli.cluster.view import ClusterView, HoldView, NodeView
from cli.config_file import COORDINATOR
from cli.fields import Fields
from replication.settings import DISK_FULL
from twinlog.units import format_duration


class Grade(StrEnum):
    """How well a cluster works."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing that can be wrong: the text, and the command that goes on.

    Braces name values that `Problem` fills in.  ``START`` in a command stands for what starts a
    process: ``twinlog node start`` or, in a cluster of ``dev up``, ``twinlog dev start``.
    """

    text: str
    command: str
    grade: Grade = Grade.DEGRADED


_NO = Grade.UNAVAILABLE

SENTENCES: Mapping[str, Sentence] = {
    "master-gone": Sentence(
        "{cluster} has no master: {leader}, master of epoch {epoch}, does not answer",
        "twinlog cluster failover",
        _NO,
    ),
    "no-candidate": Sentence(
        "{cluster} has no master, and no node that is known to hold every confirmed record "
        "answers: {names}",
        "START {first}",
        _NO,
    ),
    "vacant": Sentence(
        "{cluster} has no master: no node is known to hold every confirmed record",
        "twinlog cluster failover --dry-run",
        _NO,
    ),
    "master-starting": Sentence(
        "{cluster} has no master yet: {leader} was elected for epoch {epoch} and does not serve "
        "yet",
        "twinlog cluster status --watch",
        _NO,
    ),
    "first-election": Sentence(
        "{cluster} has no master yet: the first election waits for {names}", "START {first}", _NO
    ),
    "no-master": Sentence(
        "{cluster} has no master: the coordinator names none", "twinlog cluster failover", _NO
    ),
    "no-master-no-coordinator": Sentence(
        "{cluster} has no master, and the coordinator does not answer",
        f"START {COORDINATOR}",
        _NO,
    ),
    "not-enough-in-sync": Sentence(
        "{master} refuses writes: {count} of the {least} nodes needed are in sync",
        "START {first}",
        _NO,
    ),
    "too-few-in-sync": Sentence(
        "{master} refuses writes until more nodes are in sync: {count} of the {least} needed are",
        "twinlog cluster status --watch",
        _NO,
    ),
    "writes-wait": Sentence(
        "writes are not confirmed: they wait for {names}, and only the coordinator can take a "
        "node out of the in-sync set",
        f"START {COORDINATOR}",
        _NO,
    ),
    "disk-full": Sentence(
        "{master} refuses writes: its disk is full", "twinlog node show {master}", _NO
    ),
    "writes-refused": Sentence("{master} refuses writes: {why}", "twinlog node show {master}", _NO),
    "busy": Sentence(
        "{master} refuses some writes: too many wait to be confirmed",
        "twinlog cluster status --watch",
    ),
    "old-master": Sentence(
        "{node} still takes itself for the master of epoch {old}; {master} is master of epoch "
        "{epoch}",
        "twinlog node show {node}",
    ),
    "node-down": Sentence("{node} is not running: nothing listens at {address}", "START {node}"),
    "node-silent": Sentence("{node} does not answer: {why}", "twinlog node show {node}"),
    "other-node": Sentence("{node} is unreachable: {address} is {stranger}", "twinlog config show"),
    "quarantined": Sentence(
        "{node} is quarantined, its log is damaged: {why}", "twinlog log verify {data}"
    ),
    "repairing": Sentence(
        "{node} asks other nodes for {count} damaged batches of its log: {why}",
        "twinlog node scrub {node}",
    ),
    "cannot-join": Sentence("{node} cannot join: {why}", "twinlog node show {node}"),
    "no-member": Sentence(
        "{node} is in the cluster file, but is not a member of the group: it neither copies nor "
        "counts",
        "twinlog cluster add {node}",
    ),
    "full-slave": Sentence("{node} is not in sync: its disk is full", "twinlog node show {node}"),
    "other-directory": Sentence(
        "{node} came back with another directory, or an older copy of its own: it does not count "
        "until it has every confirmed record",
        "twinlog cluster status --watch",
    ),
    "unclean": Sentence(
        "{node} may lack records that it acknowledged, as after a power failure or with an old "
        "copy of its directory: it does not count until it has every confirmed record",
        "twinlog cluster status --watch",
    ),
    "not-in-sync": Sentence("{node} is not in sync: {why}", "twinlog cluster status --watch"),
    "slow-slave": Sentence(
        "{node} is slow: an acknowledgement takes {seconds}, and every confirmed write waits for "
        "it",
        "twinlog cluster top",
    ),
    "coordinator-away": Sentence(
        "the coordinator does not answer: roles cannot change", f"START {COORDINATOR}"
    ),
    "etcd-away": Sentence(
        "etcd at {members} does not answer, so no coordinator serves: roles cannot change",
        "twinlog cluster health --watch",
    ),
    "other-coordinator": Sentence(
        "the coordinator at {address} belongs to cluster {stranger}, not to {cluster}",
        "twinlog config show",
    ),
    "register-empty": Sentence(
        "the coordinator's register is empty, but {names} already have a log",
        "twinlog coordinator adopt --dry-run",
    ),
    "other-register": Sentence(
        "the coordinator keeps another register than the one that {names} follow",
        "twinlog coordinator recover --dry-run",
    ),
    "register-read-only": Sentence(
        "the coordinator refuses every change: {why}", "twinlog coordinator status"
    ),
    "register-waiting": Sentence(
        "the coordinator makes no change before more than half of the nodes have reported: "
        "{names} did not",
        "twinlog coordinator status",
    ),
    "paused": Sentence(
        "automatic failover is paused until {until}, by {who} since {since}{why}",
        "twinlog cluster resume",
    ),
    "maintenance": Sentence(
        "{node} is in maintenance and is not elected, by {who} since {since}{why}",
        "twinlog cluster maintenance {node} --off",
    ),
    "all-in-maintenance": Sentence(
        "{cluster} has no master: {names} could be elected, but is in maintenance",
        "twinlog cluster maintenance {first} --off",
        _NO,
    ),
    "other-leader": Sentence(
        "{master} serves as master, but the coordinator names {leader}",
        "twinlog cluster status --watch",
    ),
}
"""Every sentence by its code."""

LINK_SECONDS = 3.0
"""A link that was silent for longer is closed (R44): its slave acknowledges nothing."""

REFUSALS = (
    "BAD_VERSION", "DIVERGED", "OTHER_LAYOUT", "OTHER_REGISTER", "RESEED", "UNKNOWN_REPLICA",
)  # fmt: skip
"""Codes with which a master turns a slave away (``replication.core.master.session``)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One sentence that is true now."""

    code: str
    text: str
    command: str
    grade: Grade

    def fields(self) -> Fields:
        """The problem as machines see it."""
        return {"code": self.code, "text": self.text, "command": self.command}


@dataclass(frozen=True, slots=True)
class Health:
    """The grade of a cluster and what keeps it from the best one."""

    problems: tuple[Problem, ...]

    @property
    def grade(self) -> Grade:
        """The worst of the problems."""
        grades = {problem.grade for problem in self.problems}
        if Grade.UNAVAILABLE in grades:
            return Grade.UNAVAILABLE
        return Grade.DEGRADED if grades else Grade.HEALTHY

    def lines(self) -> list[str]:
        """Each problem with the command that goes on; equal commands in a row are said once."""
        lines: list[str] = []
        for at, problem in enumerate(self.problems):
            lines.append(problem.text)
            following = self.problems[at + 1 : at + 2]
            if not following or following[0].command != problem.command:
                lines.append(f"  next: {problem.command}")
        return lines


def judge(view: ClusterView) -> Health:
    """Say what is wrong with a cluster, worst first."""
    register = list(_coordinator(view))
    found = [*_writes(view, register), *_nodes(view), *register]
    return Health(tuple(sorted(found, key=lambda one: one.grade is not Grade.UNAVAILABLE)))


def _problem(view: ClusterView, code: str, **values: object) -> Problem:
    sentence = SENTENCES[code]
    known = {"cluster": view.name, "epoch": view.epoch, **values}
    if view.master is not None:
        known.setdefault("master", view.master.name)
    command = sentence.command.format(**known)
    return Problem(code, sentence.text.format(**known), _in(view, command), sentence.grade)


def start_command(view: ClusterView, name: str) -> str:
    """The command that starts a process of this cluster: a node, or the coordinator."""
    if view.dev is not None:
        return f"twinlog dev start {name}{view.dev}"
    return f"twinlog {name} start" if name == COORDINATOR else f"twinlog node start {name}"


def _in(view: ClusterView, command: str) -> str:
    name = command.removeprefix("START ")
    return command if name == command else start_command(view, name)


def _writes(view: ClusterView, register: Sequence[Problem]) -> Iterator[Problem]:
    """Why writes do not work, also by what is wrong with the register; nothing when they do."""
    master = view.master
    if master is None:
        yield _no_master(view)
        return
    match master.admission:
        case None:
            yield from _writes_wait(view, master, register)
        case "not-enough-in-sync":
            away = [node.name for node in view.nodes if node.refused]
            code = "not-enough-in-sync" if away else "too-few-in-sync"
            count, least = len(master.in_sync_names), master.in_sync_min
            yield _problem(view, code, count=count, least=least, first=next(iter(away), ""))
        case "disk-full" | "busy" as code:
            yield _problem(view, code)
        case why:
            yield _problem(view, "writes-refused", why=why)


STUCK = (
    "coordinator-away", "etcd-away", "other-coordinator", "other-register", "register-read-only",
    "register-waiting",
)  # fmt: skip
"""What keeps the coordinator from taking a node out of the in-sync set."""


def _writes_wait(
    view: ClusterView, master: NodeView, register: Sequence[Problem]
) -> Iterator[Problem]:
    """Members that acknowledge nothing, while the register cannot let them go.

    A member that was started again meanwhile answers, yet follows no master: it has no session.
    So the command is the one that brings the register back, not the one that starts the node; only
    a register that waits for reports is brought back by nodes.
    """
    cause = next((one for one in register if one.code in STUCK), None)
    late = [
        node
        for node in view.nodes
        if node.name in master.in_sync_names and node is not master and not _acknowledges(node)
    ]
    if cause is None or not late:
        return
    names = ", ".join(node.name for node in late)
    found = _problem(view, "writes-wait", names=names)
    down = next((node.name for node in late if not node.reachable), None)
    if cause.code == "register-waiting" and down is not None:
        yield replace(found, command=start_command(view, down))
    else:
        yield replace(found, command=cause.command)


def _acknowledges(node: NodeView) -> bool:
    """Whether a member can be acknowledging what its master writes."""
    silent = node.contact_seconds is not None and node.contact_seconds > LINK_SECONDS
    return node.reachable and node.role != "fenced" and not silent


def _no_master(view: ClusterView) -> Problem:
    """Why there is no master, by what can be done about it."""
    register = view.coordinator
    if not register.answers:
        return _problem(view, "no-master-no-coordinator")
    away = [node.name for node in view.nodes if not node.reachable]
    if register.epoch == 0 and away:
        return _problem(view, "first-election", names=", ".join(away), first=away[0])
    if register.state.get("vacant"):
        return _problem(view, "vacant")
    leader = next((node for node in view.nodes if node.name == register.leader), None)
    if leader is not None and leader.reachable:
        return _problem(view, "master-starting", leader=leader.name)
    able = [node for node in view.nodes if node.name in view.eligible and node.reachable]
    held = [node.name for node in able if node.name in register.maintenance]
    if held and len(held) == len(able):
        return _problem(view, "all-in-maintenance", names=", ".join(held), first=held[0])
    if not able and view.eligible:
        known = view.eligible
        return _problem(view, "no-candidate", names=", ".join(known), first=known[0])
    if leader is not None:
        return _problem(view, "master-gone", leader=leader.name)
    return _problem(view, "no-master")


def _nodes(view: ClusterView) -> Iterator[Problem]:
    for node in view.nodes:
        found = _node(view, node)
        if found is not None:
            yield found


def _node(view: ClusterView, node: NodeView) -> Problem | None:
    """What is wrong with one node; the cause that explains the others comes first."""
    if node.stranger:
        return _problem(
            view, "other-node", node=node.name, address=node.address, stranger=node.stranger
        )
    if not node.reachable:
        code = "node-down" if node.refused else "node-silent"
        return _problem(view, code, node=node.name, address=node.address, why=node.reason)
    if view.is_stranger_to_group(node.name):
        return _problem(view, "no-member", node=node.name)
    if node.repairing:
        why = node.quarantined or "they are refused meanwhile"
        return _problem(view, "repairing", node=node.name, count=str(node.repairing), why=why)
    if node.quarantined is not None:
        data = node.data or "DIR"
        return _problem(view, "quarantined", node=node.name, why=node.quarantined, data=data)
    master = view.master
    refused = any(word in node.reason for word in REFUSALS)
    if node.name in view.coordinator.suspect and not node.master and not refused:
        other = node.name in view.coordinator.other_directory
        return _problem(view, "other-directory" if other else "unclean", node=node.name)
    if master is None or node is master:
        return None
    if node.master:
        return _problem(view, "old-master", node=node.name, old=node.epoch)
    if node.in_sync or (node.name in view.coordinator.learners and not refused):
        return _slow(view, node) if node.slow else None
    if node.reason.startswith(DISK_FULL):
        return _problem(view, "full-slave", node=node.name)
    code = "cannot-join" if refused else "not-in-sync"
    return _problem(view, code, node=node.name, why=node.reason or "it is catching up")


def _slow(view: ClusterView, node: NodeView) -> Problem:
    seconds = format_duration(node.round_trip_seconds or 0.0)
    return _problem(view, "slow-slave", node=node.name, seconds=seconds)


def _held(hold: HoldView) -> dict[str, str]:
    why = f": {hold.why}" if hold.why else ""
    return {"who": hold.who, "since": rfc3339(hold.since_ms), "why": why}


def _coordinator(view: ClusterView) -> Iterator[Problem]:
    register, master = view.coordinator, view.master
    if register.cluster not in (None, view.name):
        yield _problem(
            view, "other-coordinator", address=register.address, stranger=register.cluster
        )
        return
    if not register.answers:
        if view.etcd_away:
            yield _problem(view, "etcd-away", members=view.etcd_away)
        elif master is not None:  # else the sentence about the master says it
            yield _problem(view, "coordinator-away")
        return
    known = [node for node in view.nodes if node.register_id]
    if register.revision == 0 and not known and any(node.end for node in view.nodes):
        names = ", ".join(node.name for node in view.nodes if node.end)
        yield _problem(view, "register-empty", names=names)
        return
    others = [n.name for n in known if n.register_id != register.register_id]
    if others and register.register_id:
        yield _problem(view, "other-register", names=", ".join(others))
    if (pause := register.pause) is not None:
        yield _problem(view, "paused", until=rfc3339(pause.until_ms), **_held(pause))
    for name, hold in register.maintenance.items():
        yield _problem(view, "maintenance", node=name, **_held(hold))
    if register.read_only is not None:
        yield _problem(view, "register-read-only", why=register.read_only)
    elif register.waiting_for and register.epoch:
        names = ", ".join(register.waiting_for)
        yield _problem(view, "register-waiting", names=names)
    if master is not None and not others and register.leader != master.name:
        yield _problem(view, "other-leader", leader=register.leader or "none")
