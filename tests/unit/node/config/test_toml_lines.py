"""Every key is found on the line on which it stands, whatever the text around it looks like."""

from __future__ import annotations

import tomllib
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from node.config.toml_lines import Path, positions

TRICKY = '''\
top = 1
text = """
[not.a.table]
no = "key"
"""
raw = \'\'\'
[nor.this]
\'\'\'
list = [
  1, # ] [
  { a = "]" },
]
quoted = "a \\" [b] #"
[a.b]   # comment
c.d = 2
"x y" = 3
[[n]]
k = 1
[n.s]
k = 2
[[n]]
k = 3
[n.s]
k = 4
'''


def test_tricky_texts() -> None:
    """Brackets in strings, comments and arrays begin no table."""
    tomllib.loads(TRICKY)
    found = positions(TRICKY).numbers
    assert found == {
        ("top",): 1,
        ("text",): 2,
        ("raw",): 6,
        ("list",): 9,
        ("quoted",): 13,
        ("a", "b"): 14,
        ("a", "b", "c"): 15,
        ("a", "b", "c", "d"): 15,
        ("a", "b", "x y"): 16,
        ("n", 0): 17,
        ("n", 0, "k"): 18,
        ("n", 0, "s"): 19,
        ("n", 0, "s", "k"): 20,
        ("n", 1): 21,
        ("n", 1, "k"): 22,
        ("n", 1, "s"): 23,
        ("n", 1, "s", "k"): 24,
    }


def test_an_unknown_key_has_the_line_of_its_table() -> None:
    lines = positions("[a]\nb = 1\n")
    assert lines.line(("a", "z")) == 1
    assert lines.line(("z",)) is None


NAME = st.text("abcdefgh_-0123", min_size=1, max_size=6)
VALUE = st.sampled_from(["1", '"a"', "true", "[1,\n2]", '"""\n[x]\n"""', "{ q = 1 }", "'#'"])


@settings(deadline=None)
@given(st.dictionaries(NAME, st.dictionaries(NAME, VALUE, max_size=4), max_size=4))
def test_every_key_of_any_file_is_found(tables: dict[str, dict[str, str]]) -> None:
    """The line of each key begins with that key."""
    text = "".join(
        f"# {name}\n[{name}]\n" + "".join(f"  {key} = {value}\n" for key, value in keys.items())
        for name, keys in tables.items()
    )
    loaded = cast("dict[str, dict[str, object]]", tomllib.loads(text))
    lines, found = text.splitlines(), positions(text)
    for name, keys in loaded.items():
        for key in keys:
            path: Path = (name, key)
            assert lines[(found.line(path) or 0) - 1].strip().startswith(f"{key} =")


def test_a_line_that_is_no_statement_has_no_place() -> None:
    """The parser tells what is wrong with it; the lines around it keep theirs."""
    assert positions("[a]\n= 3\nb = 1\n").numbers == {("a",): 1, ("a", "b"): 3}
