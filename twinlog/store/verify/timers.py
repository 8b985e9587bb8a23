"""Do RocketMQ's timer files hold together, and do they say what the log says?

* timer log: every unit is one, names the unit before it of its second, and points to a record of
  the timer topic that waits for that second;
* timer wheel: every slot in use is at its second's place and names that second's newest unit, and
  every second that is still to come and has units has its slot;
* ``config/timercheck``: it ends where the timer log and the timer queue end.

After a clean stop all of this is exact. Otherwise what is at or after the position that was
flushed last is put right by RocketMQ's start, so it is a note. How many units a slot says it has,
its first unit, and bytes without a meaning are notes too: RocketMQ delivers by the newest unit and
the chain. A slot of a second that has passed is looked at where units of it are left.

Units: positions are bytes of the timer log, times milliseconds; a slot says seconds, or what
``timerPrecisionMs`` is, which the units tell.

Not judged: how far ``timercheck`` says timers were delivered and what it says of the master
(`UNJUDGED`); slots that say no time, of seconds that have passed.

Not here: reading the files (`twinlog.store.timers`); records that should have been entered and were
not: a timer that was late when it was read is delivered without a unit.

Sources: RocketMQ 5.3 (``TimerMessageStore``, ``TimerLog``, ``TimerWheel``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from twinlog.format.record import Record, java_hash
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import BLANK_MAGIC, DELETE, PRECISION_MS, ROLL, SLOTS, out_ms
from twinlog.store.damage import Grade
from twinlog.store.files import EMPTY, LogFile
from twinlog.store.reader import StoreReader
from twinlog.store.timers import (
    SLOT_SIZE,
    UNIT_SIZE,
    Timers,
    TimerSlot,
    TimerUnit,
)
from twinlog.store.verify.findings import FINDINGS_MAX, Finding

WHEEL, CHECK = "timerwheel", "config/timercheck"
UNJUDGED = "nothing else says up to when timers were delivered, and how far the master was"
_READABLE = "the records, through the log"
_MAGIC_AT = 12
_BLANK_SIZE = 16


def check_timers(store: StoreReader) -> Iterator[Finding]:
    """Yield what is wrong with the timer files of a RocketMQ store; nothing without any.

    Raises:
        OSError: A file may not be read.
    """
    timers = Timers(store.root)
    try:
        look = _Look(store, timers)
        if timers.log.files or timers.log.odd or timers.wheel is not None:
            look.all()
        yield from look.findings
    finally:
        timers.close()


class _Look:
    """One look at the timer files; `all` fills ``findings``.

    ``newest``, ``first`` and ``count`` speak of the units of each second, by its time.
    """

    def __init__(self, store: StoreReader, timers: Timers) -> None:
        self.findings: list[Finding] = []
        self._store, self._timers = store, timers
        self._flushed = timers.check.last_flush_position if timers.check else 0
        self._end = timers.log.start
        self._newest: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._count: Counter[int] = Counter()
        self._bad: set[int] = set()

    def all(self) -> None:
        """Look at everything."""
        self._files()
        self._walk()
        self._wheel()
        self._check()

    def _add(self, name: str, at: int, text: str, *, grade: Grade = Grade.DAMAGE) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(grade, name, at, None, 0, text, _READABLE))

    def _grade(self, position: int) -> Grade:
        """Damage where nothing puts it right: a clean stop, or below what was flushed."""
        return Grade.DAMAGE if self._store.clean or position < self._flushed else Grade.NOTE

    # -- the timer log

    def _files(self) -> None:
        log = self._timers.log
        for stray in log.strays:
            text = "a file that is not part of a timer log"
            self._add(f"timerlog/{stray.name}", 0, text, grade=Grade.NOTE)
        for _, path, state in log.odd:
            grade = Grade.NOTE if state == EMPTY else Grade.UNREADABLE
            self._add(f"timerlog/{path.name}", 0, f"it is {state}", grade=grade)
        if log.start and not self._store.start:
            text = f"the timer log begins at {log.start}, though nothing of the log was deleted"
            self._add(_name(log.files[0]), 0, text)

    def _walk(self) -> None:
        log = self._timers.log
        for file in log.files:
            if not log.view(file):
                why = log.unreadable.get(file.start, "it went")
                text = f"the file cannot be read: {why}"
                self._add(_name(file), 0, text, grade=Grade.UNREADABLE)
                continue
            written = log.last_written(file, file.start)
            if file is not log.files[0] and written > file.start and file.start != self._next():
                text = f"the timer log before it ends at {self._end}"
                self._add(_name(file), 0, text)
            self._file(file, written)

    def _next(self) -> int:
        """Return where the file after the end of the timer log so far begins."""
        file = self._timers.log.at(max(self._end - 1, 0))
        whole = file is not None and file.end - self._end < UNIT_SIZE + _BLANK_SIZE
        return file.end if file is not None and whole else self._end

    def _file(self, file: LogFile, written: int) -> None:
        """Look at the units of one file; a stretch of invalid ones is one finding."""
        view, at, bad = self._timers.log.view(file), file.start, 0
        while at < written:
            place = at - file.start
            magic = int.from_bytes(view[place + _MAGIC_AT : place + 16], "big", signed=True)
            left = int.from_bytes(view[place : place + 4], "big", signed=True)
            if magic == BLANK_MAGIC and left == file.end - at:
                break
            unit = self._timers.unit(at)
            if unit is None:
                self._bad.add(at)
                bad += 1
            else:
                self._tell(file, at, bad)
                bad = 0
                self._unit(file, unit)
            at += UNIT_SIZE
            self._end = min(at, file.end)
        self._tell(file, at, bad)

    def _tell(self, file: LogFile, end: int, bad: int) -> None:
        if bad:
            at = end - UNIT_SIZE * bad
            text = "no unit of a timer log" if bad == 1 else f"{bad} places without a unit"
            self._add(_name(file), at - file.start, text, grade=self._grade(at))

    def _unit(self, file: LogFile, unit: TimerUnit) -> None:
        at, second = unit.position - file.start, unit.time_ms
        text = self._chain(unit)
        if text:
            self._add(_name(file), at, text)
        if unit.reserved < 0 or unit.magic & ~(ROLL | DELETE) != 1:
            text = "bits of the unit without a meaning are not as RocketMQ writes them"
            self._add(_name(file), at, text, grade=Grade.NOTE)
        store, offset = self._store, unit.log_offset
        if offset >= store.end and not store.in_damage(offset):
            text = f"the unit points to {offset}, after the end of the log"
            grade = Grade.DAMAGE if store.clean else Grade.NOTE
            self._add(_name(file), at, text, grade=grade)
        elif (offset >= store.start or offset < 0) and not store.in_damage(offset):
            text = _said(unit, store.record_at(offset))
            if text:
                self._add(_name(file), at, text)
        self._newest[second] = unit.position
        self._first.setdefault(second, unit.position)
        self._count[second] += -1 if unit.magic & DELETE else 1

    def _chain(self, unit: TimerUnit) -> str:
        """Return what is wrong with the unit that a unit names before it."""
        known = self._newest.get(unit.time_ms, -1)
        fits = known == unit.before or (unit.before in self._bad and unit.before > known)
        left = unit.before == -1 or 0 <= unit.before < self._timers.log.start
        if fits or (known < 0 and left):
            return ""
        there = f"it is {known}" if known >= 0 else "there is no such unit"
        return f"the unit names {unit.before} as the one before it of its second; {there}"

    # -- the wheel

    def _wheel(self) -> None:
        wheel, check = self._timers.wheel, self._timers.check
        passed = check.last_read_time_ms if check else 0
        if wheel is None:
            waiting = [at for second, at in self._newest.items() if second > passed]
            if waiting:
                text = f"the file is missing, though units of {len(waiting)} seconds wait"
                self._add(WHEEL, 0, text, grade=self._grade(min(waiting)))
            return
        if wheel.size != SLOTS * SLOT_SIZE:
            text = f"it has {wheel.size} bytes, not {SLOTS * SLOT_SIZE}; RocketMQ would not start"
            self._add(WHEEL, 0, text)
        slots = {slot.index: slot for slot in self._timers.slots()}
        precision = self._precision(slots)
        for slot in slots.values():
            self._slot(slot, slot.time_ms // PRECISION_MS * precision)
        for second, position in self._newest.items():
            index = second // precision % SLOTS
            held = slots.get(index)
            said = held.time_ms // PRECISION_MS * precision if held is not None else 0
            if second > passed and said < second:
                text = f"no slot points to the units of {second}, which wait"
                self._add(WHEEL, SLOT_SIZE * index, text, grade=self._grade(position))

    def _precision(self, slots: dict[int, TimerSlot]) -> int:
        """Return ``timerPrecisionMs``: what most slots and their newest units agree upon."""
        found: Counter[int] = Counter()
        for slot in slots.values():
            unit, said = self._timers.unit(slot.last), slot.time_ms // PRECISION_MS
            if unit is not None and unit.time_ms > 0 and unit.time_ms % said == 0:
                found[unit.time_ms // said] += 1
        return found.most_common(1)[0][0] if found else PRECISION_MS

    def _slot(self, slot: TimerSlot, second: int) -> None:
        at, newest = SLOT_SIZE * slot.index, self._newest.get(second, -1)
        if slot.time_ms // PRECISION_MS % SLOTS != slot.index:
            self._add(WHEEL, at, f"the slot says {second}, which has another place")
            return
        if slot.last != newest and (newest >= 0 or slot.last >= self._timers.log.start):
            there = f"it is {newest}" if newest >= 0 else "there is no such unit"
            text = f"the slot of {second} names {slot.last} as its newest unit; {there}"
            unit = self._timers.unit(slot.last)
            lags = unit is not None and unit.time_ms == second and self._grade(newest) is Grade.NOTE
            ahead = slot.last >= self._end and not self._store.clean
            excused = lags or ahead or slot.last in self._bad
            self._add(WHEEL, at, text, grade=Grade.NOTE if excused else Grade.DAMAGE)
            return
        if newest < 0 or 0 <= slot.first < self._timers.log.start:  # the beginning has left
            return
        said = slot.first, slot.count, slot.magic
        if said != (self._first[second], self._count[second], 0) and not self._bad:
            text = f"the slot of {second} does not say how many units it has, or which is the first"
            self._add(WHEEL, at, text, grade=Grade.NOTE)

    # -- how far it was

    def _check(self) -> None:
        check, clean = self._timers.check, self._store.clean
        if check is None:
            if self._newest:
                text = "the file is missing: RocketMQ would deliver timers again"
                self._add(CHECK, 0, text, grade=Grade.DAMAGE if clean else Grade.NOTE)
            return
        if self._flushed > self._end or (clean and self._flushed != self._next_or_end()):
            text = f"the timer log was flushed up to {self._flushed}; it ends at {self._end}"
            self._add(CHECK, 8, text)
        queue = self._store.queue(TIMER_TOPIC, 0)
        end = queue.max if queue is not None else 0
        if not 0 <= check.last_queue_offset <= end:
            text = f"the timer queue was read up to {check.last_queue_offset}; it ends at {end}"
            self._add(CHECK, 16, text, grade=Grade.DAMAGE if clean else Grade.NOTE)

    def _next_or_end(self) -> int:
        """Return the end, or where the next file begins if that is what was flushed."""
        return self._flushed if self._flushed == self._next() else self._end


def _name(file: LogFile) -> str:
    return f"timerlog/{file.path.name}"


def _said(unit: TimerUnit, record: Record | None) -> str:
    """Return what a unit says otherwise than its record."""
    if record is None or record.topic != TIMER_TOPIC or record.size != unit.record_size:
        return f"the unit points to no timer of {unit.record_size} bytes at {unit.log_offset}"
    named = record.properties
    topic = named.get("REAL_TOPIC")
    if unit.topic_hash not in (0, java_hash(topic) if topic is not None else 0):
        return f"the unit is of another topic than its record, {topic}"
    if bool(unit.magic & DELETE) != ("TIMER_DEL_UNIQKEY" in named):
        return "the unit and its record differ in whether they take another one back"
    due = named.get("TIMER_OUT_MS", "")
    rolled = bool(unit.magic & ROLL)
    if unit.reserved and "TIMER_DELAY_MS" in named:
        due = str(out_ms(unit.reserved))  # counted from when it was stored, by twinlog
    if due.isdecimal() and (unit.time_ms >= int(due) if rolled else unit.time_ms != int(due)):
        return f"the unit waits for {unit.time_ms}, its record for {due}"
    return ""
