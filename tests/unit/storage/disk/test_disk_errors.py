"""Errors of the operating system as errors of the disk."""

from __future__ import annotations

import errno
import pickle

from storage.errors import DiskError, DiskFull, disk_error


def test_a_full_quota_is_a_full_disk() -> None:
    """And an error without a number is one of input and output."""
    for errno_, kind in (
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, DiskError),
    ):
        found = disk_error("op", "path", OSError(errno_, "text"))
        assert (type(found), found.errno) == (kind, errno_)
    assert disk_error("op", "path", OSError("no number")).errno == errno.EIO


def test_disk_errors_travel_between_processes() -> None:
    """They name operation, path and error, and can be pickled."""
    error = pickle.loads(pickle.dumps(DiskFull("log.roll", "commitlog/0", 28)))
    assert (type(error), error.op, error.path, error.errno) == (
        DiskFull, "log.roll", "commitlog/0", 28,
    )  # fmt: skip
    assert "ENOSPC" in str(error)
    assert str(DiskError("x", "y", 9999)).endswith("9999")
