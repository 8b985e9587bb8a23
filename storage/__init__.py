"""Storage: the log of a node and what is derived from it. This page explains the positions.

All are bytes from the beginning of all time, all are batch borders, ends are exclusive. *Queue
offsets* are something else: they count records of one queue.

     0        start            checkpointed   flushed      confirm        committed = end
     ├─ dropped ─┼───────────────────┼────────────┼────────────┼──────────────────┤· · zeros · ·
                 └──────── kept ──────────────────────────────────────────────────┘
                                                         ▲ readers and the dispatcher stop here

* ``start``: first byte still kept; moves when retention deletes whole files.
* ``checkpointed``: the flushed offset in the checkpoint file; written with each flush.
* ``flushed``: everything below is on this disk, log **and** batch index.
* ``committed``: everything below is in the file and has its batch entry.
* ``end``: first byte not yet written; equal to committed except on a master that buffers
(``async-buffered``): there the bytes between the two are in the memory pool only.
* ``confirm``: everything below is on every in-sync member; never falls.
* ``dispatched``: queues are built up to here.

    start <= checkpointed <= flushed <= committed <= end
    dispatched <= confirm <= committed
    state snapshot <= min(confirm, flushed)

``confirm`` and ``flushed`` have no order between them: with quality ``received`` bytes may be
confirmed that no disk holds yet.

Where to read on: `storage.store` is the public interface; `storage.log.commit_log` and
`storage.log.batch_index` the log; `storage.append.appender` and `storage.append.receiver` its two
ways in; `storage.recovery.open` and `storage.recovery.log_end` a start; `storage.recovery.truncate`
cuts. Decisions are pure modules (such as `storage.state.producers`, `storage.recovery.log_end`,
`storage.flush_policy`), and only `storage.disk` accesses files.

Not here: sockets, roles, other nodes.
"""

from storage.damage import Damage
from storage.jobs import Job
from storage.marks.identity import Who
from storage.marks.promise import Promise
from storage.read.result import ReadResult, ReadStatus
from storage.recovery.summary import BootSummary
from storage.settings import StoreSettings
from storage.state.control import Control
from storage.state.controls import CreateTopic, ForgetProducers
from storage.state.sections import Outcome, Section, SectionResult
from storage.store import Store
from storage.token import Token

__all__ = [
    "BootSummary",
    "Control",
    "CreateTopic",
    "Damage",
    "ForgetProducers",
    "Job",
    "Outcome",
    "Promise",
    "ReadResult",
    "ReadStatus",
    "Section",
    "SectionResult",
    "Store",
    "StoreSettings",
    "Token",
    "Who",
]
