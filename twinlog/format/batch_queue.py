"""Files of batch consume queues (RocketMQ's BatchCQ topics), also of compacted topics.

Unit, 46 bytes, for one record that holds several inner messages:

    offset  size  field
         0     8  log offset
         8     4  size
        12     8  tags code
        20     8  store timestamp, ms since 1970
        28     8  queue offset of the first inner message
        36     2  number of inner messages
        38     4  compacted offset, -1
        42     4  reserved

Sources: RocketMQ's ``BatchConsumeQueue``.
"""

from __future__ import annotations

import struct

BATCH_QUEUE_UNIT = struct.Struct(">qiqqqhii")
assert BATCH_QUEUE_UNIT.size == 46

BATCH_QUEUE_FILE_SIZE_DEFAULT = 13_800_000
