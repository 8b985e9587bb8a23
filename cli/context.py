"""What a command is given besides its own arguments.

A `Context` holds the global options, the printer, and the doors to the world: the cluster file, one
question to one process (`ask`), a client, and the person at the terminal.  Tests replace the doors;
commands never reach past it, so a fake cluster needs no socket.

Times are seconds on the monotonic clock; `Context.left` is what remains of the command's own
timeout.

Not here: what a cluster looks like as a whole (``cli.cluster.view``).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.options import Globals
from cli.render import Printer

if TYPE_CHECKING:
    from node.config.config import ClusterConfig
    from twinlog.client.blocking import Client


def _ask(address: str, kind: int, fields: Mapping[str, object], timeout: float | None) -> Fields:
    from cli.connection import ask

    return ask(address, kind, fields, timeout=timeout)


def _open_client(endpoints: tuple[str, ...], timeout: float | None) -> Client:
    from twinlog.client.blocking import Client

    # Everything in twinlog has a deadline; "for ever" is a year.
    return Client(",".join(endpoints), timeout=timeout or 365 * 86400.0)


@dataclass
class Context:
    """Options, printer and doors of one call."""

    options: Globals = field(default_factory=Globals)
    printer: Printer = field(default_factory=lambda: Printer(Globals()))
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    ask: Callable[[str, int, Mapping[str, object], float | None], Fields] = _ask
    open_client: Callable[[tuple[str, ...], float | None], Client] = _open_client
    clock: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    started: float = field(default_factory=time.monotonic)

    def left(self, most: float | None = None) -> float | None:
        """Seconds left of the command's timeout, at most ``most``; None when there is no end.

        Raises:
            Failure: The time is over (exit 69).
        """
        total = self.options.timeout
        if total is None:
            return most
        rest = total - (self.clock() - self.started)
        if rest <= 0:
            raise Failure(
                Exit.UNAVAILABLE,
                f"not done within {total:g} s",
                hints=("give it longer with --timeout",),
            )
        return rest if most is None else min(rest, most)

    def config_path(self) -> Path | None:
        """The cluster file that applies; None when no place has one."""
        if self.options.config is not None:
            return self.options.config
        for folder in self._config_folders():
            path = folder / "cluster.toml"
            if path.is_file():
                return path
        return None

    def _config_folders(self) -> list[Path]:
        here = Path()
        made = here / "data"  # what `twinlog dev up` makes here
        home = self.environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return [here, made, Path(home) / "twinlog", Path("/etc/twinlog")]

    def config(self, overrides: Mapping[str, object] | None = None) -> ClusterConfig:
        """Read the cluster file.

        Raises:
            Failure: There is no file (exit 66), or it has mistakes, all of them listed (exit 78).
        """
        path = self.config_path()
        if path is None:
            raise Failure(
                Exit.MISSING,
                "there is no cluster.toml here, in the user's config folder or in /etc/twinlog",
                hints=(
                    "start a cluster on this machine: twinlog dev up",
                    "or name a file: twinlog -c FILE ...",
                ),
            )
        from cli.config_file import read_config

        return read_config(path, self.environment, overrides)

    def endpoints(self) -> tuple[str, ...]:
        """Client addresses to try: those of ``--endpoint``, else the nodes of the cluster file."""
        if self.options.endpoints:
            return self.options.endpoints
        from cli.config_file import client_endpoints

        return client_endpoints(self.config())

    def check_reader(self, name: str) -> None:
        """Refuse to read from a node that the cluster file does not have; `--endpoint` has no file.

        Raises:
            Failure: There is no such node (exit 66); waiting for it would be of no use.
        """
        if name in ("any", "master", "slave") or self.options.endpoints:
            return
        from cli.config_file import node_of

        node_of(self.config(), name)

    def client(self, *, timeout: float | None = None) -> Client:
        """A blocking client of the cluster; close it (it is a context manager)."""
        return self.open_client(self.endpoints(), timeout or self.left())

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask before something that cannot be undone; ``yes`` answers for scripts.

        Raises:
            Failure: There is no terminal to ask at (exit 64).
        """
        if yes:
            return True
        if not self.stdin.isatty() or self.environment.get("CI"):
            raise Failure(
                Exit.USAGE,
                "this asks a question, and there is no terminal to answer it",
                facts=(question,),
                hints=("answer it in the call: --yes",),
            )
        self.printer.clear_status()
        print(f"{question} [y/N] ", end="", file=self.printer.err, flush=True)
        return self.stdin.readline().strip().lower() in ("y", "yes")
