"""``twinlog dev``: a coordinator and nodes on this machine, and ways to hurt them.

A directory holds everything: the cluster file, the data, the logs of the processes.  It is
``--data``, else the folder of the cluster file that was named (``-c``), as ``config init`` wrote
it, else ``data``.  ``up`` in the
foreground owns the processes itself and stops them at Ctrl-C; with ``--background`` a supervisor of
its own does, until ``down``.

Not here: owning processes (``supervisor``), asking who owns them (``supervisor_client``).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.answer import Answer, Table
from cli.certificates import make_certificates, tls_lines
from cli.cluster.health import Grade, judge
from cli.cluster.view import coordinator_of, look
from cli.config_file import COORDINATOR, read_config
from cli.context import Context
from cli.dev import etcd_members
from cli.dev.supervisor import Supervisor, mark_made, was_made
from cli.dev.supervisor_client import LOOK_SECONDS, SupervisorClient
from cli.failures import Exit, Failure
from cli.fields import table
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from twinlog.errors import TwinlogError, Unavailable
from twinlog.units import MiB
from twinlog.wire.frames import Type

SEGMENT_SIZE = 64 * MiB
"""One log file of a development cluster: small enough for a laptop, large enough to be ordinary."""

WRITES_SECONDS = 5.0
"""Longest wait of ``up`` for the first writable moment; a restart after a kill may take longer."""

TELL_SECONDS = 0.5
"""Longest wait for the coordinator when a node's process has ended; it is on this machine."""

DATA = Path("data")
FILE = "cluster.toml"

Data = Annotated[Path | None, Parameter(name="--data")]


def _directory(data: Path | None, context: Context) -> Path:
    """The folder that a command is about.

    Raises:
        Failure: The cluster file that was named has another name than `FILE` (exit 64).
    """
    if data is not None:
        return data.resolve()
    named = context.options.config
    if named is None:
        return DATA.resolve()
    if named.name != FILE:
        raise Failure(
            Exit.USAGE,
            f"{named} is not called {FILE}",
            facts=(f"these commands use a folder of its own, with the file {FILE} in it",),
            hints=("name a folder: --data DIR",),
        )
    return named.resolve().parent


def up(
    *,
    nodes: Annotated[int, Parameter(name=["--nodes", "-n"])] = 3,
    data: Data = None,
    base_port: int = 7400,
    coordinator: Literal["embedded", "etcd"] = "embedded",
    tls: bool = False,
    background: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Start a coordinator and nodes on this machine.

    With -c FILE, as config init wrote it: those that the file describes. Else the first start
    writes DATA/cluster.toml, and later ones use it as it is. In the foreground every
    line of a process carries its name, and Ctrl-C stops all of them.

    Args:
        nodes: How many, at the first start.
        data: Folder of everything; default the folder of the file named with -c, else ``data``.
        base_port: The coordinator's port; node n has this + 10 n. 0: the system chooses.
        coordinator: etcd: start three members of etcd and two coordinators that keep the register
            there, at the first start. The program etcd must be installed.
        tls: Every port speaks TLS, with certificates that are made in DATA/certificates; at the
            first start. Clients name DATA/certificates/authority.pem.
        background: Come back when everything is ready; stop it with dev down.
    """
    directory = _directory(data, context)
    asked = SupervisorClient(directory)
    if asked.alive():
        context.printer.note(f"already running in {directory}")
        return _show(asked, context, "DevUp")
    if coordinator == "etcd":
        etcd_members.prepare(directory, base_port)
    if data is None and context.options.config is not None:
        _only_here(directory, context)
    elif Path(FILE).is_file() and not (directory / FILE).exists():
        context.printer.note(
            f"{FILE} here is not used; to start what it describes: twinlog -c {FILE} dev up"
        )
    prepare(directory, nodes=nodes, base_port=base_port, segment_size=SEGMENT_SIZE, tls=tls)
    if tls:
        _certificates(directory, context)
    if background:
        asked.launch(keep=True)
        _wait_for_writes(directory, context)
        return _show(asked, context, "DevUp")

    def ready() -> None:
        _wait_for_writes(directory, context)
        context.printer.note(f"\nready · {_status_command(directory, context)}")
        context.printer.note("Ctrl-C stops everything\n")

    return supervisor_of(directory, context, echo=True).serve(ready)


def _only_here(directory: Path, context: Context) -> None:
    """Refuse a file with nodes of other machines (exit 64); one that is missing is written."""
    if not (directory / FILE).exists():
        return
    config = read_config(directory / FILE, context.environment)
    others = [f"{node.name} is on {node.address}" for node in config.nodes
              if node.address != "localhost" and not _loopback(node.address)]  # fmt: skip
    if others:
        raise Failure(
            Exit.USAGE,
            f"{directory / FILE} is not a cluster of this machine alone",
            facts=others,
            hints=("start each process on its machine: twinlog node start NAME",),
        )


def _loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _wait_for_writes(directory: Path, context: Context) -> None:
    """Wait until the new cluster takes writes, at most `WRITES_SECONDS`: the first election."""
    options = replace(
        context.options, config=directory / "cluster.toml", endpoints=(), timeout=None
    )
    own = replace(context, options=options)
    until = time.monotonic() + WRITES_SECONDS
    while time.monotonic() < until:
        with suppress(Failure, TwinlogError):
            if judge(look(own)).grade is not Grade.UNAVAILABLE:
                return
        time.sleep(LOOK_SECONDS)


def _status_command(directory: Path, context: Context) -> str:
    """How ``cluster status`` is called for this cluster from here."""
    path = directory / "cluster.toml"
    found = context.config_path()
    if found is not None and found.resolve() == path:
        return "twinlog cluster status"
    return f"twinlog -c {_shown(directory)} cluster status"


def _certificates(directory: Path, context: Context) -> None:
    """Make the certificates that are missing.

    Raises:
        Failure: The file was written without TLS (exit 64).
    """
    config = read_config(directory / FILE, context.environment)
    if config.tls.authority is None:
        raise Failure(
            Exit.USAGE,
            f"{directory / FILE} has no [tls]",
            hints=("use a new folder: twinlog dev up --tls --data DIR", f"or add: {tls_lines()}"),
        )
    make_certificates(config, directory / Path(config.tls.authority).parent)


def prepare(
    directory: Path, *, nodes: int, base_port: int, segment_size: int, tls: bool = False
) -> Path:
    """Make the directory and its cluster file; an existing file stays as it is."""
    from node.config.pages import Local, write_local

    if not 1 <= nodes <= 9:
        raise Failure(Exit.USAGE, f"--nodes is {nodes}; it can be 1 to 9")
    path = directory / "cluster.toml"
    if not path.exists():
        local = Local(nodes=nodes, data=".", base_port=base_port, segment_size=segment_size)
        local = replace(local, tls=tls)
        if etcd := etcd_members.addresses(directory, base_port):
            local = replace(local, etcd=etcd, coordinators=etcd_members.COORDINATORS)
        write_local(path, local)
        mark_made(directory)
    return path


def supervisor_of(directory: Path, context: Context, *, echo: bool) -> Supervisor:
    """The supervisor for what the directory's cluster file says."""
    config = read_config(directory / "cluster.toml", context.environment)
    data = {node.name: node.data for node in config.nodes}
    etcd = etcd_members.programs(directory, config)
    coordinators = config.coordinator.folders()
    tell = _teller(directory, context)
    return Supervisor(directory, data, coordinators, etcd=etcd, tell=tell, echo=echo)


def _teller(directory: Path, context: Context) -> Callable[[str], None]:
    """What tells the coordinator that a node's process has ended; nothing where it is away."""

    def tell(name: str) -> None:
        path = directory / f"{COORDINATOR}.toml"  # where a drill stands between the others
        options = replace(
            context.options,
            config=path if path.exists() else directory / FILE,
            endpoints=(),
            timeout=TELL_SECONDS,
        )
        own = replace(context, options=options, started=context.clock())
        with suppress(Failure, TwinlogError, OSError):
            for address in coordinator_of(own):
                with suppress(Unavailable):
                    own.ask(address, Type.CO_ENDED, {"node": name}, own.left())
                    return

    return tell


def supervise(directory: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Own the processes of one directory until told to stop; started by ``up`` and ``demo``.

    Args:
        directory: Holds ``cluster.toml``.
    """
    return supervisor_of(directory.resolve(), context, echo=False).serve()


def status(*, data: Data = None, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show the processes of a directory; exit 1 when none runs.

    Args:
        data: The folder given to dev up.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _status(context, data), watch=watch)


def _status(context: Context, data: Path | None) -> int:
    asked = SupervisorClient(_directory(data, context))
    if not asked.alive():
        context.printer.answer(
            Answer(
                kind="DevStatus",
                fields={"directory": str(asked.directory), "running": False, "processes": []},
                head=f"nothing runs in {asked.directory}",
                next="twinlog dev up --background",
            )
        )
        return Exit.NO
    return _show(asked, context, "DevStatus")


def _show(asked: SupervisorClient, context: Context, kind: str) -> int:
    processes = asked.processes()
    shown = [
        {**one, "ports": [f"{name} {port}" for name, port in table(one["ports"]).items() if port]}
        for one in processes
    ]
    config = asked.directory / "cluster.toml"
    context.printer.answer(
        Answer(
            kind=kind,
            fields={
                "directory": str(asked.directory),
                "config": str(config),
                "running": True,
                "processes": processes,
            },
            head=f"a cluster in {asked.directory}",
            tables=[Table.of("NAME STATE PID> EXIT> PORTS +LOG", shown)],
            items=processes,
            names=[str(one.get("name")) for one in processes],
            next=_status_command(asked.directory, context),
        )
    )
    return Exit.OK


def _shown(directory: Path) -> str:
    path = directory / "cluster.toml"
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _doomed(directory: Path, own: Path, context: Context) -> list[Path]:
    """What ``down --wipe`` deletes: the folder that a command made, or the data in another one.

    Raises:
        Failure: ``up`` never ran there (exit 64).
    """
    if not (directory / FILE).exists() or not own.exists():
        raise Failure(Exit.USAGE, f"{directory} was not made by twinlog dev up; it is not deleted")
    if was_made(directory):
        return [directory]
    config = read_config(directory / FILE, context.environment)
    etcd = directory / "etcd" if config.coordinator.etcd else own
    found = [*(node.data for node in config.nodes), *config.coordinator.folders().values(), etcd]
    return [path for path in dict.fromkeys([*found, own]) if path.exists()]


def kill(name: str, /, *, data: Data = None, context: Annotated[Context, PRIVATE]) -> int:
    """Kill one process at once (SIGKILL), as a crash would.

    Args:
        name: A node, or ``coordinator``.
        data: Folder of everything.
    """
    asked = SupervisorClient(_directory(data, context))
    asked.require()
    if not asked.process(name).get("pid"):
        return _done(context, name, "not running")
    asked.request("kill", name)
    hint = "twinlog cluster status" if name == COORDINATOR else "twinlog cluster failover"
    return _done(context, name, "killed", hint)


def start(name: str, /, *, data: Data = None, context: Annotated[Context, PRIVATE]) -> int:
    """Start one process again and wait until it is ready.

    Args:
        name: A node, or ``coordinator``.
        data: Folder of everything.
    """
    asked = SupervisorClient(_directory(data, context))
    asked.require()
    if asked.process(name).get("pid"):
        return _done(context, name, "already running")
    asked.request("start", name)
    return _done(context, name, "started", "twinlog cluster status")


def _done(context: Context, name: str, outcome: str, following: str = "") -> int:
    context.printer.answer(
        Answer(
            kind="DevProcess",
            fields={"name": name, "outcome": outcome},
            head=f"{name}: {outcome}",
            names=[name],
            next=following,
        )
    )
    return Exit.OK


def down(
    *,
    data: Data = None,
    wipe: bool = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Stop every process of a directory; harmless when none runs.

    Args:
        data: Folder of everything.
        wipe: Delete the folder afterwards, with every message in it. Where dev up did not make the
            folder, the data of its processes is deleted, and the cluster file stays.
        yes: Do not ask before deleting.
    """
    directory = _directory(data, context)
    asked = SupervisorClient(directory)
    ran = asked.alive()
    doomed: list[Path] = []
    if wipe and directory.exists():
        doomed = _doomed(directory, asked.own, context)
        what = ", ".join(str(path) for path in doomed)
        if not context.confirm(f"Delete {what} with every message in it?", yes=yes):
            return Exit.NO
    asked.down()
    for path in doomed:
        shutil.rmtree(path, ignore_errors=not path.exists())
    outcome = "stopped" if ran else "nothing was running"
    if wipe:
        outcome += ", deleted"
    context.printer.answer(
        Answer(
            kind="DevDown",
            fields={"directory": str(directory), "outcome": outcome},
            head=f"{directory}: {outcome}",
        )
    )
    return Exit.OK
