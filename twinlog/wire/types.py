"""The numbers of frame types, as they are on the wire."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Type(IntEnum):
    """What a frame is about; the number is on the wire."""

    HA_HELLO = 1
    HA_HELLO_OK = 2
    HA_HELLO_ERR = 3
    HA_READY = 4
    HA_APPEND = 5
    HA_ACK = 6
    HA_PING = 7
    HA_PONG = 8
    HA_BYE = 12
    HA_NACK = 13
    HA_SEED = 14
    HELLO = 32
    METADATA = 33
    APPEND = 34
    READ = 35
    OFFSETS = 36
    TOPIC = 37
    GET = 38
    STATUS = 39
    ADMIN = 40
    PRODUCER = 41
    FIND = 42
    LOG = 43
    GROUP = 44
    JOIN = 45
    BEAT = 46
    POP = 47
    SETTLE = 48
    COMMIT = 49
    TOGETHER = 50
    END = 51
    CHECKS = 52
    CANCEL = 53
    WAITING = 54
    LOGIN = 60
    ACCESS = 61
    CO_HELLO = 64
    CO_READ = 65
    CO_CALL = 66
    CO_WATCH = 67
    CO_LIVE = 68
    CO_HISTORY = 69
    CO_STATUS = 70
    CO_ENDED = 71


HA_TYPES: Final = frozenset(t for t in Type if t < 32)
CLIENT_TYPES: Final = frozenset(t for t in Type if 32 <= t < 64)
COORDINATOR_TYPES: Final = frozenset(t for t in Type if t >= 64)
NAMES: Final = {int(t): t.name for t in Type}
"""Every type that a frame may have, by its number."""


def type_name(number: int) -> str:
    """Return the type's name for texts and metrics: ``APPEND``; an unknown one as ``type 99``."""
    return NAMES.get(number) or f"type {number}"
