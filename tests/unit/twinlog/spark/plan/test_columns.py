"""Columns of a batch of rows: how many rows without any, headers from properties."""

from __future__ import annotations

import numpy as np

from twinlog.format import record
from twinlog.spark.plan import columns
from twinlog.spark.plan.decoding import Context, DecodedRows, Decoder


def test_rows_without_columns_still_have_a_number() -> None:
    """A count reads none."""
    made = Decoder((), Context()).batch(DecodedRows(3, {}), [0, 0, 0])
    assert (made.num_rows, made.num_columns) == (3, 0)


def test_properties_as_headers() -> None:
    """A list of names and bytes for each row, as Kafka's source has them."""
    wanted = [one for one in columns.KAFKA if one.name == "headers"]
    decoder = Decoder(wanted, Context())
    data = record.encode("t", 0, b"x", properties={"a": "1", "b": "é"})
    rows, code = decoder.rows(
        data + record.encode("t", 0, b"y"), np.array([0, len(data)], np.int64)
    )
    assert code == 0
    [column] = decoder.batch(rows, [0, 0]).columns
    assert column.to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": "é".encode()}],
        [],
    ]


def test_an_order_key_is_a_column() -> None:
    """Of the property that it is stored as; null where a record has none."""
    wanted = [one for one in columns.TABLE if one.name == "order_key"]
    decoder = Decoder(wanted, Context())
    texts = ({"__SHARDINGKEY": "a", "b": "1"}, {}, {"TAGS": "x", "__SHARDINGKEY": "ü"})
    data, starts = b"", list[int]()
    for properties in texts:
        starts.append(len(data))
        data += record.encode("t", 0, b"x", properties=properties)
    rows, code = decoder.rows(data, np.array(starts, np.int64))
    assert code == 0
    [column] = decoder.batch(rows, [0, 0, 0]).columns
    assert column.to_pylist() == ["a", None, "ü"]
