"""The master's side of one link to one slave: handshake, streaming, window.

    GREETING -> OFFERED -> STREAMING        HELLO accepted, READY at the point

The session decides from values; it has no log and no socket. `next_ship` returns where the next
frame begins; `shipped` is called when it was sent. Batches are never copied or queued here: they
are read from the log when the window has room.

Invariants:

* acked <= sent <= the master's end; the bytes between acked and sent are in the window;
* nothing is streamed before READY, and nothing from a batch on that is damaged in our own log;
* an acknowledgement beyond what was sent, or lower than before, closes the link.

Units: bytes, seconds. Not here: what acknowledgements mean for the confirm offset (``in_sync``).
Rules: docs/protocol.md R38, R42 to R44.
"""

from __future__ import annotations

from collections.abc import Sequence

from replication.answer_times import AnswerTimes
from replication.core import messages
from replication.core.peer_checks import Master, newest_shared, part_around
from replication.core.roles import MASTER_SESSION, Machine, SendingInput, SendingState
from replication.pacing import Pace, Window
from replication.settings import FEATURES, NACKS_MAX, VERSION, ReplicationSettings
from twinlog.format.epoch_history import Epoch


class MasterSession:
    """One link to one slave; see the module's text.

    Attributes:
        conn: Number of the link.
        node: Name of the slave, empty before HELLO.
        session: The slave's session.
        point: Log offset where it continues after the handshake.
        epochs: The epochs in its HELLO: those around its newest one.
        answers: How long it takes to acknowledge what it is sent.
        pong: The largest nonce that it answered. ``asked``: the newest nonce at the handshake.
        next: Offset of the next batch to send.
        acked: Largest end acknowledged here.
        told: The confirm offset sent to it last.
        shown: The revision sent to it last.
        pace: Holds back a slave that catches up, if its rate is limited.
        shipping: A frame was ordered and not sent yet; the next one begins where it ends.
    """

    __slots__ = (
        "_settings",
        "acked",
        "answers",
        "asked",
        "conn",
        "epochs",
        "heard_at",
        "linked_at",
        "machine",
        "nacks",
        "next",
        "node",
        "pace",
        "point",
        "pong",
        "said_at",
        "session",
        "shipping",
        "shown",
        "told",
        "window",
    )  # fmt: skip

    def __init__(self, conn: int, settings: ReplicationSettings, now: float) -> None:
        self.conn = conn
        self._settings = settings
        self.machine: Machine[SendingState, SendingInput] = Machine(MASTER_SESSION)
        self.node = ""
        self.session = 0
        self.point = 0
        self.epochs: Sequence[Epoch] = ()
        self.asked = self.pong = 0
        self.answers = AnswerTimes(settings.slow_seconds, now)
        self.next = 0
        self.acked = 0
        self.told = -1
        self.shown = 0
        self.shipping = False
        self.nacks: dict[int, int] = {}
        self.heard_at = now
        self.said_at = now
        self.linked_at = now
        self.pace = Pace(settings.catch_up_bytes_per_second)
        self.window = Window(settings.in_flight_bytes_max, settings.in_flight_frames_max)

    @property
    def state(self) -> SendingState:
        """The state of the session."""
        return self.machine.state

    @property
    def streaming(self) -> bool:
        """Whether batches are sent."""
        return self.machine.state is SendingState.STREAMING

    @property
    def kept(self) -> int:
        """Log offset from which the slave may still need bytes."""
        return self.acked if self.streaming else self.point

    @property
    def may_greet(self) -> bool:
        """Whether a HELLO is allowed: only before batches are sent."""
        return self.machine.can(SendingInput.HELLO)

    def greet(self, hello: messages.Hello, point: int) -> None:
        """Apply an accepted HELLO; a second one (after a cut) starts over."""
        self.machine.move(SendingInput.HELLO)
        self.node = hello.node
        self.session = hello.session
        self.epochs = hello.epochs
        self.point = point
        self.window.clear()

    def offer(self, master: Master, chain: tuple[int, int], confirm: int) -> messages.HelloOk:
        """Return the answer to the HELLO; ``chain`` is (start, CRC) of the chain."""
        return messages.HelloOk(
            epoch=master.epoch,
            session=self.session,
            leader=master.name,
            point=self.point,
            chain_start=chain[0],
            chain=chain[1],
            start=master.start,
            end=master.end,
            confirm=confirm,
            epochs=part_around(master.epochs, newest_shared(master.epochs, self.epochs)),
            version=VERSION,
            features=FEATURES,
        )

    def on_ready(self, ready: messages.Ready, now: float) -> str | None:
        """Begin to stream; return why not if READY does not fit."""
        if not self.machine.can(SendingInput.READY):
            return f"READY in state {self.state.value}"
        if ready.end != self.point:
            return f"READY at {ready.end}, the point is {self.point}"
        self.machine.move(SendingInput.READY)
        self.answers.clear(now)
        self.next = self.acked = self.point
        self.linked_at = now
        return None

    @property
    def may_ship(self) -> bool:
        """Whether a frame may be ordered: streaming, and no other frame is being made."""
        return self.machine.state is SendingState.STREAMING and not self.shipping

    def next_ship(self, end: int) -> int | None:
        """Return where the next frame begins, None if nothing is to be sent now."""
        if not self.may_ship or self.next >= end or self.pace.resume_at:
            return None
        return self.next if self.window.open else None

    def shipped(self, end: int, confirm: int, revision: int, now: float) -> None:
        """A frame with the batches up to ``end`` was sent, or a notice without batches."""
        self.shipping = False
        if end > self.next:
            self.answers.sent(end, self.window.bytes, now)
            self.window.sent(end, end - self.next)
            self.next = end
        self.told = confirm
        self.shown = revision
        self.said_at = now

    def is_stale(self, confirm: int, revision: int) -> bool:
        """Whether the slave has a lower confirm offset or an older revision from us."""
        return self.told < confirm or self.shown < revision

    def ping(self, nonce: int, epoch: int, now: float) -> messages.Ping:
        """Return a PING to be sent now."""
        self.said_at = now
        self.answers.asked(nonce, now)
        return messages.Ping(epoch, self.session, nonce)

    def on_pong(self, nonce: int, now: float) -> None:
        """A PING was answered."""
        self.pong = max(self.pong, nonce)
        self.answers.answered(nonce, now)

    def speed(self, now: float) -> tuple[str, str, dict[str, object]]:
        """Return the event that says whether this slave is slow: name, level, facts."""
        slow, seconds = self.answers.is_slow, self.answers.seconds(now) or 0.0
        name, level = ("slave-slow", "warning") if slow else ("slave-fast-again", "info")
        milliseconds = round(seconds * 1000, 1)
        facts: dict[str, object] = {
            "node": self.node,
            "round_trip_ms": milliseconds,
            "waiting": self.window.bytes,
        }
        return name, level, facts

    def hold_back(self, length: int, end: int, now: float) -> None:
        """Pause after a frame of ``length`` bytes to a slave that no write waits for.

        Not near the end of the log: there it has to become level, to be a member again.
        """
        if end - self.next > self._settings.in_flight_bytes_max:
            self.pace.spent(length, now)

    def on_ack(self, ack: messages.Ack, epoch: int) -> str | None:
        """Apply an acknowledgement; return why not if it breaks a rule."""
        # DAMAGED: acknowledgements of batches sent before the damage still count.
        if not self.streaming and self.state is not SendingState.DAMAGED:
            return f"ACK in state {self.state.value}"
        if not self.is_of_epoch(ack, epoch):
            return f"ACK of epoch {ack.epoch}, this is {epoch}"
        if ack.session != self.session:
            return f"ACK of session {ack.session}, this is {self.session}"
        # A slave cannot have bytes that were not sent, nor lose some: either would make confirm
        # wrong.
        if not self.acked <= ack.end <= self.next:
            return f"ACK of {ack.end} beyond {self.acked}..{self.next}"
        if ack.end > self.acked:
            self.acked = ack.end
            self.window.acked(ack.end)
            # Progress: the count is of repetitions of one batch, not of a link's lifetime.
            self.nacks.clear()
        return None

    def is_of_epoch(self, ack: messages.Ack, epoch: int) -> bool:
        """Whether the acknowledgement was given in our epoch."""
        return ack.epoch == epoch

    def on_nack(self, nack: messages.Nack) -> str | None:
        """Count a batch that arrived damaged; return why the link must close."""
        if not self.acked <= nack.start < self.next:
            return f"NACK of {nack.start} outside {self.acked}..{self.next}"
        count = self.nacks.get(nack.start, 0) + 1
        self.nacks[nack.start] = count
        if count > NACKS_MAX:
            return f"the batch at {nack.start} arrived damaged {count} times"
        return None

    def rewind(self, start: int, now: float) -> None:
        """Send again from ``start``."""
        # What was sent behind the damaged batch is ignored there (R43), so it is sent, and counted,
        # again.
        self.next = start
        self.answers.clear(now)
        self.window.clear()

    def own_copy_bad(self) -> None:
        """Our own copy of the next batch is damaged: send nothing more."""
        self.machine.move(SendingInput.OWN_COPY_BAD)

    def end(self) -> None:
        """The link has ended."""
        if self.machine.can(SendingInput.END):
            self.machine.move(SendingInput.END)

    def is_silent(self, now: float) -> bool:
        """Whether nothing was heard for too long."""
        return now >= self.heard_at + self._settings.silence_seconds

    def owes_word(self, now: float) -> bool:
        """Whether a heartbeat is due."""
        return now >= self.said_at + self._settings.heartbeat_seconds
