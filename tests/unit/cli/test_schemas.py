"""`-o schema`: what it prints, and that the golden answers are as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cli.help.schemas import content, schema_of
from cli.tree import names
from tests.fakes.cli_cluster import FakeCluster
from tests.fixtures.answer_schemas import widened

GOLDEN = sorted((Path(__file__).parents[2] / "golden_cli").glob("*.txt"))


def documents(path: Path) -> list[dict[str, object]]:
    """The documents that a golden file has below ``-o json``."""
    text = re.search(
        r"^=== json\nexit \d+\n--- stdout\n(.*?)^--- stderr", path.read_text(), re.M | re.S
    )
    found: list[dict[str, object]] = []
    rest = text[1].strip() if text else ""
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_answers_are_as_their_schema_says(path: Path) -> None:
    """Each document below ``-o json``, by its kind."""
    for document in documents(path):
        schema = content()["kinds"][str(document["kind"])]
        Draft202012Validator(schema).validate(document)


def test_golden_answers_are_looked_at() -> None:
    """The test above finds documents in most files."""
    assert sum(bool(documents(path)) for path in GOLDEN) > len(GOLDEN) / 2


@pytest.mark.parametrize("command", sorted(content()["commands"]))
def test_a_schema_is_one(command: str) -> None:
    """It is a schema of the dialect that it names, of a command that exists."""
    assert command in names()
    Draft202012Validator.check_schema(schema_of(command))


def test_the_option_prints_it_and_asks_nothing(tmp_path: Path) -> None:
    """No cluster is needed, nor the command's arguments."""
    cluster = FakeCluster(tmp_path, down={"n1", "n2", "n3", "coordinator"})
    code, out, err = cluster.run("topic", "show", "-o", "schema")
    assert (code, err) == (0, "")
    schema = json.loads(out)
    assert (schema["title"], schema["type"]) == ("Topic", "object")
    code, out, err = cluster.run("cluster", "add", "-o", "schema")
    assert {one["title"] for one in json.loads(out)["anyOf"]} >= {"MemberAdded", "LearnerAdded"}
    assert cluster.asked == []


def test_a_command_without_a_document_says_so(tmp_path: Path) -> None:
    """It is a wrong call, not an empty schema."""
    code, out, err = FakeCluster(tmp_path).run("node", "start", "n1", "-o", "schema")
    assert (code, out) == (64, "")
    assert "node start has no schema" in err


def test_a_schema_says_no_to_another_type() -> None:
    """A text where a number was, a field that is missing."""
    schema = widened(widened(None, {"a": 1, "b": "x"}, {}), {"a": 2, "b": None}, {})
    fits = Draft202012Validator(schema).is_valid
    assert fits({"a": 1, "b": "x", "later": 5})
    assert fits({"a": None, "b": None})
    assert not fits({"a": "1", "b": "x"})
    assert not fits({"b": "x"})
