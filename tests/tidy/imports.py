"""The graph of imports between the modules of the source, read with ``ast``.

Imports inside functions and under ``TYPE_CHECKING`` count: a reader must follow them too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("cli", "node", "replication", "storage", "twinlog")


@cache
def modules() -> dict[str, Path]:
    """Every module of the source by its dotted name."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join(parts)] = path
    return found


@cache
def graph() -> dict[str, frozenset[str]]:
    """For each module the modules of the source that it imports, anywhere in it."""
    known = modules()
    arrows: dict[str, frozenset[str]] = {}
    for name, path in known.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found.add(inner if inner in known else node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        arrows[name] = frozenset(other for other in found if other in known and other != name)
    return arrows


def circles(arrows: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Return each group of modules that import each other, directly or through others.

    >>> circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": []})
    [{'b', 'c'}] or [{'c', 'b'}]
    """
    order: dict[str, int] = {}
    least: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        order[name] = least[name] = len(order)
        stack.append(name)
        for other in arrows[name]:
            if other not in order:
                visit(other)
                least[name] = min(least[name], least[other])
            elif other in stack:
                least[name] = min(least[name], order[other])
        if least[name] == order[name]:
            at = stack.index(name)
            group = set(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for name in arrows:
        if name not in order:
            visit(name)
    return found
