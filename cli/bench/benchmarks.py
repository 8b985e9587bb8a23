"""``twinlog bench``: how fast this cluster is, on this machine, now.

``send`` measures a producer (the Python client, single sends, or prepared batches), ``replicate``
prepared batches until the slaves have them, ``read`` a reader of one node.  Every result carries
its settings, so that two of them can be compared.

Not here: the loads (``loads``), counting (``measurement``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from cli.bench.loads import consume, fetch, one_at_a_time, prepared, produce
from cli.bench.measurement import Count, Stopwatch
from cli.cluster.patience import waiting_client
from cli.cluster.view import ClusterView, look
from cli.context import Context
from cli.failures import Exit, Failure
from cli.message.send import Acknowledge
from cli.parsing import PRIVATE
from twinlog.producer.settings import SECTION_MAX
from twinlog.session.tls_files import Tls
from twinlog.units import format_size, parse_duration, parse_size

TOPIC = "bench"
QUEUES = 8

Load = Callable[[Callable[[], bool]], Count]


def send(
    *,
    size: str = "1 KiB",
    duration: str = "10 s",
    warmup: str = "1 s",
    batch: str = "256 KiB",
    linger: str = "2 ms",
    ack: Acknowledge = Acknowledge.CONFIRMED,
    single: bool = False,
    prepared_: bool = False,
    window: int = 8,
    topic: str = TOPIC,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Measure a producer: rate, latency, CPU time.

    Args:
        size: Bytes of a body.
        duration: How long is counted.
        warmup: How long is sent before that.
        batch: Bytes at which a section is closed.
        linger: Age at which a section is closed.
        ack: When a record counts as done: written, flushed, replicated or confirmed.
        single: One record at a time, each waited for.
        prepared_: Batches encoded beforehand, so that the client costs nothing.
        window: Requests under way, for prepared batches.
        topic: Which topic; it is made.
    """
    bytes_, batch_bytes = _within("--size", size), _within("--batch", batch)
    view = _ready(context)
    settings: dict[str, object] = {
        "size": bytes_, "acknowledge": ack.value, "queues": QUEUES, "nodes": len(view.nodes),
    }  # fmt: skip
    with waiting_client(context, timeout=60.0) as client:
        client.create_topic(topic, QUEUES)
        if single:
            what = "single sends"
            load: Load = lambda over: one_at_a_time(client, topic, bytes_, over, ack=ack.value)  # noqa: E731
        elif prepared_:
            what = "prepared batches"
            settings |= {"batch": batch_bytes, "window": window}
            load = _prepared(view, topic, bytes_, batch_bytes, window, ack, context.tls())
        else:
            what = "Python producer"
            settings |= {"batch": batch_bytes, "linger_seconds": parse_duration(linger)}
            load = lambda over: produce(  # noqa: E731
                client, topic, bytes_, over, batch=batch, linger=linger, ack=ack.value
            )
        return _measure(what, load, duration, warmup, view, settings, context)


def replicate(
    *,
    size: str = "1 KiB",
    duration: str = "10 s",
    warmup: str = "1 s",
    batch: str = "256 KiB",
    window: int = 8,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Measure how fast prepared batches are confirmed by master and slaves.

    Args:
        size: Bytes of a body.
        duration: How long is counted.
        warmup: How long is sent before that.
        batch: Bytes of a batch.
        window: Requests under way.
    """
    bytes_, batch_bytes = _within("--size", size), _within("--batch", batch)
    view = _ready(context)
    with waiting_client(context, timeout=60.0) as client:
        client.create_topic(TOPIC, QUEUES)
    settings: dict[str, object] = {
        "size": bytes_, "acknowledge": "confirmed", "batch": batch_bytes,
        "window": window, "queues": QUEUES, "nodes": len(view.nodes),
    }  # fmt: skip
    confirmed = Acknowledge.CONFIRMED
    load = _prepared(view, TOPIC, bytes_, batch_bytes, window, confirmed, context.tls())
    return _measure("replication", load, duration, warmup, view, settings, context)


def read(
    *,
    duration: str = "5 s",
    warmup: str = "500 ms",
    from_: str = "slave",
    decode: bool = False,
    topic: str = TOPIC,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Measure how fast a reader gets records; ``bench send`` writes some.

    Args:
        duration: How long is counted.
        warmup: How long is read before that.
        from_: ``master``, ``slave``, ``any`` (as ``slave``) or a node's name.
        decode: Through the Python client, as messages; otherwise the stored bytes are counted.
        topic: Which topic.
    """
    view = _ready(context)
    node = view.master if from_ == "master" else None
    if node is None and from_ in ("slave", "any"):
        node = next((one for one in view.nodes if one.reachable and not one.master), view.master)
    node = node or view.node(from_)
    settings: dict[str, object] = {"from": node.name, "role": node.role, "decode": decode}
    with waiting_client(context, timeout=60.0) as client:
        queues = client.topics().get(topic)
        if queues is None:
            raise Failure(
                Exit.MISSING,
                f'there is no topic "{topic}" to read',
                hints=("write some first: twinlog bench send",),
            )
        load: Load = lambda over: (  # noqa: E731
            consume(client, topic, over, read_from=node.name)
            if decode
            else fetch(node.address, topic, over, queues=queues, tls=context.tls())
        )
        return _measure("reading", load, duration, warmup, view, settings, context)


def _within(option: str, given: str) -> int:
    """Return a size given by an option, bytes; what no node takes would only fill our memory.

    Raises:
        Failure: It is more than a section holds (exit 64).
    """
    size = parse_size(given)
    if size > SECTION_MAX:
        most = format_size(SECTION_MAX)
        raise Failure(Exit.USAGE, f"{option} is {given}; at most {most} are sent at once")
    return size


def _ready(context: Context) -> ClusterView:
    view = look(context)
    if view.master is None:
        raise Failure(Exit.UNAVAILABLE, "there is no master to measure")
    return view


def _prepared(
    view: ClusterView,
    topic: str,
    size: int,
    batch: int,
    window: int,
    ack: Acknowledge,
    tls: Tls | None,
) -> Load:
    assert view.master is not None
    address = view.master.address
    return lambda over: prepared(
        address,
        topic,
        size,
        over,
        queues=QUEUES,
        batch=batch,
        window=window,
        ack=ack.value,
        tls=tls,
    )


def _measure(
    what: str,
    load: Load,
    duration: str,
    warmup: str,
    view: ClusterView,
    settings: dict[str, object],
    context: Context,
) -> int:
    load(_until(parse_duration(warmup), "warming up", context))
    seconds = parse_duration(duration)
    watch = Stopwatch(what, view, settings)
    result = watch.result(load(_until(seconds, what, context)))
    context.printer.answer(result.answer())
    return Exit.OK


def _until(seconds: float, what: str, context: Context) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    shown = 0.0

    def over() -> bool:
        nonlocal shown
        left = end - time.monotonic()
        if left > 0 and (shown == 0.0 or shown - left > 0.5):
            shown = left
            context.printer.status(f"{what}: {left:.0f} s left")
        return left <= 0

    return over
