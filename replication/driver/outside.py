"""The driver's interface to the world. Types only.

`Outside` is implemented by ``replica_service`` for a process and by the simulator's nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from storage import Job, SectionResult
from twinlog.wire import frames

Reply = Callable[[list[SectionResult], str | None], None]
"""Results of the sections, and the nodes that have them (comma-separated); None if no node does."""

Done = Callable[[str, str], None]
"""Code (``ok``, ``unknown`` or a reason) and text."""


class Outside(Protocol):
    """The world as the driver uses it. No method may call the driver before it returns."""

    def send(self, conn: int, frame: frames.Frame) -> None:
        """Queue a frame; its payload is valid until the call returns or the log is cut."""

    def dial(self, conn: int, peer: str) -> None:
        """Connect to a node; answered by ``on_dialed`` or ``on_closed``."""

    def close(self, conn: int, why: str) -> None:
        """Close a link after sending what was queued; no more events of it follow."""

    def coordinate(self, call_id: int, op: dict[str, object]) -> None:
        """Ask the register; answered by ``on_answer``."""

    def push(self) -> None:
        """Send what was queued: the work that follows takes time, and no client waits for it."""

    def run_job(self, job: Job) -> None:
        """Run a job off the loop; answered by ``on_job``."""

    def fetch(self, start: int, length: int) -> None:
        """Ask other nodes for the batch at ``start``; answered by ``on_copy``."""

    def event(self, name: str, level: str, **facts: object) -> None:
        """Log an event; level ``alarm`` needs an operator."""

    def changed(self) -> None:
        """Role, epoch, links or in-sync set changed: read ``view``."""

    def crash(self, why: str) -> None:
        """End the process; may raise."""
