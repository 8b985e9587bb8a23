"""Files of consume queues: entries, the units of their extension, and those of batch queues.

Entry, 20 bytes, entry n of a queue at byte 20 n:

    offset  size  field
         0     8  log offset of the record
         8     4  size of the record
        12     8  tags code: hash of its tag, sign-extended; 0 when it has none

Unit of the queue extension, 20 bytes and a bit map:

    offset  size  field
         0     2  size of the unit; -1: continue in the next file
         2     8  tags code
        10     8  store timestamp, ms since 1970
        18     2  bytes of the bit map

Unit of a batch queue (RocketMQ's BatchCQ topics; also of compacted topics), 46 bytes, for a record
that holds several inner messages:

    offset  size  field
         0     8  log offset
         8     4  size
        12     8  tags code
        20     8  store timestamp, ms since 1970
        28     8  queue offset of the first inner message
        36     2  number of inner messages
        38     4  compacted offset, -1
        42     4  reserved

Sources: RocketMQ's ``ConsumeQueue``, ``ConsumeQueueExt``, ``BatchConsumeQueue``.
"""

from __future__ import annotations

import struct

QUEUE_ENTRY = struct.Struct(">QIq")
assert QUEUE_ENTRY.size == 20

QUEUE_EXT_UNIT = struct.Struct(">hqqh")
assert QUEUE_EXT_UNIT.size == 20

QUEUE_EXT_ADDRESS_MAX = -2147483649
"""A tags code at or below it is an address in the queue extension: address - 2^63."""

QUEUE_FILE_SIZE_DEFAULT = 6_000_000

BATCH_QUEUE_UNIT = struct.Struct(">qiqqqhii")
assert BATCH_QUEUE_UNIT.size == 46

BATCH_QUEUE_FILE_SIZE_DEFAULT = 13_800_000
