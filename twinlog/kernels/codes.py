"""Why a record is not accepted: codes that both twins of the kernels return.

The numbers are written in ``_compiled.pyx`` a second time; a property test compares the twins.
Code 0 says fine. `REFUSALS` gives each code its stable name, `EXPLANATIONS` a sentence.

Not here: what is done about a bad record (a section is refused, a log is cut or quarantined).
"""

from __future__ import annotations

FINE = 0
SIZE = 1
MAGIC = 2
TOPIC = 3
QUEUE = 4
CRC = 5
PROPERTIES = 6
COUNT = 7
HOST = 8
BODY_SIZE = 9
SYS_FLAG = 10
OFFSET = 11
BLANK = 12
LIGHT = 13
INNER = 14

REFUSALS: dict[int, str] = {
    SIZE: "size",
    MAGIC: "magic",
    TOPIC: "topic",
    QUEUE: "queue",
    CRC: "crc",
    PROPERTIES: "properties",
    COUNT: "count",
    HOST: "host",
    BODY_SIZE: "body-size",
    SYS_FLAG: "sys-flag",
    OFFSET: "offset",
    BLANK: "blank",
    LIGHT: "light-queues",
    INNER: "inner-batch",
}

EXPLANATIONS: dict[int, str] = {
    SIZE: "the size field is not the sum of the record's parts, or reaches beyond the end",
    MAGIC: "neither a record nor a blank begins here",
    TOPIC: "the topic is not the section's",
    QUEUE: "the queue is not the section's",
    CRC: "the body does not match its CRC",
    PROPERTIES: "the properties are not UTF-8 entries of a name and a value",
    COUNT: "the section does not hold the number of records it names",
    HOST: "the store host has not the cluster's address family",
    BODY_SIZE: "the body is larger than the node takes, or negative",
    SYS_FLAG: "system flag bits that a client must not set",
    OFFSET: "the record names another log offset than its own",
    LIGHT: "a message that names light queues",
    INNER: "INNER_NUM, the flags and the messages in the body do not agree, or INNER_BASE is not "
    "19 zeros",
    BLANK: "a blank that does not reach exactly to the end of the file",
}
