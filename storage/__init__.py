"""Storage: the log of a node and what is derived from it. This page explains the positions.

All are bytes from the beginning of all time, all are batch borders, ends are exclusive. *Queue
offsets* are something else: they count records of one queue.

     0        start            checkpointed   flushed      confirm        committed = end
     ├─ dropped ─┼───────────────────┼────────────┼────────────┼──────────────────┤· · zeros · ·
                 └──────── kept ──────────────────────────────────────────────────┘
                                                         ▲ readers and the dispatcher stop here

* ``start``: first byte still kept; moves when retention drops whole files.
* ``checkpointed``: flushed, as the checkpoint file says it; each second, each 64 MiB.
* ``flushed``: everything below is on this disk, log **and** batch index.
* ``committed``: everything below is in the file and has its batch entry.
* ``end``: first byte not yet written; equal to committed but on a master that buffers
  (``async-buffered``): there what lies between the two is in the memory pool only.
* ``confirm``: everything below is on every in-sync member; never falls.
* ``dispatched``: queues are built up to here.

    start <= checkpointed <= flushed <= committed <= end
    dispatched <= confirm <= committed
    state snapshot <= min(confirm, flushed)

``confirm`` and ``flushed`` have no order between them: with quality ``received`` bytes may be
confirmed that no disk holds yet.

Where to read on: `storage.store` is the door; `storage.commit_log` and `storage.batch_index` the
log; `storage.appender` and `storage.receiver` its two ways in; `storage.opening` and
`storage.recovery` a start; `storage.cut` the way back. Deciding is pure (`state`, `producers`,
`recovery`, `flusher`), and only `storage.disk` touches files.

Not here: sockets, roles, other nodes.
"""

from storage.boot import BootSummary
from storage.checkpoint import Promise
from storage.epoch_history import Epoch
from storage.identity import Who
from storage.jobs import Job
from storage.reads import ReadResult, ReadStatus
from storage.recovery import Damage
from storage.sections import Outcome, Section, SectionResult
from storage.settings import StoreSettings
from storage.state import Control, CreateTopic, ForgetProducers
from storage.store import Store
from storage.token import Token

__all__ = [
    "BootSummary",
    "Control",
    "CreateTopic",
    "Damage",
    "Epoch",
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
