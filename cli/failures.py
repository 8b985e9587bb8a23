"""Errors as a person reads them, and as a script acts on them.

A failure is one line *what* happened, indented facts, and hints that are statements with a command
to paste.  A stack trace is never shown: an unexpected error is a bug, its trace goes to a file
whose path is printed.

Exit codes: 0 to 2 are answers (yes, no, could not tell), the rest is taken from sysexits.  The
table `EXITS` is what ``twinlog help exit`` prints and the reference page shows.

Three outcomes: a command that changes something was done (0), was not done (any other), or the
outcome is unknown (75).  `Exit.UNKNOWN` is never used for anything that certainly did not happen.

Not here: catching (``app``), printing (``render``).
"""

from __future__ import annotations

import difflib
import errno
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from twinlog import errors
from twinlog.filters.sql92 import FilterError
from twinlog.units import UnitError, format_duration


class Exit(IntEnum):
    """What the process ends with."""

    OK = 0
    NO = 1
    UNDECIDED = 2
    USAGE = 64
    DATA = 65
    MISSING = 66
    UNAVAILABLE = 69
    BUG = 70
    UNKNOWN = 75
    DENIED = 77
    CONFIG = 78
    INTERRUPTED = 130


EXITS: Mapping[Exit, tuple[str, str]] = {
    Exit.OK: ("done; or the answer is yes", "go on"),
    Exit.NO: ("the answer is no: degraded, not equal", "act on it"),
    Exit.UNDECIDED: ("cannot tell; of health: writes do not work", "look closer"),
    Exit.USAGE: ("wrong command, option or value", "fix the call"),
    Exit.DATA: ("a file or a message is corrupt", "not retry"),
    Exit.MISSING: ("no such topic, message, node or file", "create it"),
    Exit.UNAVAILABLE: ("no answer, or it cannot be done now", "retry later"),
    Exit.BUG: ("a bug in twinlog; a report file is named", "report it"),
    Exit.UNKNOWN: ("it may or may not have happened", "look, then decide"),
    Exit.DENIED: ("permission denied", "ask for the right"),
    Exit.CONFIG: ("cluster.toml is wrong, or a part missing", "fix the file"),
    Exit.INTERRUPTED: ("Ctrl-C; what still runs is printed", "stop what is left"),
}
"""When each code is used, and what a script may do then."""


class Failure(Exception):
    """Something to tell the user, with the exit code that goes with it.

    Args:
        exit_code: What the process ends with.
        text: What happened; one line, no full stop.
        facts: Lines that say what it was made of.
        hints: Statements what to do next.
        more: Further failures of the same call, reported in order (mistakes in one file).
    """

    def __init__(
        self,
        exit_code: Exit,
        text: str,
        *,
        facts: Iterable[str] = (),
        hints: Iterable[str] = (),
        more: Iterable[Failure] = (),
    ) -> None:
        super().__init__(text)
        self.exit = exit_code
        self.text = text
        self.facts = tuple(facts)
        self.hints = tuple(hints)
        self.more = tuple(more)

    def document(self) -> dict[str, object]:
        """The failure as machines see it (kind Error, version 1)."""
        found: dict[str, object] = {
            "kind": "Error",
            "version": 1,
            "exit": int(self.exit),
            "name": self.exit.name.lower(),
            "text": self.text,
            "facts": list(self.facts),
            "hints": list(self.hints),
        }
        if self.more:
            found["more"] = [other.document() for other in self.more]
        return found

    def lines(self) -> list[str]:
        """The failure as it is printed."""
        word = {Exit.UNKNOWN: "unknown", Exit.INTERRUPTED: "interrupted"}.get(self.exit, "error")
        found = [f"{word}: {self.text}"]
        found += [f"  {fact}" for fact in self.facts]
        found += [f"  hint: {hint}" for hint in self.hints]
        for other in self.more:
            found += other.lines()
        return found


class TimeOver(Failure):
    """The time of the command is over."""

    def __init__(self, seconds: float) -> None:
        hints = ("give it longer with --timeout",)
        super().__init__(Exit.UNAVAILABLE, f"not done within {seconds:g} s", hints=hints)


NOTHING_LEFT = ("nothing is left running",)
"""What a command says at Ctrl-C that owned processes and has stopped them all."""


class Interrupted(Exception):
    """Ctrl-C after a command had something to tidy or to name.

    Args:
        left: What is still running or may still happen, one line each.
    """

    def __init__(self, left: Iterable[str] = ()) -> None:
        super().__init__("interrupted")
        self.left = tuple(left)


def nearest(word: str, known: Iterable[str], begin: str = "") -> tuple[str, ...]:
    """A hint that names the known word closest to ``word``; empty when none is close.

    Args:
        begin: What is not compared: the dashes of an option, the noun of
            a command. Known words that do not begin with it are passed over.

    >>> nearest("tabel", ["table", "wide"])
    ('the nearest is "table"',)
    >>> nearest("--max", ["--format", "-m"], "--"), nearest("--fromat", ["--format"], "--")
    ((), ('the nearest is "--format"',))
    """
    ends = [one.removeprefix(begin) for one in known if one.startswith(begin)]
    close = difflib.get_close_matches(word.removeprefix(begin), ends, n=1)
    return (f'the nearest is "{begin}{close[0]}"',) if close else ()


def interrupted(left: Iterable[str] = ()) -> Failure:
    """What Ctrl-C ends with."""
    running = tuple(left)
    facts = running or ("this command left nothing running",)
    return Failure(Exit.INTERRUPTED, "stopped by Ctrl-C", facts=facts)


def describe(error: BaseException) -> Failure | None:
    """Return ``error`` as a failure, or None when it is unknown: then it is a bug."""
    match error:
        case Failure():
            return error
        case Interrupted():
            return interrupted(error.left)
        case KeyboardInterrupt():
            return interrupted()
        case errors.TwinlogError():
            return _of_twinlog(error)
        case UnitError():
            return Failure(Exit.USAGE, str(error), hints=(error.hint,))
        case OSError():
            return _of_system(error)
        case _:
            return None


def exit_of(error: errors.TwinlogError) -> Exit:
    """The exit code of an error of the cluster or of the files."""
    match error:
        case errors.OutcomeUnknown():
            return Exit.UNKNOWN
        case errors.CorruptionError() | errors.RecordRefused():
            return Exit.DATA
        case errors.UnknownTopic() | errors.OffsetGone() | errors.OffsetBeyond():
            return Exit.MISSING
        case errors.UnknownGroup():
            return Exit.MISSING
        case errors.LeaseLost() | errors.Fenced() | errors.TooLate() | errors.TransactionSettled():
            return Exit.NO
        case errors.Denied():
            return Exit.DENIED
        case errors.UnavailableError() if error.facts.get("errno") in _NO_RIGHTS:
            return Exit.DENIED
        case errors.UnavailableError() if _is_no_folder(error):
            return Exit.CONFIG
        case errors.UsageError() if error.code == "directory-in-use":
            return Exit.UNAVAILABLE
        case errors.UsageError() if error.code in _NOT_THERE:
            return Exit.MISSING
        case errors.UsageError() if error.code == "unsound-store":
            return Exit.DATA
        case errors.UsageError() if error.code == "unreadable-store":
            return Exit.UNDECIDED
        case errors.UsageError() if error.code in _OTHERS_DIRECTORY:
            return Exit.CONFIG
        case errors.UsageError():
            return Exit.USAGE
        case _:
            return Exit.UNAVAILABLE


_NOT_THERE = {"log-folder", "none", "not-archived", "nothing-to-adopt", "unknown-node"}
"""A folder, a message (at a log offset), an archive, a log or a node that is not there."""
_OTHERS_DIRECTORY = {"identity", "newer-version", "foreign-store", "other-cluster"}
"""The data directory, or the cluster at the addresses, is not what the cluster file says."""


_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
"""What the system says where this user may not read or write."""


def _is_no_folder(error: errors.TwinlogError) -> bool:
    """Whether a folder could not be made because of what is in its place: waiting does not help."""
    what = error.facts.get("op"), error.facts.get("errno")
    return what in {("open.make-dir", errno.EEXIST), ("open.make-dir", errno.ENOTDIR)}


_TOLD = {"leader", "host", "port", "address", "text", "code"}
"""Facts that the sentence itself says already."""


UNKNOWN_AGE_MS = 1 << 40
"""`twinlog.wire.schema.AGE_UNKNOWN_MS`, whose import would cost every command 40 ms."""


def _fact(name: str, value: str | float) -> str:
    """A fact of an error as a person reads it: what ends in ``_ms`` is a duration."""
    if name.endswith("_ms") and not isinstance(value, str):
        unknown = value >= UNKNOWN_AGE_MS
        return f"{name[:-3]}: {'unknown' if unknown else format_duration(value / 1000)}"
    return f"{name.replace('_', ' ')}: {value}"


def _of_twinlog(error: errors.TwinlogError) -> Failure:
    if isinstance(error, FilterError):
        hints = (error.hint,) if error.hint else ()
        return Failure(Exit.USAGE, error.text, facts=error.lines, hints=hints)
    facts = [
        _fact(name, value)
        for name, value in error.facts.items()
        if name not in _TOLD and isinstance(value, (str, int, float)) and value != ""
        if (name, value) != ("age_ms", 0)  # a master's word has no age
    ]
    if isinstance(error, errors.NotMaster) and error.leader:
        where = f" at {error.address}" if error.address else ""
        facts.insert(0, f"the master is {error.leader}{where}")
    hints = (error.hint,) if error.hint else ()
    if error.facts.get("errno") in _NO_RIGHTS:
        hints = ("run it as the user who owns the directory",)
    if _is_no_folder(error):
        hints = (
            "a file is in the place of the folder: name another data folder, or move the file",
        )
    return Failure(exit_of(error), error.text, facts=facts, hints=hints)


def _of_system(error: OSError) -> Failure | None:
    name = str(error.filename) if error.filename is not None else "?"
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return Failure(Exit.MISSING, f"{name} does not exist")
        case errno.EISDIR:
            return Failure(Exit.USAGE, f"{name} is a directory, not a file")
        case errno.EACCES | errno.EPERM:
            return Failure(Exit.DENIED, f"permission denied: {name}")
        case errno.EADDRINUSE:
            return Failure(
                Exit.UNAVAILABLE,
                "a port is taken by another process",
                facts=(str(error.strerror or error),),
                hints=("stop the other process, or choose other ports under [listen]",),
            )
        case errno.ENOSPC:
            what = "the output" if error.filename is None else name
            return Failure(Exit.UNAVAILABLE, f"the disk is full: no space for {what}")
        case errno.ENAMETOOLONG | errno.ELOOP:
            facts = (f"the system says: {error.strerror}",)
            return Failure(Exit.USAGE, f"{name} is not a valid file name", facts=facts)
        case errno.EPIPE:
            return Failure(Exit.OK, "the reader of the output went away")
        case _:
            return None


def write_report(error: BaseException) -> Path:
    """Write the trace of a bug to a file of its own and return its path."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    path = Path(tempfile.gettempdir()) / f"twinlog-bug-{stamp}-{os.getpid()}.txt"
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return path


def bug(error: BaseException) -> Failure:
    """What the user sees of an unexpected error; its trace goes to a file."""
    path = write_report(error)
    return Failure(
        Exit.BUG,
        f"internal error in twinlog ({type(error).__name__}: {error})",
        facts=(f"the trace is in {path}",),
        hints=("report it with that file",),
    )


@contextmanager
def undisturbed() -> Generator[None]:
    """Tidy up to the end, also when Ctrl-C is pressed again."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
