"""``-o yaml``: another reader of YAML finds the same values as in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.yaml_text import yaml_text
from tests.fakes.cli_cluster import FakeClient, FakeCluster

yaml = pytest.importorskip("yaml")

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from([
        "", "yes", "No", "~", "null", "1", "1.5", "1e3", "0x1f", "012", "2026-11-23", "a: b",
        "- a", "a #b", " a", "a ", "x\ny", "\t",
        "'", '"', "\\", "{", "!tag", "&a", "*a", "=", "<<",
        "1:30", "\x85", "\u2028", "\ufeff", "\x7f",
        "%a", "@a", "`a", ".", "---", "...", "? a", "a:",
        ".inf",
    ]),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False,
                                                                allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_a_reader_finds_the_same(value: object) -> None:
    """Whatever the texts are like, keys included."""
    text = yaml_text(value)
    found = yaml.safe_load(text)
    assert json.dumps(_numbers(found)) == json.dumps(_numbers(value)), text


def _numbers(value: object) -> object:
    """A value with each float as a text: for YAML 1.1, which PyYAML reads, ``1e3`` is one."""
    if isinstance(value, float):
        return repr(value).replace("E", "e")
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    return value


def test_a_document_is_the_same_as_in_json(tmp_path: Path) -> None:
    """Of a command; a command that fails says so in the same form on stderr."""
    cluster = FakeCluster(tmp_path, client=FakeClient())
    for words in (["cluster", "status"], ["topic", "list"], ["group", "show", "billing"]):
        text = cluster.run(*words, "-o", "yaml")[1]
        assert yaml.safe_load(text) == json.loads(cluster.run(*words, "-o", "json")[1])
    code, out, err = cluster.run("topic", "show", "ordres", "-o", "yaml")
    assert (code, out) == (66, "")
    assert yaml.safe_load(err) == json.loads(
        cluster.run("topic", "show", "ordres", "-o", "json")[2]
    )


@pytest.mark.parametrize("words", [["message", "read", "orders"], ["message", "get", "orders/0@1"]])
def test_a_stream_is_documents(words: list[str], tmp_path: Path) -> None:
    """Each thing a document of its own, as JSON has a line of its own."""
    cluster = FakeCluster(tmp_path, client=FakeClient())
    text = cluster.run(*words, "-o", "yaml")[1]
    lines = cluster.run(*words, "-o", "jsonl")[1].splitlines()
    assert [one for one in yaml.safe_load_all(text) if one] == [json.loads(line) for line in lines]
