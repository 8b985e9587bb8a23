"""The nodes as they are seen during a drill: role, epoch and offsets, a few times a second.

Times are seconds since the drill began.  A node that does not answer is seen as ``unreachable``.

Not here: asking (``cli.cluster.view``), drawing it (``report``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from cli.cluster.health import judge
from cli.cluster.view import ClusterView
from cli.drill.workload import Clock

LOOK_SECONDS = 0.2
"""Pause between two looks; a paused node makes one look take up to half a second more."""
SIGHTINGS_MAX = 50_000
"""Sightings that are kept; a drill of ten minutes has a fifth of them."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One node at one moment; offsets are bytes, None where it did not say."""

    at: float
    node: str
    role: str
    epoch: int | None
    end: int | None
    flushed: int | None
    confirm: int | None

    def fields(self) -> dict[str, object]:
        """The sighting as machines see it."""
        return asdict(self)


class Watcher:
    """Looks at the cluster from a thread until it is stopped."""

    def __init__(self, look: Callable[[], ClusterView | None], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.sightings: list[Sighting] = []
        self.sentences: dict[str, tuple[float, str]] = {}
        """What the cluster's status said was wrong: code, when first, and the sentence."""

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; waits for the look that is under way; harmless before `start`."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            at = self._clock.now()
            with suppress(OSError):
                view = self._look()
                if view is not None:
                    self._take(at, view)

    def _take(self, at: float, view: ClusterView) -> None:
        for problem in judge(view).problems:
            self.sentences.setdefault(problem.code, (at, problem.text))
        if len(self.sightings) > SIGHTINGS_MAX:
            return
        for node in view.nodes:
            role = (node.role or "?") if node.reachable else "unreachable"
            if node.reachable and node.quarantined is not None:
                role = "quarantined"
            self.sightings.append(
                Sighting(at, node.name, role, node.epoch, node.end, node.flushed, node.confirm)
            )

    def epochs(self) -> list[int]:
        """Epochs in which a master was seen, in order."""
        seen = [one for one in self.sightings if one.role == "master" and one.epoch is not None]
        return sorted({one.epoch for one in seen if one.epoch is not None})
