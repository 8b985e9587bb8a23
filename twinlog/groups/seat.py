"""A member of a broadcast group: its name, its positions, and what it says of them to the master.

Each named member of such a group has all messages and positions of its own, kept by the master
under its name. Reading goes on from any node while there is no master; only positions wait for one.
A member speaks from the connection on which it joined, so it joins again over each new one. Where
its positions are not what it left them at, a reset has moved them, and it reads on from there.

Pure: calls as in ``twinlog.session.session``, over a connection of the member's own. Times are
seconds of one monotonic clock. Not here: reading (``twinlog.consumer.core``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, cast

from twinlog.consumer.core import Cursor
from twinlog.errors import NotMember, TwinlogError, Unavailable, UsageError
from twinlog.groups.settings import GroupSettings
from twinlog.session.link import error_of
from twinlog.session.routing import Address
from twinlog.session.session import LinkDown, Open, Pause, Send, Session, Steps, Take
from twinlog.wire.frames import Frame, FrameError, Type
from twinlog.wire.groups import DONE
from twinlog.wire.schema import check

BROADCAST: Final = "broadcast"
"""The mode of groups whose named members get all messages each."""

SESSION_MS: Final = 30_000
"""A member that says nothing for this long is no longer one; it joins again by itself."""

BEAT_SECONDS: Final = 8.0
"""After so much silence it says something."""

COMMIT_SECONDS: Final = 1.0
"""How long a position may wait while messages are handled, and how long the master may take for
it before the messages go on."""

ANSWER_SECONDS: Final = 3.0
"""How long one node may take for an answer."""


@dataclass(slots=True)
class _Place:
    """A queue: its share, the position that the master has, and that of the reader."""

    share: int
    told: int
    noted: int


class Seat:
    """See the module.

    Args:
        session: Of the client.
        settings: Which group and topic, and the member's name.

    Raises:
        UsageError: More than one topic, or no name.
    """

    def __init__(self, session: Session, settings: GroupSettings) -> None:
        if len(settings.topics) != 1:
            text = f"a broadcast member reads one topic, not {len(settings.topics)}"
            raise UsageError(text, code="fields", hint="one member for each, with a name each")
        if not settings.member:
            text = "a broadcast member has a name: its positions are kept under it"
            raise UsageError(text, code="fields", hint='member="NAME", another one in each process')
        self._session = session
        self._settings = settings
        self._member = 0
        self._joined = False
        self._at: Address | None = None
        self._places: dict[int, _Place] = {}
        self._heard = -math.inf
        self._not_before = -math.inf
        self._silent_since: float | None = None

    # ── positions ───────────────────────────────────────────────────────────────────────────────

    def cursors(self) -> list[Cursor]:
        """Return where to read on."""
        return [Cursor(queue, place.noted, None) for queue, place in self._places.items()]

    def note(self, queue: int, position: int) -> None:
        """Take note that everything of a queue below ``position`` is handled."""
        place = self._places[queue]
        place.noted = max(place.noted, position)

    @property
    def pending(self) -> bool:
        """Whether the master does not have every position."""
        return any(place.noted != place.told for place in self._places.values())

    def due(self, now: float, *, idle: bool) -> bool:
        """Whether it is time to speak; ``idle``: all that was read is handled."""
        if now < self._not_before:
            return False
        if self.pending and (idle or now - self._heard >= COMMIT_SECONDS):
            return True
        return now - self._heard >= BEAT_SECONDS

    # ── calls ───────────────────────────────────────────────────────────────────────────────────

    def speak(self) -> Steps[bool]:
        """Bring the positions to the master; True: they were moved, read on at `cursors`.

        Without a master they wait; only when that lasts for the settings' ``timeout`` it is an
        error.

        Raises:
            NotMember: Another process is a member under this name.
            TwinlogError: The member cannot go on.
        """
        session = self._session
        try:
            moved = yield from self.commit(session.now + COMMIT_SECONDS)
        except Unavailable:
            now = session.now
            if self._silent_since is None:
                self._silent_since = now
            if now - self._silent_since >= self._settings.timeout:
                raise
            self._not_before = now + COMMIT_SECONDS
            return False
        self._silent_since = None
        return moved

    def commit(self, deadline: float) -> Steps[bool]:
        """Wait until the master has every position; True: they were moved, as `speak`.

        Raises:
            Unavailable: No master took them before ``deadline``; they may or may not be stored.
            NotMember: Another process is a member under this name.
            TwinlogError: The member cannot go on.
        """
        while True:
            if not self._joined and (yield from self.join(deadline)):
                return True
            waiting = {q: one for q, one in self._places.items() if one.noted != one.told}
            said = [[one.share, one.noted] for one in waiting.values()]
            fields: dict[str, object] = {"generation": 0, "rows": said}
            kind = Type.COMMIT
            if not said:
                kind, fields = Type.BEAT, _beat()
            try:
                answer = yield from self._ask(kind, self._own(fields), deadline)
            except NotMember:
                self._joined = False
                yield from self._check_name(deadline)
                continue
            self._heard = self._session.now
            if not said:
                return False
            codes = cast("list[list[object]]", answer.fields["rows"])
            if all(row[0] == DONE for row in codes):
                for one in waiting.values():
                    one.told = one.noted
                return False
            self._joined = False  # the queue was made anew, or moved: joining says where it is

    def join(self, deadline: float) -> Steps[bool]:
        """Become a member, or come back; True: read on at `cursors`.

        Raises:
            GroupDiffers: The group has another mode or filter.
            TwinlogError: As `commit`.
        """
        settings = self._settings
        fields: dict[str, object] = {
            "name": settings.member, "topics": list(settings.topics), "mode": BROADCAST,
            "session_ms": SESSION_MS,
            "filters": dict.fromkeys(settings.topics, settings.wanted or ""),
        }  # fmt: skip
        answer = yield from self._ask(Type.JOIN, self._own(fields), deadline)
        member = cast("int", answer.fields["member"])
        same, self._member, self._joined = member == self._member, member, True
        self._heard = self._session.now
        moved = False
        rows = cast("list[list[object]]", answer.fields["rows"])
        for _, queue, share, following in cast("list[tuple[str, int, int, int]]", rows):
            place = self._places.get(queue)
            if place is not None and place.share == share:
                # A reset ends the session. Under the same number there was none, so what was
                # handled and not stored yet is not read again; under another one it is.
                first = place.told if same else place.noted
                if first <= following <= place.noted:
                    place.told = following
                    continue
            self._places[queue] = _Place(share, following, following)
            moved = True
        return moved

    def leave(self, deadline: float) -> Steps[None]:
        """Say what is left to say and leave the group."""
        if self.pending:
            yield from self.commit(deadline)
        if self._joined:
            yield from self._ask(Type.BEAT, self._own({**_beat(), "leave": True}), deadline)
            self._joined = False

    def _own(self, fields: dict[str, object]) -> dict[str, object]:
        return {"group": self._settings.group, "member": self._member, **fields}

    def _check_name(self, deadline: float) -> Steps[None]:
        """Refuse to take the name of a member that is heard: two would take it from each other."""
        fields: dict[str, object] = {"op": "show", "name": self._settings.group}
        answer = yield from self._ask(Type.GROUP, fields, deadline)
        document = cast("dict[str, object]", answer.fields.get("group") or {})
        for one in cast("list[dict[str, object]]", document.get("people") or []):
            other = one.get("member") != self._member and one.get("heard_ms") is not None
            if other and one.get("name") == self._settings.member:
                name, where = self._settings.member, one.get("address")
                text = f"another process is member {name} of group {self._settings.group}: {where}"
                raise NotMember(text, hint="a broadcast member has a name of its own")

    def _ask(self, kind: Type, fields: dict[str, object], deadline: float) -> Steps[Frame]:
        """Ask the master over the own connection until there is a good answer.

        All of these requests may be repeated.

        Raises:
            Unavailable: There was none before ``deadline``.
            TwinlogError: What it was refused with.
        """
        session, attempt = self._session, 0
        refusal: TwinlogError | None = None
        while True:
            try:
                if self._at is None or refusal is not None or attempt:
                    self._at = yield from session.successor(self._at, refusal, deadline)
                found = yield from self._once(self._at, Frame(kind, fields=fields), deadline)
                if not found.is_error:
                    check(found)
                    session.table.trust(self._at)
                    return found
                refusal = error_of(found)
                if not refusal.retryable:
                    raise refusal
            except LinkDown as down:
                refusal = None
                if self._at is not None:
                    session.table.suspect(self._at)
                last: TwinlogError = Unavailable(f"{self._at} {down.why}")
            except FrameError as error:
                refusal, last = None, Unavailable(f"{self._at} broke the protocol: {error.text}")
            else:
                last = refusal
            seconds = session.pause(attempt)
            attempt += 1
            if session.now + seconds >= deadline:
                text = f"the master did not take it in time: {last.text}"
                raise Unavailable(text) from last
            yield Pause(seconds)

    def _once(self, address: Address, frame: Frame, deadline: float) -> Steps[Frame]:
        session = self._session
        until = min(deadline, session.now + ANSWER_SECONDS)
        yield Open(address, max(until - session.now, 0.01))
        number = yield Send(frame, max(until - session.now, 0.01))
        while True:
            answer = yield Take(max(until - session.now, 0.0))
            if answer is None:
                raise LinkDown("did not answer in time", sent=True)
            assert isinstance(answer, Frame), "what a Take is answered by"
            if answer.request == number:
                return answer


def _beat() -> dict[str, object]:
    finished: list[int] = []
    return {"generation": 0, "finished": finished, "wait_ms": 0}
