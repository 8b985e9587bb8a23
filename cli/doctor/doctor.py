"""``twinlog doctor``: what is wrong with this machine, the data directories on it, and the cluster.

Each finding says what was found, what it means and which command goes on. The exit code is that of
the worst: 0 nothing, 1 something could be better, 2 something is wrong.

Not here: what is looked at (``cli.doctor.machine``), how it is judged (``cli.doctor.checks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cli.answer import Answer, Table
from cli.cluster.health import Grade as Health
from cli.cluster.health import judge
from cli.cluster.view import ClusterView, look
from cli.context import Context
from cli.doctor.checks import Finding, Grade, clocks, directory, machine, versions
from cli.doctor.machine import look_at_directory, look_at_machine
from cli.failures import Exit, Failure
from cli.fields import text
from cli.parsing import PRIVATE
from twinlog.errors import UsageError

if TYPE_CHECKING:
    from node.config.config import ClusterConfig

EXITS = {
    Grade.FINE: Exit.OK,
    Grade.UNKNOWN: Exit.OK,
    Grade.BETTER: Exit.NO,
    Grade.WRONG: Exit.UNDECIDED,
}


def doctor(*, data: Path | None = None, context: Annotated[Context, PRIVATE]) -> int:
    """Look for what is wrong: machine, data directories, cluster; each with a command that goes on.

    Exit 0: nothing was found; 1: something could be better; 2: something is wrong. Without a
    cluster file only the machine and --data are looked at. Nothing is changed.

    Args:
        data: Look at this data directory only, and not at the cluster.
    """
    findings = examine(context, data)
    items = [finding.fields() for finding in findings]
    worst = max((finding.grade for finding in findings), key=list(Grade).index)
    told = [finding for finding in findings if finding.grade in (Grade.BETTER, Grade.WRONG)]
    context.printer.answer(
        Answer(
            kind="Doctor",
            fields={"result": worst.value, "findings": items},
            tables=[Table.of("AREA CHECK RESULT FOUND +MEANS +COMMAND", items)],
            tail="\n".join(line for finding in told for line in _lines(finding)),
            trouble=worst is Grade.WRONG,
            items=items,
            names=[f"{finding.area}/{finding.check}" for finding in told],
        )
    )
    return EXITS[worst]


def _lines(finding: Finding) -> list[str]:
    lines = [f"{finding.area}, {finding.check}: {finding.found}; {finding.means}"]
    return [*lines, f"  next: {finding.command}"] if finding.command else lines


def examine(context: Context, data: Path | None = None) -> list[Finding]:
    """Return every finding of this machine, its directories and the cluster."""
    if data is not None:
        found = machine(look_at_machine(lock_wanted=False))
        return [*found, *directory(look_at_directory("", data))]
    try:
        config = None if context.options.endpoints else context.config()
    except Failure as failure:
        return [*machine(look_at_machine(lock_wanted=False)), _file(context, failure)]
    wanted = config is not None and any(node.storage.lock_memory for node in config.nodes)
    results = machine(look_at_machine(lock_wanted=wanted))
    if config is not None:
        names = ", ".join(node.name for node in config.nodes)
        results.append(
            Finding("cluster", "file", Grade.FINE, f"{config.path}: {config.name}, nodes {names}")
        )
        results += _directories(config)
        results += certificates(config, context.wall_ms())
    return results + _cluster(context)


def _file(context: Context, failure: Failure) -> Finding:
    """Say why there is no cluster to look at."""
    if failure.exit is Exit.MISSING and context.options.config is None:
        text_ = "no cluster file here: only the machine was looked at"
        return Finding("cluster", "file", Grade.FINE, text_)
    means = "processes of the cluster do not start with it"
    return Finding("cluster", "file", Grade.WRONG, failure.text, means, "twinlog config check")


def _directories(config: ClusterConfig) -> list[Finding]:
    """Look at the directories that are on this machine, or all that are missing in one line."""
    findings: list[Finding] = []
    for node in config.nodes:
        findings += directory(look_at_directory(node.name, node.data))
    return findings


def _cluster(context: Context) -> list[Finding]:
    try:
        view = look(context)
    except Failure as failure:
        means = "nothing of the cluster answers"
        hint = failure.hints[-1].rpartition(": ")[2] if failure.hints else ""
        return [Finding("cluster", "health", Grade.WRONG, failure.text, means, hint)]
    grades = {Health.DEGRADED: Grade.BETTER, Health.UNAVAILABLE: Grade.WRONG}
    judged = judge(view)
    # "Writes work" is about the cluster: a smaller problem beside one that stops them has no such
    # comfort.
    told = MEANS if judged.grade is not Health.UNAVAILABLE else dict.fromkeys(MEANS, NO_WRITES)
    problems = [
        Finding("cluster", "health", grades[one.grade], one.text, told[one.grade], one.command)
        for one in judged.problems
    ]
    healthy = Finding("cluster", "health", Grade.FINE, f"{view.name} is healthy")
    running = {node.name: node.version for node in view.nodes if node.version is not None}
    return [*(problems or [healthy]), versions(running), clocks(_ahead(view, context.wall_ms()))]


NO_WRITES = "writes do not work"

MEANS: Mapping[Health, str] = {
    Health.DEGRADED: "writes work, something is missing",
    Health.UNAVAILABLE: NO_WRITES,
}


def _ahead(view: ClusterView, now_ms: int) -> dict[str, float]:
    """Return how far the clock of each node is ahead of the one here, seconds, about."""
    found: dict[str, float] = {}
    for node in view.nodes:
        said = text(node.document, "time")
        try:
            when = datetime.fromisoformat(said).timestamp() if said else None
        except ValueError:
            when = None
        if when is not None:
            found[node.name] = when - now_ms / 1000
    return found


SOON_SECONDS = 14 * 86400.0
"""A certificate that ends within this time wants to be renewed; as in the alert rules."""

RENEW = "twinlog certificates init --renew"


def certificates(config: ClusterConfig, now_ms: int) -> Iterator[Finding]:
    """Judge the certificates that are on this machine, at a time in ms since 1970.

    Each is checked as its process does it, by a handshake with itself in memory.
    """
    if config.tls.authority is None:
        if config.insecure:
            what = "ports beyond loopback speak no TLS"
            means = "the network can read and change everything"
            init = "twinlog certificates init"
            yield Finding("cluster", "TLS", Grade.BETTER, what, means, init)
        return
    names = [*(node.name for node in config.nodes), *config.coordinator.folders(), "operator"]
    for name in names:
        settings = config.tls_of(name)
        assert settings is not None, "there is an authority"
        file = settings.files.certificate
        if file is not None and Path(file).exists():
            yield _one(config, name, now_ms)


def _one(config: ClusterConfig, name: str, now_ms: int) -> Finding:
    from replication.net.certificates import Certificates

    settings, area = config.tls_of(name), f"certificate {name}"
    assert settings is not None, "the caller has looked"
    try:
        until = Certificates(settings).until
    except UsageError as error:
        means = "its process does not start with it, and does not take it while it runs"
        return Finding("TLS", area, Grade.WRONG, error.text, means, RENEW)
    what = f"until {datetime.fromtimestamp(until, UTC):%Y-%m-%d}"
    if until - now_ms / 1000 < SOON_SECONDS:
        means = "after that day every connection is refused"
        return Finding("TLS", area, Grade.BETTER, what, means, RENEW)
    return Finding("TLS", area, Grade.FINE, what)
