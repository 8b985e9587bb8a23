"""The one process that owns the coordinator and the nodes of ``dev`` and ``demo``.

    DIR/cluster.toml          the cluster file; its data directories lie beside it
    DIR/dev/state.json        what runs, written by the supervisor at every change
    DIR/dev/lock              held as long as the supervisor lives
    DIR/dev/requests/ID.json  asked by ``supervisor_client``, with SIGUSR1
    DIR/dev/NAME.log          what a process said
    DIR/NAME.toml             instead of cluster.toml for one process, where a drill wrote it

Every process has a process group of its own, so Ctrl-C in the terminal reaches only the supervisor,
and dies with it (on Linux by PR_SET_PDEATHSIG; elsewhere only when the supervisor ends in order).
The supervisor reaps and reports; it never restarts anything by itself, because a cluster that
heals behind the user's back teaches nothing.  It tells the coordinator which node's process has
ended, so that it waits for no sign of life (docs/protocol.md R59).

A process is *ready* when its run file names its pid; etcd, when it listens.  etcd comes first,
where ``dev up --coordinator etcd`` made one, then the coordinator: when it listens
on a port of the system's choice, the port it got is written into the cluster file before a node
starts.

Times are seconds.  Signals only set a flag and wake the loop; everything happens in the loop.

Not here: asking a supervisor (``supervisor_client``), the cluster (``cli.cluster.view``).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, MappingProxyType

from cli.config_file import COORDINATOR
from cli.failures import NOTHING_LEFT, Exit, Failure, Interrupted
from cli.fields import table
from twinlog.run_file import RUN_FILE, read_json

STOP_SECONDS = 10.0
"""How long a process may take to stop in order before it is killed; a node drains for 5 s."""
TURN_SECONDS = 0.1
"""Longest pause of the loop; signals end it earlier."""
NODES = 2
"""The stage of nodes; see `Child`."""
PR_SET_PDEATHSIG = 1

_MADE = "made"
"""File in the supervisor's folder of a directory that a command made."""


class StopAsked(Exception):
    """A signal asked the supervisor to stop while it was waiting for something else."""


@dataclass
class Child:
    """One process: how it is started and what became of it."""

    name: str
    words: tuple[str, ...]
    run_file: Path
    log: Path
    stage: int
    """What must be ready before: 0 nothing, 1 etcd, 2 the coordinators too."""
    port: int = 0
    """The one port of a program that writes no run file: ready once it listens there."""
    process: subprocess.Popen[bytes] | None = None
    state: str = "stopped"
    exit: int | None = None
    starts: int = 0
    ports: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process is not None else None

    def view(self) -> dict[str, object]:
        """The child as the state file shows it."""
        return {
            "name": self.name,
            "pid": self.pid,
            "state": self.state,
            "exit": self.exit,
            "starts": self.starts,
            "ports": dict(self.ports),
            "log": str(self.log),
        }


def folder(directory: Path) -> Path:
    """Where the supervisor of ``directory`` keeps its own files."""
    return directory / "dev"


def mark_made(directory: Path) -> None:
    """Note that a command made the whole directory, so ``dev down --wipe`` may delete it."""
    own = folder(directory)
    own.mkdir(parents=True, exist_ok=True)
    (own / _MADE).touch()


def was_made(directory: Path) -> bool:
    """Whether a command made the whole directory."""
    return (folder(directory) / _MADE).exists()


def die_with(parent: int, how: signal.Signals) -> Callable[[], None]:
    """Return what a child does between fork and exec so that it gets ``how`` when we die."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    libc = ctypes.CDLL(None)

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(how), 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and here
            os.kill(os.getpid(), how)

    return tie


def untie() -> None:
    """Live on when the process that started us dies."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


class Supervisor:
    """Owns the processes of one directory.  Not safe for threads: children die with this thread."""

    def __init__(
        self,
        directory: Path,
        nodes: Mapping[str, Path],
        coordinators: Mapping[str, Path],
        *,
        etcd: Mapping[str, tuple[int, tuple[str, ...]]] = MappingProxyType({}),
        tell: Callable[[str], None] = lambda name: None,
        echo: bool = False,
    ) -> None:
        """Prepare; starts nothing.

        Args:
            directory: Holds ``cluster.toml``.
            nodes: Name and data directory of each node.
            coordinators: Name and data directory of each process of the coordinator.
            etcd: Name, client port and command of each member of etcd that runs here.
            tell: Given the name of a node whose process ended, when it was not asked to stop with
                all others. Called before the node can be started again; must not raise, nor wait
                for long.
            echo: Copy what the processes say to stderr, each line with the name in front.
        """
        self.directory = directory
        self.own = folder(directory)
        (self.own / "requests").mkdir(parents=True, exist_ok=True)
        self.children: dict[str, Child] = {}
        for name, (port, words) in etcd.items():
            log = self.own / f"{name}.log"
            self.children[name] = Child(name, words, directory / RUN_FILE, log, 0, port)
        self.children |= {name: self._child(name, data, 1) for name, data in coordinators.items()}
        self.children |= {name: self._child(name, data, NODES) for name, data in nodes.items()}
        self.answered = ""
        self.error = ""
        self._echo = _Echo(self.children) if echo else None
        self._tell = tell
        self._ending = False
        self._stop = False
        self._interrupted = False
        self._lock = open(self.own / "lock", "w")  # noqa: SIM115  held as long as we live

    def _child(self, name: str, data: Path, stage: int) -> Child:
        own = self.directory / f"{name}.toml"
        words = self.words(name, own if own.exists() else self.directory / "cluster.toml")
        return Child(name, words, data / RUN_FILE, self.own / f"{name}.log", stage)

    def words(self, name: str, config: Path) -> tuple[str, ...]:
        """The command that starts one process."""
        word, _, number = name.partition("-")
        verb = ("node", "start", name)
        if word == COORDINATOR:
            verb = (word, "start", *(("--number", number) if number else ()))
        return (sys.executable, "-m", "twinlog", "-c", str(config), *verb)

    def serve(self, ready: Callable[[], None] | None = None) -> int:
        """Start everything, then reap and answer until asked to stop; returns an exit code.

        Raises:
            Failure: Another supervisor owns the directory, or a process ended before it was ready;
                the others have been stopped.
            Interrupted: Ctrl-C; everything has been stopped.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failure(
                Exit.UNAVAILABLE,
                f"{self.directory} is in use by another twinlog dev up",
                hints=("look: twinlog dev status", "or stop it: twinlog dev down"),
            ) from None
        waker, wake = os.pipe()
        for end in (waker, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked_to_stop)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, _only_wake)
        self._waker = waker
        try:
            self._start_all()
            if ready is not None:
                ready()
            while not self._stop:
                self._turn()
                self._answer()
        except StopAsked:
            pass
        except Failure as failure:
            self.error = "\n".join(failure.lines())
            raise
        finally:
            self._stop_all()
            signal.set_wakeup_fd(-1)
        if self._interrupted:
            raise Interrupted(NOTHING_LEFT)
        return Exit.OK

    def start(self, name: str) -> None:
        """Start one process; it may be not ready yet when this returns."""
        child = self.children[name]
        if child.process is not None:
            return
        if not child.port:
            child.run_file.unlink(missing_ok=True)
        with open(child.log, "ab") as log:
            child.process = subprocess.Popen(
                child.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with(os.getpid(), signal.SIGKILL),
            )
        child.state, child.exit, child.ports = "starting", None, {}
        child.starts += 1
        self._write_state()

    def wait_ready(self, name: str, seconds: float = 30.0) -> None:
        """Wait until a process is ready.

        Raises:
            Failure: It ended first; carries the last lines it said.
        """
        child = self.children[name]
        until = time.monotonic() + seconds
        while child.state == "starting":
            self._turn(0.02)
            if self._stop:
                raise StopAsked
            if time.monotonic() > until:
                raise Failure(
                    Exit.UNAVAILABLE,
                    f"{name} was not ready within {seconds:g} s",
                    facts=last_lines(child.log),
                )
        if child.state != "ready":
            raise Failure(
                Exit.UNAVAILABLE,
                f"{name} ended before it was ready (exit {child.exit})",
                facts=last_lines(child.log),
                hints=(f"everything it said: {child.log}",),
            )

    def _start_all(self) -> None:
        for stage in range(3):
            names = self._names(stage)
            for name in names:
                self.start(name)
            for name in names:
                self.wait_ready(name)
            if stage == 1:
                self._write_port()

    def _names(self, stage: int) -> list[str]:
        return [name for name, child in self.children.items() if child.stage == stage]

    def _write_port(self) -> None:
        """Put the coordinator's port into the cluster file when the system chose it."""
        path = self.directory / "cluster.toml"
        ports = [port for port in self.children[COORDINATOR].ports.values() if port]
        text = path.read_text(encoding="utf-8")
        if ports and ':0"]' in text:
            path.write_text(text.replace(':0"]', f':{ports[0]}"]', 1), encoding="utf-8")

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
        self._interrupted = self._interrupted or number == signal.SIGINT

    def _turn(self, seconds: float = TURN_SECONDS) -> None:
        with suppress(InterruptedError):
            select.select([self._waker], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._waker, 4096)
        changed = [child for child in self.children.values() if self._look(child)]
        if self._echo is not None:
            self._echo.copy(self.children)
        if changed:
            self._write_state()

    def _look(self, child: Child) -> bool:
        """Reap a child that ended, notice one that became ready; True when something changed."""
        if child.process is None:
            return False
        code = child.process.poll()
        if code is not None:
            child.process, child.exit = None, code
            child.state = "killed" if code < 0 else "stopped" if code == 0 else "ended"
            if child.stage == NODES and not self._ending:
                self._tell(child.name)
            return True
        if child.state == "starting" and child.port:
            if _listens(child.port):
                child.ports = {"clients": child.port}
                child.state = "ready"
                return True
        elif child.state == "starting" or child.stage == 1:  # a coordinator gets its port later
            run = read_json(child.run_file)
            if run is not None and run.get("pid") == child.pid:
                was, ports = (child.state, child.ports), _ports(run.get("ports"))
                child.state, child.ports = "ready", ports
                return was != ("ready", ports)
        return False

    def _answer(self) -> None:
        for path in sorted((self.own / "requests").glob("*.json")):
            request = read_json(path)
            if request is None:
                continue
            path.unlink()
            self.error = ""
            try:
                self._act(str(request.get("what")), str(request.get("name", "")))
            except Failure as failure:
                self.error = "\n".join(failure.lines())
            self.answered = path.stem
            self._write_state()

    def _act(self, what: str, name: str) -> None:
        if what == "keep":
            untie()
            return
        child = self.children.get(name)
        if child is None:
            known = ", ".join(self.children)
            raise Failure(Exit.MISSING, f'there is no process "{name}"', facts=(f"known: {known}",))
        if what == "start":
            self.start(name)
            self.wait_ready(name)
        elif child.process is not None:
            child.process.send_signal(_SIGNALS.get(what, signal.SIGKILL))
            if what == "kill":
                child.process.wait()
                self._look(child)

    def _stop_all(self) -> None:
        """Stop nodes, then coordinators, then etcd; what does not stop in time is killed."""
        self._ending = True
        for group in (self._names(NODES), self._names(1), self._names(0)):
            running = [self.children[name].process for name in group]
            processes = [process for process in running if process is not None]
            for process in processes:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            until = time.monotonic() + STOP_SECONDS
            for process in processes:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for name in group:
                self._look(self.children[name])
        if self._echo is not None:
            self._echo.copy(self.children)
        self._write_state()

    def _write_state(self) -> None:
        state = {
            "kind": "DevState",
            "version": 1,
            "supervisor": os.getpid(),
            "directory": str(self.directory),
            "answered": self.answered,
            "error": self.error,
            "processes": [child.view() for child in self.children.values()],
        }
        path = self.own / "state.json"
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(state), encoding="utf-8")
        aside.replace(path)


_SIGNALS = {
    "kill": signal.SIGKILL,
    "pause": signal.SIGSTOP,
    "resume": signal.SIGCONT,
    "stop": signal.SIGTERM,
}


def _only_wake(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor does the work."""


def _listens(port: int) -> bool:
    """Whether a port of this machine is listened on."""
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


def _ports(value: object) -> dict[str, int]:
    return {name: port for name, port in table(value).items() if isinstance(port, int)}


def last_lines(path: Path, count: int = 8) -> list[str]:
    """The last lines of a log file; empty when the file is missing."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return lines[-count:]


class _Echo:
    """Copies the processes' log files to stderr, with the name of the process before each line."""

    def __init__(self, children: Mapping[str, Child]) -> None:
        logs = {child.name: child.log for child in children.values()}
        self._at = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}
        self._colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    def copy(self, children: Mapping[str, Child]) -> None:
        """Print every whole line that is new."""
        width = max(len(name) for name in children)
        for number, child in enumerate(children.values()):
            with suppress(OSError), open(child.log, "rb") as log:
                log.seek(self._at[child.name])
                data = log.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._at[child.name] += len(whole)
                label = child.name.ljust(width)
                if self._colours:
                    label = f"\x1b[{36 - number % 6}m{label}\x1b[0m"
                for line in whole.decode("utf-8", "replace").splitlines():
                    print(f"{label} | {line}", file=sys.stderr, flush=True)
