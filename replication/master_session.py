"""What the master does with one slave, over one link: greet, stream, count what is under way.

    GREETING -> OFFERED -> STREAMING        HELLO accepted, READY at the point

The session decides from values; it holds no log and no socket. `next_ship` says from where the
next frame goes; whoever sends it calls `shipped`. Batches are never copied or queued here: what the
slave lacks is read from the log when the window has room.

Invariants:

* acked <= sent <= the master's end; the bytes between are those of the window;
* nothing is streamed before READY, and nothing from a batch that our own log holds damaged;
* an acknowledgement beyond what was sent, or lower than before, closes the link.

Units: bytes, seconds. Not here: what acknowledgements mean for the confirm offset (``in_sync``).
Sources: replication.md G.5-G.7, protocol.md 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replication import consistency, frames
from replication.group_state import GroupState
from replication.pacing import Window
from replication.roles import MASTER_SESSION, Machine, Sending, SendingInput
from replication.settings import FEATURES, NACKS_MAX, VERSION, ReplicationSettings
from storage import Epoch


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a HELLO is refused. ``reread``: the group state may be older than the slave's."""

    code: str
    text: str
    reread: bool = False


@dataclass(frozen=True, slots=True)
class Master:
    """What a master knows of itself when a slave says HELLO."""

    name: str
    epoch: int
    family: int
    segment_size: int
    start: int
    end: int
    epochs: Sequence[Epoch]
    state: GroupState


def check_hello(hello: frames.Hello, master: Master) -> Refusal | None:
    """Return why the slave is refused, in the order of the protocol; None when it is welcome."""
    if not hello.least_version <= VERSION <= hello.version:
        spoken = f"{hello.least_version} to {hello.version}"
        return Refusal("BAD_VERSION", f"the slave speaks versions {spoken}, this master {VERSION}")
    if is_newer_epoch(hello, master):
        return Refusal("NEWER_EPOCH", f"the slave is in epoch {hello.epoch}", reread=True)
    if is_older_epoch(hello, master):
        return Refusal("FENCED", f"the slave is in epoch {hello.epoch}, this is {master.epoch}")
    if hello.register_id != master.state.register_id:
        text = f"the slave belongs to register {hello.register_id}"
        return Refusal("OTHER_REGISTER", text)
    if not is_registered(hello, master.state):
        text = f"session {hello.session} of {hello.node} is not the registered one"
        return Refusal("UNKNOWN_REPLICA", text, reread=True)
    if (hello.family, hello.segment_size) != (master.family, master.segment_size):
        text = (
            f"the slave has segments of {hello.segment_size} bytes and IPv{hello.family} hosts, "
            f"the group {master.segment_size} and IPv{master.family}"
        )
        return Refusal("OTHER_LAYOUT", text)
    return None


def is_newer_epoch(hello: frames.Hello, master: Master) -> bool:
    """Whether the slave has seen a later master than this one."""
    return hello.epoch > master.epoch


def is_older_epoch(hello: frames.Hello, master: Master) -> bool:
    """Whether the slave has not yet seen this master's epoch."""
    return hello.epoch < master.epoch


def is_registered(hello: frames.Hello, state: GroupState) -> bool:
    """Whether (session, store) are those of the last registration of a replica, not the master."""
    known = state.reg.get(hello.node)
    if known is None or hello.node not in state.replicas or hello.node == state.leader:
        return False
    return (known.session, known.store) == (hello.session, hello.store)


def find_point(hello: frames.Hello, master: Master) -> int | Refusal:
    """Return where the slave goes on, or why it cannot."""
    try:
        point = consistency.point_for(
            hello.epochs, (hello.start, hello.end), master.epochs, (master.start, master.end)
        )
    except consistency.HistoriesDiffer as difference:
        return Refusal("DIVERGED", str(difference))
    if point is None:
        text = (
            f"the slave's log {hello.start}..{hello.end} shares no byte with the kept log "
            f"{master.start}..{master.end}; catching up by files comes later"
        )
        return Refusal("RESEED", text)
    return point


class MasterSession:
    """One link to one slave. See the module.

    Attributes:
        conn: Number of the link.
        node: Name of the slave, empty before HELLO.
        session: The slave's session.
        point: Where it goes on after the handshake.
        next: Offset of the next batch to send.
        acked: Largest end acknowledged here.
        told: The confirm offset it was told last.
        shown: The revision it was told last.
    """

    __slots__ = (
        "_settings", "acked", "conn", "heard_at", "linked_at", "machine", "nacks", "next", "node",
        "point", "said_at", "session", "shown", "told", "window",
    )  # fmt: skip

    def __init__(self, conn: int, settings: ReplicationSettings, now: float) -> None:
        self.conn = conn
        self._settings = settings
        self.machine: Machine[Sending, SendingInput] = Machine(MASTER_SESSION)
        self.node = ""
        self.session = 0
        self.point = 0
        self.next = 0
        self.acked = 0
        self.told = -1
        self.shown = 0
        self.nacks: dict[int, int] = {}
        self.heard_at = now
        self.said_at = now
        self.linked_at = now
        self.window = Window(settings.in_flight_bytes_max, settings.in_flight_frames_max)

    @property
    def state(self) -> Sending:
        """Where the session stands."""
        return self.machine.state

    @property
    def streaming(self) -> bool:
        """Whether batches go out."""
        return self.machine.state is Sending.STREAMING

    @property
    def may_greet(self) -> bool:
        """Whether a HELLO has its place: not once batches go out."""
        return self.machine.can(SendingInput.HELLO)

    def greet(self, hello: frames.Hello, point: int) -> None:
        """Take an accepted HELLO; a second one starts over (after a cut)."""
        self.machine.move(SendingInput.HELLO)
        self.node = hello.node
        self.session = hello.session
        self.point = point
        self.window.clear()

    def offer(self, master: Master, chain: tuple[int, int], confirm: int) -> frames.HelloOk:
        """Return the answer to the HELLO; ``chain`` is where the CRC chain begins, and its CRC."""
        return frames.HelloOk(
            epoch=master.epoch,
            session=self.session,
            leader=master.name,
            point=self.point,
            chain_start=chain[0],
            chain=chain[1],
            start=master.start,
            end=master.end,
            confirm=confirm,
            epochs=tuple(master.epochs),
            version=VERSION,
            features=FEATURES,
        )

    def on_ready(self, ready: frames.Ready, now: float) -> str | None:
        """Begin to stream; return why not when READY does not fit."""
        if not self.machine.can(SendingInput.READY):
            return f"READY in state {self.state.value}"
        if ready.end != self.point:
            return f"READY at {ready.end}, the point is {self.point}"
        self.machine.move(SendingInput.READY)
        self.next = self.acked = self.point
        self.linked_at = now
        return None

    def next_ship(self, end: int) -> int | None:
        """Return from where the next frame goes, None when nothing is to be sent now."""
        if self.machine.state is Sending.STREAMING and self.next < end and self.window.open:
            return self.next
        return None

    def shipped(self, end: int, confirm: int, revision: int, now: float) -> None:
        """A frame with the batches up to ``end`` went out, or a notice when nothing is new."""
        if end > self.next:
            self.window.sent(end, end - self.next)
            self.next = end
        self.told = confirm
        self.shown = revision
        self.said_at = now

    def on_ack(self, ack: frames.Ack, epoch: int) -> str | None:
        """Take an acknowledgement; return why not when it breaks a rule."""
        if not self.streaming and self.state is not Sending.DAMAGED:
            return f"ACK in state {self.state.value}"
        if not self.is_of_epoch(ack, epoch):
            return f"ACK of epoch {ack.epoch}, this is {epoch}"
        if ack.session != self.session:
            return f"ACK of session {ack.session}, this is {self.session}"
        if not self.acked <= ack.end <= self.next:
            return f"ACK of {ack.end} beyond {self.acked}..{self.next}"
        if ack.end > self.acked:
            self.acked = ack.end
            self.window.acked(ack.end)
            self.nacks.clear()
        return None

    def is_of_epoch(self, ack: frames.Ack, epoch: int) -> bool:
        """Whether the acknowledgement was given in our epoch."""
        return ack.epoch == epoch

    def on_nack(self, nack: frames.Nack) -> str | None:
        """Count a batch that arrived damaged; return why the link must close."""
        if not self.acked <= nack.start < self.next:
            return f"NACK of {nack.start} outside {self.acked}..{self.next}"
        count = self.nacks.get(nack.start, 0) + 1
        self.nacks[nack.start] = count
        if count > NACKS_MAX:
            return f"the batch at {nack.start} arrived damaged {count} times"
        return None

    def rewind(self, start: int) -> None:
        """Send again from ``start``."""
        self.next = start
        self.window.clear()

    def own_copy_bad(self) -> None:
        """Our own copy of what it needs is damaged: nothing more is sent."""
        self.machine.move(SendingInput.OWN_COPY_BAD)

    def end(self) -> None:
        """The link is gone."""
        if self.machine.can(SendingInput.END):
            self.machine.move(SendingInput.END)

    def is_silent(self, now: float) -> bool:
        """Whether nothing was heard for too long."""
        return now >= self.heard_at + self._settings.silence_seconds

    def owes_word(self, now: float) -> bool:
        """Whether a heartbeat is due."""
        return now >= self.said_at + self._settings.heartbeat_seconds
