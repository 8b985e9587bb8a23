r"""Messages that wait for a time: properties of their records, and the bytes of RocketMQ's files.

A record that waits lies in queue 0 of ``rmq_sys_wheel_timer``. Its properties say where it goes
(`REAL_TOPIC`, `REAL_QID`) and when:

* `DELIVER_MS`, the time itself, ms since 1970;
* `OUT_MS`, the second at whose end RocketMQ delivers it: `DELIVER_MS` rounded down to a second,
  less one where it is a whole one;
* `DELAY_MS`, where the sender named a delay: then it is due that much later than its record was
  stored, by the master's clock, and the other two are the sender's own reckoning.

RocketMQ keeps an index beside the log: the timer *log*, units of 52 bytes that each name the unit
before it of the same second; the *wheel*, a slot of 32 bytes for each second of two weeks that
names the newest unit; ``config/timercheck``, how far both were read. The reserved last field of a
unit is 0 in RocketMQ's; here it has the time itself.

Units: times ms since 1970, positions bytes of the timer log, offsets and sizes bytes of the log; a
slot says whole seconds.

Not here: reading the files (`twinlog.store.timers`), writing them (`storage.recovery`).

Sources: RocketMQ 5.3 (``TimerMessageStore``, ``TimerLog``, ``TimerWheel``, ``TimerCheckpoint``,
``HookUtils``).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from twinlog.format.waiting.delay_levels import REAL_QUEUE, REAL_TOPIC

DELIVER_MS, OUT_MS, DELAY_MS = "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_DELAY_MS"
ENQUEUED_MS, DEQUEUED_MS = "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"
"""What a delivered message has besides: when its record was stored, and when it was delivered."""
CANCELS = "TIMER_DEL_UNIQKEY"
"""A record of RocketMQ with it takes another one back."""
ORIGIN = "TL_ORIGIN"
"""Where a message was that waits here instead, since the file of that record was to leave the log:
the log offset of the first record of it, which goes on to be what it is called by."""
ROLLS = "TIMER_ROLL_TIMES"
"""How often a waiting message was entered again."""
PRECISION_MS = 1000

SLOTS = 1_209_600
"""Seconds of the wheel: two weeks."""
UNIT = Struct(">iqiqiqiiq")
"""Size, position of the unit before, magic, write time, ms from it to the slot, log offset, size of
the record, hash of the real topic, reserved."""
assert UNIT.size == 52
SLOT = Struct(">qqqii")
"""Second, first unit, newest unit, how many, magic 0."""
assert SLOT.size == 32
CHECK = Struct(">qqqqqqq")
"""Read up to (ms), flushed up to (position), queue offset, the master's, three of a version."""
assert CHECK.size == 56
CHECK_SIZE = 4096
LOG_FILE_SIZE = 104_857_600
BLANK = Struct(">iqi")
"""At the end of a file of the timer log: bytes left, 0, `BLANK_MAGIC`."""
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
ROLL, DELETE = 2, 4
"""Bits of a unit's magic besides 1: entered again later; takes another one back."""
DELAY_MAX_MS = 365 * 86_400_000
"""What a client may ask for."""
WAITING_MAX = 1_000_000
"""Messages that may wait for a time in one store: some 180 bytes of memory each at the worst."""
ROLL_WINDOW_MS = 172_800_000
"""What waits longer than two days is entered again by RocketMQ meanwhile."""


def out_ms(due: int) -> int:
    """Return the second at whose end RocketMQ delivers what is due then.

    >>> out_ms(5_000), out_ms(5_001), out_ms(5_999)
    (4000, 5000, 5000)
    """
    return (due - 1) // PRECISION_MS * PRECISION_MS


def due_of(properties: Mapping[str, str], stored_ms: int) -> int | None:
    """Return when a record that was stored at ``stored_ms`` is due; None: it says no time.

    >>> due_of({"TIMER_DELIVER_MS": "5200", "TIMER_OUT_MS": "5000"}, 3000)
    5200
    >>> due_of({"TIMER_DELIVER_MS": "5200", "TIMER_OUT_MS": "5000", "TIMER_DELAY_MS": "9"}, 3000)
    3009
    >>> due_of({"TIMER_OUT_MS": "5000"}, 3000), due_of({"TIMER_OUT_MS": "-1"}, 3000)
    (6000, None)
    """
    delay, deliver, out = (_number(properties.get(name)) for name in (DELAY_MS, DELIVER_MS, OUT_MS))
    if out is None:
        return None
    if delay is not None:
        return stored_ms + delay
    return deliver if deliver is not None and out_ms(deliver) == out else out + PRECISION_MS


def origin_of(properties: Mapping[str, str]) -> int:
    """Return the `ORIGIN` that a record names; -1: none."""
    found = _number(properties.get(ORIGIN))
    return found if found is not None else -1


def keys_of(properties: Mapping[str, str], stored_ms: int, offset: int) -> list[tuple[int, int]]:
    """Return the keys, (due time, log offset), that the message of a record may wait with.

    The sender's delay counts from the store time, but not in a record that RocketMQ entered again;
    which of both it is, only who knows what waits can say.

    >>> keys_of({"TIMER_DELIVER_MS": "5200", "TIMER_OUT_MS": "5000"}, 3000, 64)
    [(5200, 64)]
    >>> named = {"TIMER_DELIVER_MS": "5200", "TIMER_OUT_MS": "5000", "TIMER_DELAY_MS": "9"}
    >>> keys_of(named | {"TL_ORIGIN": "8"}, 3000, 64)
    [(3009, 8), (5200, 8)]
    """
    origin = origin_of(properties)
    adopted = {name: text for name, text in properties.items() if name != DELAY_MS}
    dues = [due_of(named, stored_ms) for named in (properties, adopted)]
    place = offset if origin < 0 else origin
    return [(due, place) for due in dict.fromkeys(dues) if due is not None]


def due_text(now_ms: int, *, delay_ms: int | None, at_ms: int | None) -> bytes:
    r"""Return the properties that say when a message is due, as they are stored.

    >>> due_text(1000, delay_ms=4200, at_ms=None)
    b'TIMER_DELIVER_MS\x015200\x02TIMER_OUT_MS\x015000\x02TIMER_DELAY_MS\x014200\x02'
    """
    due = now_ms + delay_ms if delay_ms is not None else at_ms or 0
    text = f"{DELIVER_MS}\x01{due}\x02{OUT_MS}\x01{out_ms(due)}\x02"
    if delay_ms is not None:
        text += f"{DELAY_MS}\x01{delay_ms}\x02"
    return text.encode()


def real_text(topic: str, queue: int) -> bytes:
    r"""Return the properties that say where a message that waits goes, as they are stored.

    >>> real_text("orders", 3)
    b'REAL_TOPIC\x01orders\x02REAL_QID\x013\x02'
    """
    return f"{REAL_TOPIC}\x01{topic}\x02{REAL_QUEUE}\x01{queue}\x02".encode()


def _number(value: str | None) -> int | None:
    if value is None or len(value) > 18 or not (value.isascii() and value.isdecimal()):
        return None
    return int(value)
