"""The register's store: one SQLite file that never loses an answered change.

``coordinator.sqlite`` holds the register (one JSON document, as ``replication.register.register``
dumps it) and its random id, every pair (revision, tag) ever made, and the history of masters.
`CoordinatorStore.record` writes them in one transaction and returns once they are durable
(``journal_mode=WAL``, ``synchronous=FULL``); only then may the coordinator answer.

Invariants:

* revisions in ``pairs`` rise and are never rewritten;
* the register's own revision is the largest of ``pairs``;
* after any I/O error the store is dead: it refuses every further call, and the process must stop.
  SQLite decides at the next open whether the failed transaction happened.

One process per folder: the database is locked exclusively while it is open. Calls block
on the disk (about a millisecond); the service calls `record` from a thread, one at a time.

Not here: which changes are allowed (``replication.register.register``), sockets
(``replication.coordinator.service``). This is the only module of the server that opens files
without ``storage.disk.disk``: SQLite opens its own. Rule: docs/protocol.md R17.
Sources: SQLite, "PRAGMA synchronous".
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from twinlog.errors import CorruptionError, TwinlogError, UsageError

FILE = "coordinator.sqlite"

SCHEMA = 1
"""Version of the tables below; a larger number was written by a newer twinlog."""

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS register (one INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL, document TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS pairs (revision INTEGER PRIMARY KEY, tag INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, entry TEXT NOT NULL) STRICT;
"""

_SIGNED = 1 << 63
"""SQLite's integers are signed, tags are unsigned: they are stored minus this."""


class StoreStopped(TwinlogError):
    """A read or write failed; no more change is durable and the process must stop."""

    default_code = "coordinator-store"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The stored content: the register's document, all pairs, the history."""

    document: Mapping[str, object] | None
    pairs: Mapping[int, int]
    history: tuple[Mapping[str, object], ...]


class RegisterStore(Protocol):
    """The store of a register: one SQLite file, or etcd (``replication.coordinator.etcd_store``).

    Both keep this contract, and one test suite checks it: after `record` returned, every later
    `load` returns the change; after it raised, the change may or may not be stored, and the store
    refuses all further calls. Calls block; one at a time, from any thread.
    """

    register_id: str

    def load(self) -> Recorded:
        """Return everything that was recorded."""
        ...

    def record(
        self,
        revision: int,
        tag: int,
        document: Mapping[str, object],
        history: Iterable[Mapping[str, object]],
        *,
        afresh: bool = False,
    ) -> None:
        """Make one change durable; it has happened when this returns."""
        ...

    def keep(self, document: Mapping[str, object]) -> None:
        """Make the document durable although its revision is the old one: an alarm."""
        ...

    def prove(self) -> None:
        """Raise `StoreStopped` if another process may have changed the store."""
        ...

    def close(self) -> None:
        """Release the store; may be called twice."""
        ...


class CoordinatorStore:
    """The open file. Not thread-safe: one call at a time, from any thread.

    Args:
        folder: Made if it is missing.
        cluster: Name of the cluster; another cluster's file is refused.
        group: Name of the group, likewise.

    Attributes:
        register_id: Random id of the register, made with the file.

    Raises:
        UsageError: ``directory-in-use``, ``identity`` or ``newer-version``; nothing was changed.
        CorruptionError: SQLite finds the file damaged.
        StoreStopped: The disk failed.
    """

    def __init__(self, folder: Path, cluster: str, group: str) -> None:
        self.folder = folder
        self._dead: str | None = None
        self._written: list[str] = []
        try:
            _make_folder(folder)
            self._db = sqlite3.connect(
                folder / FILE, timeout=0, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreStopped(f"cannot open {folder / FILE}: {error}") from error
        try:
            self._open(cluster, group)
        except BaseException:
            self._db.close()
            raise

    def _open(self, cluster: str, group: str) -> None:
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            sound = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if sound != "ok":
                raise CorruptionError(f"{FILE} is damaged: {sound}", file=str(self.folder / FILE))
            for statement in _TABLES.split(";"):
                self._db.execute(statement)
            self.register_id = self._identify(cluster, group)
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                text = f"{self.folder} is in use by another coordinator"
                raise UsageError(text, code="directory-in-use", data=str(self.folder)) from error
            raise StoreStopped(f"cannot open {self.folder / FILE}: {error}") from error
        except sqlite3.DatabaseError as error:
            text = f"{FILE} is damaged: {error}"
            raise CorruptionError(text, file=str(self.folder / FILE)) from error

    def _identify(self, cluster: str, group: str) -> str:
        """Compare the file's names with ours; return the register's id, made with the file."""
        found = {str(name): str(value) for name, value in self._db.execute("SELECT * FROM facts")}
        if not found:
            ours = {"schema": str(SCHEMA), "cluster": cluster, "group": group}
            ours["register_id"] = secrets.token_hex(16)
            self._db.executemany("INSERT INTO facts VALUES (?, ?)", ours.items())
            return ours["register_id"]
        if int(found["schema"]) > SCHEMA:
            text = f"{FILE} has schema {found['schema']}; this version knows up to {SCHEMA}"
            raise UsageError(text, code="newer-version", hint="start the version that wrote it")
        if (found["cluster"], found["group"]) != (cluster, group):
            text = (
                f"{self.folder} belongs to cluster {found['cluster']}, group {found['group']}, "
                f"not to cluster {cluster}, group {group}"
            )
            hint = "give the coordinator a data folder of its own"
            raise UsageError(text, code="identity", hint=hint)
        return found["register_id"]

    def load(self) -> Recorded:
        """Return everything that was recorded.

        Raises:
            CorruptionError: The documents do not fit together; nothing can be trusted.
            StoreStopped: The disk failed.
        """
        try:
            row = self._db.execute("SELECT revision, document FROM register").fetchone()
            pairs: dict[int, int] = {
                int(revision): int(tag) + _SIGNED
                for revision, tag in self._db.execute("SELECT revision, tag FROM pairs")
            }
            entries = self._db.execute("SELECT entry FROM history ORDER BY number").fetchall()
            self._written = [str(entry) for (entry,) in entries]
            document = None if row is None else json.loads(row[1])
            history = tuple(json.loads(entry) for (entry,) in entries)
        except sqlite3.Error as error:
            raise self._stop("read", error) from error
        except ValueError as error:
            raise CorruptionError(f"{FILE} holds no JSON: {error}") from error
        if row is not None and (not pairs or max(pairs) != row[0]):
            text = f"{FILE} holds revision {row[0]} but pairs up to {max(pairs, default=0)}"
            raise CorruptionError(text, file=str(self.folder / FILE))
        return Recorded(document, pairs, history)

    def record(
        self,
        revision: int,
        tag: int,
        document: Mapping[str, object],
        history: Iterable[Mapping[str, object]],
        *,
        afresh: bool = False,
    ) -> None:
        """Make one change durable; it has happened when this returns.

        Args:
            revision: Of the change; larger than every recorded one.
            tag: Its random 64-bit tag.
            document: The whole register after it.
            history: All entries, oldest first; only those that differ are written.
            afresh: Forget the pairs before it: the register was recovered.

        Raises:
            StoreStopped: The disk refused, or the revision is not new. The store is dead.
        """
        if self._dead is not None:
            raise StoreStopped(f"the coordinator's store stopped: {self._dead}")
        texts = [_json(entry) for entry in history]
        news = [
            (number, text)
            for number, text in enumerate(texts)
            if number >= len(self._written) or self._written[number] != text
        ]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            if afresh:
                self._db.execute("DELETE FROM pairs")
            self._db.execute("INSERT INTO pairs VALUES (?, ?)", (revision, tag - _SIGNED))
            self._db.execute(
                "INSERT OR REPLACE INTO register VALUES (1, ?, ?)", (revision, _json(document))
            )
            self._db.executemany("INSERT OR REPLACE INTO history VALUES (?, ?)", news)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._stop(f"record revision {revision}", error) from error
        self._written = texts

    def keep(self, document: Mapping[str, object]) -> None:
        """Make the register's document durable although its revision is the old one: an alarm.

        Raises:
            StoreStopped: The disk failed. The store is dead.
        """
        if self._dead is not None:
            raise StoreStopped(f"the coordinator's store stopped: {self._dead}")
        try:
            self._db.execute("UPDATE register SET document = ?", (_json(document),))
        except sqlite3.Error as error:
            raise self._stop("keep the register's alarm", error) from error

    def prove(self) -> None:
        """Do nothing: no other process can have the file while it is open."""

    def _stop(self, what: str, error: Exception) -> StoreStopped:
        self._dead = f"cannot {what}: {error}"
        return StoreStopped(f"cannot {what} in {self.folder / FILE}: {error}")

    def close(self) -> None:
        """Close the file and release the folder; may be called twice."""
        self._db.close()


def _make_folder(folder: Path) -> None:
    """Make a folder whose name survives a power failure; SQLite only syncs the files in it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(above)
        finally:
            os.close(above)


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
