"""Records of the store's own topics: control records, and rows of what groups have consumed.

A control record is a batch of its own. Rows ride in one batch with the sections that they belong
to: a copy and the row that says "delivered" are in the log together or not at all. Rows that settle
halves have a record beside them that says the same to RocketMQ's brokers. What is
appended binds the master at once: control records in `storage.state.layers`, rows in
`storage.messaging.ahead`.

Rows are refused until the dispatcher has passed the record that opened this reign: before, the
confirmed fold lacks rows of the reigns before.

Not here: sections and batches (`storage.append.appender`), what rows say
(`twinlog.format.group_rows`), who decides about them (``node.groups``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage.append.appender import Appender
from storage.log.commit_log import CommitLog
from storage.messaging.ahead import Ahead
from storage.settings import StoreSettings
from storage.state.control import Control
from storage.state.controls import encode_control
from storage.state.dispatcher import Dispatcher
from storage.state.layers import Layers
from storage.state.producers import Producers, Verdict, judge
from storage.state.sections import Outcome, Section, SectionResult, Together, digest_of, refused
from storage.state.sequences import line_topic
from twinlog import levels
from twinlog.format import record
from twinlog.format.group_rows import HalfRow, Row, encode_rows
from twinlog.format.record import TAGS
from twinlog.format.system_topics import OP_TOPIC, SYSTEM_TOPIC_GROUP, SYSTEM_TOPIC_META
from twinlog.format.waiting.halves import OP_TAG, op_body

TOGETHER_MAX = 64
"""Sections that go into one batch together."""
_NOT_READY = "this master has not yet applied what its predecessors left; try again"
_DIFFERS = "some of these sections were stored before, without the others"


class OwnRecords:
    """Appends them on a master.

    Args:
        log: The log.
        settings: Sizes, and the store's host.
        appender: Makes the batches.
        layers: Topics and groups; what is appended waits there for its confirm.
        producers: Some control records forget some of them.
        ahead: Takes rows.
        dispatcher: How far the confirmed fold is.
    """

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        *,
        appender: Appender,
        layers: Layers,
        producers: Producers,
        ahead: Ahead,
        dispatcher: Dispatcher,
    ) -> None:
        self._log = log
        self._settings = settings
        self._appender = appender
        self._layers = layers
        self._producers = producers
        self._ahead = ahead
        self._dispatcher = dispatcher
        host = settings.store_host
        family = 6 if len(record.pack_host(host)) == 20 else 4
        self._encoder = record.RecordEncoder(SYSTEM_TOPIC_GROUP, 0, family=family, born_host=host)

    def _record(
        self, topic: str, body: bytes, wall_ms: int, tags: Mapping[str, str] | None = None
    ) -> Section:
        host = self._settings.store_host
        data = record.encode(
            topic, 0, body, born_timestamp=wall_ms, born_host=host, store_host=host,
            properties=tags or b"",
        )  # fmt: skip
        return Section(topic, 0, 1, data)

    def _rows(self, rows: Sequence[Row], wall_ms: int) -> Section:
        """Return the record of rows; its store host is set where it is placed."""
        encoder = self._encoder
        encoder.add(encode_rows(rows), born_timestamp=wall_ms)
        return Section(SYSTEM_TOPIC_GROUP, 0, 1, encoder.take())

    def append_control(self, change: Control, wall_ms: int) -> SectionResult:
        """Append a control record, as a batch of its own."""
        layers = self._layers
        refusal = levels.refusal(change.LEVEL, layers.level) or change.refusal(layers)
        if refusal is not None:
            return refused(*refusal)
        repeated = change.repeated(layers)
        if repeated is not None:
            return SectionResult(Outcome.DUPLICATE, end=repeated)
        section = self._record(SYSTEM_TOPIC_META, encode_control(change), wall_ms)
        result = self._appender.append([section], wall_ms, system=True)[0]
        if result.outcome is Outcome.STORED:
            # R48: a restriction binds from its append; a permission waits for confirm.
            layers.append(result.end, change)
            change.forget(self._producers, result.log_offset, confirmed=False)
            for group in change.dropped:
                self._ahead.drop(group)
            if change.deleted:
                self._ahead.drop_topic(change.deleted)
        return result

    def append_rows(self, rows: Sequence[Row], wall_ms: int) -> SectionResult:
        """Append rows in one record; its result."""
        if not self._ahead.ready(self._dispatcher.position):
            return refused("not-ready", _NOT_READY)
        section = self._rows(rows, wall_ms)
        result = self._appender.append([section], wall_ms, system=True)[0]
        if result.outcome is Outcome.STORED:
            self._bind(rows)
        return result

    def append_together(
        self, sections: Sequence[Section], rows: Sequence[Row], wall_ms: int
    ) -> Together:
        """Append sections and rows in one batch, or nothing of it.

        Sections that are all duplicates are answered so: their rows are in the log with them.
        """
        if not self._ahead.ready(self._dispatcher.position):
            return _nothing("not-ready", _NOT_READY)
        own = self._told(rows, wall_ms)
        most = self._settings.batch_length_max
        length = sum(len(section.data) for section in (*sections, *own))
        if length > most:
            return _nothing("too-large", f"{length} bytes together, at most {most} fit")
        if len(sections) > TOGETHER_MAX:
            text = f"{len(sections)} sections together, at most {TOGETHER_MAX} may be"
            return _nothing("too-large", text)
        results = self._appender.append_whole(sections, own, wall_ms)
        return self._judged(results, len(sections), rows)

    def _told(self, rows: Sequence[Row], wall_ms: int) -> list[Section]:
        """Return the records that say what rows do: ours, and RocketMQ's of settled halves."""
        told = [self._rows(rows, wall_ms)] if rows else []
        halves = [row.half for row in rows if isinstance(row, HalfRow)]
        if halves:
            told.append(self._record(OP_TOPIC, op_body(halves), wall_ms, {TAGS: OP_TAG}))
        return told

    def stored_before(self, sections: Sequence[Section]) -> int | None:
        """Return the log offset after the originals when all sections are duplicates; else None."""
        end = 0
        for one in sections:
            topic = line_topic(one.topic, one.data)
            line = self._producers.line((one.producer, topic, one.queue))
            digest = digest_of(one.data, 0, len(one.data))
            verdict, done = judge(line, one.producer_epoch, one.sequence, one.count, digest)
            if not one.producer or line is None or verdict is not Verdict.DUPLICATE:
                return None
            end = max(end, done.end if done is not None else line.done[0].log_offset)
        return end

    def _judged(self, results: list[SectionResult], sections: int, rows: Sequence[Row]) -> Together:
        kinds = {result.outcome for result in results}
        end = max((result.end for result in results), default=0)
        if Outcome.REFUSED in kinds:
            wrong = results[-1]
            return Together(Outcome.REFUSED, results[:sections], 0, wrong.code, wrong.text)
        if len(kinds) > 1:
            return _nothing(Verdict.ANOTHER.value, _DIFFERS)
        if Outcome.DUPLICATE in kinds:
            return Together(Outcome.DUPLICATE, results, end)
        self._bind(rows)
        return Together(Outcome.STORED, results[:sections], end)

    def _bind(self, rows: Sequence[Row]) -> None:
        ahead, at = self._ahead, self._log.timestamp
        for row in rows:
            ahead.apply(row, at)


def _nothing(code: str, text: str) -> Together:
    return Together(Outcome.REFUSED, [], 0, code, text)
