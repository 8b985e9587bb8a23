"""twinlog: a replicated message store whose files are those of Apache RocketMQ.

    from twinlog import Client

    with Client("127.0.0.1:7410") as client:
        receipt = client.send("orders", b'{"id": 42}', key="42")
        for message in client.read("orders", "@-1h:"):
            print(message.queue, message.queue_offset, message.body)

Names are loaded when they are first used: importing the package costs nothing, and `AsyncClient`
needs the extra ``async`` only once it is touched.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinlog.client.aio import AsyncClient
    from twinlog.client.blocking import Client
    from twinlog.client.search import Finding
    from twinlog.errors import (
        Busy,
        Corrupt,
        CorruptionError,
        Denied,
        Fenced,
        GroupDiffers,
        LeaseLost,
        NotEnoughInSync,
        NotMaster,
        NotMember,
        NotReady,
        NotYetConfirmed,
        OffsetBeyond,
        OffsetGone,
        OutcomeUnknown,
        OutOfSequence,
        ProtocolError,
        RecordRefused,
        TwinlogError,
        Unavailable,
        UnavailableError,
        UnknownGroup,
        UnknownTopic,
        UsageError,
    )
    from twinlog.format.messages import Message, Receipt
    from twinlog.groups.delivery import Delivery
    from twinlog.producer.blocking import Producer

__all__ = [
    "AsyncClient",
    "Busy",
    "Client",
    "Corrupt",
    "CorruptionError",
    "Delivery",
    "Denied",
    "Fenced",
    "Finding",
    "GroupDiffers",
    "LeaseLost",
    "Message",
    "NotEnoughInSync",
    "NotMaster",
    "NotMember",
    "NotReady",
    "NotYetConfirmed",
    "OffsetBeyond",
    "OffsetGone",
    "OutOfSequence",
    "OutcomeUnknown",
    "Producer",
    "ProtocolError",
    "Receipt",
    "RecordRefused",
    "TwinlogError",
    "Unavailable",
    "UnavailableError",
    "UnknownGroup",
    "UnknownTopic",
    "UsageError",
]

_ELSEWHERE = {
    "AsyncClient": "twinlog.client.aio",
    "Client": "twinlog.client.blocking",
    "Delivery": "twinlog.groups.delivery",
    "Finding": "twinlog.client.search",
    "Message": "twinlog.format.messages",
    "Producer": "twinlog.producer.blocking",
    "Receipt": "twinlog.format.messages",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'twinlog' has no attribute {name!r}")
    try:
        module = importlib.import_module(_ELSEWHERE.get(name, "twinlog.errors"))
    except ModuleNotFoundError as error:
        if error.name != "anyio":
            raise
        text = f"{name} needs anyio, which is an extra: pip install 'twinlog[async]'"
        raise ModuleNotFoundError(text, name="anyio") from None
    found: object = getattr(module, name)
    globals()[name] = found
    return found
