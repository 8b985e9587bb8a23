"""The sink's options and columns: what is refused says what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from twinlog.spark.errors import SourceError
from twinlog.spark.sink.settings import (
    Identity,
    check_columns,
    message_of,
    parse,
    queue_for,
)

GOOD = {"servers": "n1:1", "topic": "t"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "servers"),
        ({**GOOD, "topc": "x"}, "topc"),
        ({**GOOD, "ack": "all"}, "written, flushed"),
        ({**GOOD, "rate": "-1"}, "rows per second"),
        ({**GOOD, "rate": "0 MiB/s"}, "rows per second"),
        ({**GOOD, "rate": "9999999 TiB/s"}, "rows per second"),
        ({**GOOD, "exactlyOnce": "maybe"}, "exactlyOnce"),
        ({**GOOD, "commitTopic": "c"}, "writeId"),
    ],
)
def test_options_that_are_refused(given: Mapping[str, str], words: str) -> None:
    """One line with what and why."""
    with pytest.raises(SourceError) as caught:
        parse(given)
    assert words in f"{caught.value} {caught.value.hint}"


def test_a_row_says_what_the_table_of_columns_names() -> None:
    """Under the names of a send; body and topic are not among them."""
    row = {"body": b"x", "topic": "t", "tags": "a", "queue_id": 3, "born_timestamp": 5}
    assert message_of(row) == {"tag": "a", "queue": 3, "born_ms": 5}


def test_options_that_are_taken() -> None:
    """Names in any case; what Spark adds is passed over."""
    found = parse({**GOOD, "ACK": "Flushed", "checkpointLocation": "/x", "option.topic": "t"})
    assert (found.ack, found.exactly_once, found.timeout) == ("flushed", True, 60.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("key", "string")], "no column body"),
        ([("body", "int")], "binary or string"),
        ([("body", "binary"), ("body", "string")], "the column body is there twice"),
        ([("body", "binary"), ("tag", "string")], "tag"),
        ([("body", "binary"), ("properties", "map<string,int>")], "map<string,string>"),
    ],
)
def test_columns_that_are_refused(fields: Sequence[tuple[str, str]], words: str) -> None:
    """The schema is checked before a task starts."""
    with pytest.raises(SourceError) as caught:
        check_columns(fields, parse(GOOD))
    assert words in f"{caught.value} {caught.value.hint}"
    with pytest.raises(SourceError, match="no topic"):
        check_columns([("body", "binary")], parse({"servers": "n1:1"}))
    check_columns([("body", "binary")], parse(GOOD))
    check_columns([("body", "binary"), ("topic", "string")], parse({"servers": "n1:1"}))


def test_a_row_goes_where_it_went() -> None:
    """Queues by order key or by number, and identities that differ where they must."""
    assert queue_for("a", None, 1, 8) == queue_for("a", None, 99, 8)
    assert {queue_for(None, None, n, 4) for n in range(4096)} == {0, 1, 2, 3}
    assert Identity("w", 0, 0).producer != Identity("w", 0, 1).producer
    assert Identity("w", 0, 0).producer != Identity("v", 0, 0).producer
    assert 0 < Identity("w", 0, 0).producer < 1 << 63
