"""One line per event, fixed columns, and a hash over all of them.

The hash is what the determinism check compares: two runs of one seed must write the same lines,
whatever PYTHONHASHSEED says. Lines are kept only when somebody wants to read them; the newest
ones are always kept, as the story that led to a failure.
"""

from __future__ import annotations

import zlib
from collections import deque

_STORY_LINES = 60  # what a person reads of a failure before asking for the whole trace


class Trace:
    """Collects the lines of one run.

    Attributes:
        story: The newest lines.
    """

    __slots__ = ("_crc", "_printing", "lines", "story")

    def __init__(self, *, printing: bool = False) -> None:
        self._printing = printing
        self._crc = 0
        self.lines = 0
        self.story: deque[str] = deque(maxlen=_STORY_LINES)

    def line(self, now: float, who: str, what: str, text: str = "") -> None:
        """Add one line: seconds, who, what, and the rest."""
        line = f"{now:11.6f} {who:<6} {what:<12} {text}"
        self._crc = zlib.crc32(line.encode(), self._crc)
        self.lines += 1
        self.story.append(line)
        if self._printing:
            print(line)

    @property
    def wanted(self) -> bool:
        """True when somebody reads the lines."""
        return self._printing

    @property
    def digest(self) -> str:
        """Hash over every line so far, 8 hex digits and the count."""
        return f"{self._crc:08x}/{self.lines}"
