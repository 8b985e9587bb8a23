"""Every request of the client wire has a handler in the node."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from node.clients import connection
from twinlog.wire.frames import Type
from twinlog.wire.schema import CALLS


def test_every_request_has_a_handler() -> None:
    """`ClientConnection` names each type of the table: nothing falls into another one's branch."""
    tree = ast.parse(Path(connection.__file__).read_text(encoding="utf-8"))
    named = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.match_case)
        for name in re.findall(r"Type\.(\w+)", ast.unparse(node.pattern))
    }
    handled = {kind for kind in Type if kind.name in named}
    assert set(CALLS) - handled == {Type.APPEND}, "which has its own way, for speed"
