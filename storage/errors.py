"""Exceptions of a store: refusals, disk errors and damage.

The base classes are those of `twinlog.errors`; the text names file and offset, ``facts`` hold them
as values. Offsets are log offsets in bytes.

Not here: refusals of single sections (`storage.state.sections`), which are results, not exceptions.
"""

from __future__ import annotations

from errno import EDQUOT, EIO, ENOSPC, errorcode
from typing import ClassVar

from twinlog.errors import CorruptionError, ProtocolError, UnavailableError, UsageError


class DiskError(UnavailableError):
    """A call to the operating system failed.

    Args:
        op: Name of the operation, such as ``log.roll.create``.
        path: Path inside the data directory.
        errno: Number of the error.
    """

    default_code: ClassVar[str] = "disk"

    def __init__(self, op: str, path: str, errno: int) -> None:
        name = errorcode.get(errno, str(errno))
        super().__init__(f"{op} of {path}: {name}", op=op, path=path, errno=errno)
        self.op = op
        self.path = path
        self.errno = errno

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.op, self.path, self.errno)


class DiskFull(DiskError):
    """No space is left; nothing was written, and the same call may succeed later."""

    default_code: ClassVar[str] = "disk-full"


def disk_error(op: str, path: str, error: OSError) -> DiskError:
    """Return the operating system's error as a `DiskError`; a full quota is a full disk."""
    number = error.errno or EIO
    kind = DiskFull if number in (ENOSPC, EDQUOT) else DiskError
    return kind(op, path, number)


class DirectoryInUse(UsageError):
    """Another process holds the data directory."""

    default_code: ClassVar[str] = "directory-in-use"


class IdentityMismatch(UsageError):
    """The data directory belongs to another cluster, group or node, or has other fixed sizes."""

    default_code: ClassVar[str] = "identity"


class NewerVersion(UsageError):
    """A newer twinlog wrote the data directory."""

    default_code: ClassVar[str] = "newer-version"


class ForeignStore(UsageError):
    """RocketMQ wrote or changed the store; it cannot be a member of a group in this state."""

    default_code: ClassVar[str] = "foreign-store"


class LogFolder(UsageError):
    """A folder of log files is missing, or is not as the store knows it; nothing was changed."""

    default_code: ClassVar[str] = "log-folder"


class IndexOff(UnavailableError):
    """Records cannot be found by key: the key index is turned off."""

    default_code: ClassVar[str] = "index-off"
    default_retryable: ClassVar[bool] = False

    @classmethod
    def of_node(cls) -> IndexOff:
        """Return the error with its hint."""
        hint = "set key_index = true for the node, or read a range and look at each key"
        return cls("the key index of this node is turned off", hint=hint)


class IndexBehind(UnavailableError):
    """The key index is being built; queries work later."""

    default_code: ClassVar[str] = "index-behind"

    @classmethod
    def at(cls, position: int, confirm: int) -> IndexBehind:
        """Return the error of an index that is built up to ``position`` of ``confirm``."""
        share = 100 * position // max(confirm, 1)
        return cls(
            f"the key index is being built: it covers {share} % of the log",
            hint="try again later, or read a range and look at each key",
            position=position,
            confirm=confirm,
        )


class StaleToken(UnavailableError):
    """The writer's token is not the current one: its role, epoch or session has ended."""

    default_code: ClassVar[str] = "stale-token"


class Gap(ProtocolError):
    """Received batches do not continue the log."""

    default_code: ClassVar[str] = "gap"


class BadBatch(CorruptionError):
    """A received batch breaks a rule; nothing of it was stored.

    Args:
        start: Log offset of the batch.
        length: Its bytes.
        reason: Which rule, a few words.
    """

    default_code: ClassVar[str] = "bad-batch"

    def __init__(self, start: int, length: int, reason: str) -> None:
        super().__init__(
            f"batch at {start} of {length} bytes: {reason}",
            offset=start,
            length=length,
            what=reason,
        )
        self.start = start
        self.length = length
        self.reason = reason
