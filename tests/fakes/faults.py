"""What goes wrong on a fake disk, and the record of every call.

A fault is armed by operation name (the ``op`` that each call of the `Disk` protocol carries): the
n-th call from now of an operation whose name begins with a prefix meets an error. `SimulatedCrash`
is not an error of the disk but the end of the process in the middle of that call: it derives from
BaseException so that no production ``except`` can swallow it.

Not here: what a power loss takes (`tests.fakes.disk`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random


class SimulatedCrash(BaseException):
    """The process died inside a disk call; the call has not happened."""


@dataclass(slots=True)
class _Armed:
    prefix: str
    after: int
    error: int | None
    allowed: Callable[[], bool] | None = None


@dataclass(slots=True)
class Faults:
    """Armed faults and the record.

    Attributes:
        calls: Number of calls so far.
        record: (operation, path) of each call, when `recording`.
        recording: Keep the record.
        asleep: Nothing is counted and nothing fails: a judge is looking.
        full: Every call that needs space meets ENOSPC.
        io_errors: Calls that met EIO.
        dead: The process died in a call; what its handlers of exceptions still try does not happen.
    """

    calls: int = 0
    recording: bool = False
    record: list[tuple[str, str]] = field(default_factory=list)
    asleep: bool = False
    full: bool = False
    io_errors: int = 0
    dead: bool = False
    _armed: list[_Armed] = field(default_factory=list)

    def fail(
        self,
        prefix: str,
        *,
        after: int = 0,
        error: int = errno.EIO,
        allowed: Callable[[], bool] | None = None,
    ) -> None:
        """The call number ``after`` (0: the next) of operations ``prefix...`` meets ``error``.

        ``allowed`` is asked when the call comes; the error is forgotten when it says no.
        """
        self._armed.append(_Armed(prefix, after, error, allowed))

    def crash(self, prefix: str = "", *, after: int = 0) -> None:
        """The process dies at call number ``after`` of operations ``prefix...``."""
        self._armed.append(_Armed(prefix, after, None))

    def forget(self) -> None:
        """Disarm what is armed; the lasting ones go on."""
        self._armed.clear()
        self.dead = False

    @property
    def armed(self) -> bool:
        """True while an error or a crash is to come."""
        return bool(self._armed)

    def disarm(self) -> None:
        """End all faults."""
        self._armed.clear()
        self.full = False

    def called(self, op: str, path: str) -> int | None:
        """Count one call; returns the errno it shall meet, or None.

        Raises:
            SimulatedCrash: The process dies here.
        """
        if self.asleep:
            return None
        if self.dead:
            raise SimulatedCrash(f"{op} {path} after its end")
        self.calls += 1
        if self.recording:
            self.record.append((op, path))
        if not self._armed:
            return None
        due: _Armed | None = None
        for armed in self._armed:
            if op.startswith(armed.prefix):
                if armed.after == 0 and due is None:
                    due = armed
                else:
                    armed.after -= 1
        if due is None:
            return None
        self._armed.remove(due)
        if due.allowed is not None and not due.allowed():
            return None
        self.io_errors += due.error == errno.EIO
        if due.error is None:
            self.dead = True
            raise SimulatedCrash(f"{op} {path}")
        return due.error


class Forgetful(Random):
    """Nothing that was not flushed survives."""

    def random(self) -> float:
        """Never below any share."""
        return 0.9999999
