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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cli.failures import UNKNOWN_AGE_MS, Exit, Failure, TimeOver
from cli.fields import Fields
from cli.options import Globals
from cli.render import Printer
from twinlog.units import UnitError, format_duration, parse_duration

if TYPE_CHECKING:
    from cli.connection import Named
    from node.config.config import ClusterConfig
    from twinlog.client.arguments import Duration
    from twinlog.client.blocking import Client
    from twinlog.consumer.core import Source
    from twinlog.session.tls_files import Login, Tls

    Question = Callable[
        [str, int, Mapping[str, object], float | None, Named | None, Tls | None], Fields
    ]
    """Address, type, fields, seconds, the cluster that must answer, the files for TLS."""
    OpenClient = Callable[[tuple[str, ...], float | None, Named | None, Tls | None], Client]
    """Addresses, seconds of a call, the cluster that must answer, the files for TLS."""


OLD_MS = 5000
"""From this age of a slave's data on a note says how old it is, ms: what nodes serve unasked."""


def _ask(
    address: str,
    kind: int,
    fields: Mapping[str, object],
    timeout: float | None,
    named: Named | None,
    tls: Tls | None,
) -> Fields:
    from cli.connection import ask

    return ask(address, kind, fields, timeout=timeout, named=named, tls=tls)


def _open_client(
    endpoints: tuple[str, ...], timeout: float | None, named: Named | None, tls: Tls | None
) -> Client:
    from twinlog.client.blocking import Client

    # Everything in twinlog has a deadline; "for ever" is a year.
    seconds = timeout or 365 * 86400.0
    expected = named.expected() if named is not None else None
    return Client(",".join(endpoints), timeout=seconds, cluster=expected, tls=tls)


def files_of(config: ClusterConfig, process: str = "operator") -> Tls | None:
    """The files of a process, as the cluster file names them; None: it has no [tls]."""
    settings = config.tls_of(process)
    if settings is None:
        return None
    files = settings.files
    there = files.certificate is not None and Path(files.certificate).exists()
    return files if there else type(files)(files.authority)


def _operator(config: ClusterConfig) -> Login | None:
    """The operator's login, where its file can be read; applications have a user of their own."""
    from node.config.layer_settings import secret_file
    from storage.state.access import OPERATOR
    from twinlog.session.login import password_in
    from twinlog.session.tls_files import Login

    path = secret_file(config)
    if path is None or not os.access(path, os.R_OK):
        return None
    return Login(OPERATOR, password_in(str(path)))


@dataclass
class Context:
    """Options, printer and doors of one call."""

    options: Globals = field(default_factory=Globals)
    printer: Printer = field(default_factory=lambda: Printer(Globals()))
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    question: Question = _ask
    open_client: OpenClient = _open_client
    clock: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    started: float = field(default_factory=time.monotonic)
    process: str = "operator"
    """Whose certificate is shown, of those in the cluster file: a command's, or a node's."""
    _named: Named | None = None
    _files: tuple[Path, Tls | None] | None = None
    _secret: tuple[Path, Login | None] | None = None

    def left(self, most: float | None = None) -> float | None:
        """Seconds left of the command's timeout, at most ``most``; None when there is no end.

        Raises:
            TimeOver: The time is over (exit 69).
        """
        total = self.options.timeout
        if total is None:
            return most
        rest = total - (self.clock() - self.started)
        if rest <= 0:
            raise TimeOver(total)
        return rest if most is None else min(rest, most)

    def over(self, seconds: float) -> bool:
        """Whether the time of the command ends within ``seconds``."""
        try:
            left = self.left()
        except TimeOver:
            return True
        return left is not None and left <= seconds

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
        seconds = timeout or self.left()
        return self.open_client(self.endpoints(), seconds, self.named(), self.tls())

    def tls(self) -> Tls | None:
        """What connections show: the files for TLS, and the login; None: neither.

        Raises:
            UsageError: A user without a password.
        """
        files, login = self._tls_files(), self._login()
        if login is None:
            return files
        from twinlog.session.tls_files import Tls

        return replace(files or Tls(""), login=login)

    def _login(self) -> Login | None:
        """Who we are: ``--user``, else the operator where the cluster file's secret is readable."""
        options = self.options
        if options.user:
            from twinlog.session.login import login_of

            said = {"TWINLOG_USER": options.user, "TWINLOG_PASSWORD_FILE": options.password_file}
            return login_of({**self.environment, **said})
        path = self.config_path()
        if options.endpoints or path is None:
            return None
        if self._secret is None or self._secret[0] != path:
            self._secret = path, _operator(self.config())
        return self._secret[1]

    def _tls_files(self) -> Tls | None:
        """The files for TLS: those of ``--tls-ca``, else of the cluster file; None: no TLS.

        A file with [tls] serves on machines of applications, too: where the operator's certificate
        is not there, none is shown.
        """
        options = self.options
        if options.tls_ca:
            from twinlog.session.tls_files import Tls

            return Tls(options.tls_ca, options.tls_cert or None, options.tls_key or None)
        if options.tls_cert or options.tls_key:
            raise Failure(
                Exit.USAGE,
                "--tls-cert and --tls-key need --tls-ca",
                hints=("name the authority's certificate: --tls-ca FILE",),
            )
        path = self.config_path()
        if options.endpoints or path is None:
            return None
        if self._files is None or self._files[0] != path:
            self._files = path, files_of(self.config(), self.process)
        return self._files[1]

    def named(self) -> Named | None:
        """The cluster that the cluster file names; None where ``--endpoint`` overrides it."""
        if self.options.endpoints or self.config_path() is None:
            return None
        if self._named is None:
            from cli.connection import Named

            config = self.config()
            self._named = Named(config.name, config.group, str(config.path))
        return self._named

    def ask(
        self, address: str, kind: int, fields: Mapping[str, object], timeout: float | None
    ) -> Fields:
        """Put one question to one process.

        An order is carried out by no other cluster than `named`. The answer to a question says
        whose it is.

        Raises:
            TwinlogError: See ``cli.connection.ask``.
        """
        return self.question(address, kind, fields, timeout, self.named(), self.tls())

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


def accepted(stale_ok: str | None) -> Duration | None:
    """Return how old the data may be, as the client takes it.

    Raises:
        Failure: It is not a duration (exit 64).
    """
    if stale_ok is None or stale_ok == "any":
        return stale_ok
    try:
        return parse_duration(stale_ok)
    except UnitError:
        text = f'--stale-ok is "{stale_ok}", which is not a duration'
        hints = ("write an age such as 30s or 10m, or --stale-ok alone for any age",)
        raise Failure(Exit.USAGE, text, hints=hints) from None


def note_source(source: Source, context: Context) -> bool:
    """Note how old the data is, where newer messages may exist elsewhere; always True."""
    if not source.settled:
        context.printer.note(
            f"{source.node} has not heard from an in-sync member for {_age(source)}: "
            "another node may be master by now, and newer messages may exist there"
        )
    elif source.role != "master" and source.age_ms >= OLD_MS:
        context.printer.note(
            f"{source.node}, a slave, has not heard from its master for {_age(source)}: "
            "newer messages may exist"
        )
    return True


def _age(source: Source) -> str:
    if source.age_ms >= UNKNOWN_AGE_MS:
        return "an unknown time"
    return format_duration(source.age_ms / 1000)
