"""What the site makes of a page that is written for a reader of the files: text in, text out.

* `split` cuts the README into the pages that open the site.
* `relinked` turns links to files of the tree into links to pages of the site.
* `plain_lists` indents lists as Python-Markdown wants them, four columns for each level.
* `tabulated` writes state diagrams as tables: what draws them would come from another host.
* `outside` finds what a browser would fetch from another host when it opens a built page.

Not here: when mkdocs calls them (`deploy/site/hooks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(\))")
"""A relative link of a page: path, and the place in it."""

FENCE = re.compile(r"^(\s*)(```+|~~~+)(.*)$")
ITEM = re.compile(r"^( *)([*-]|\d+\.)( +)(?=\S)")
MERMAID = re.compile(r"(?ms)^```mermaid\n(.*?)^```$")
ARROW = re.compile(r"^\s*(.+?)\s*-->\s*(\S+?)(?::\s*(.+))?$")


def split(readme: str, apart: set[str]) -> tuple[str, str]:
    """Cut a page in two: what stays, and the sections of these titles.

    Args:
        readme: A page with sections of the second level.
        apart: Titles of the sections that are cut out.

    Returns:
        Both texts; the second begins with the first section.
    """
    parts = re.split(r"(?m)^(?=## )", readme)
    cut = [part for part in parts if part.partition("\n")[0].removeprefix("## ").strip() in apart]
    return "".join(part for part in parts if part not in cut), "".join(cut)


def relinked(text: str, place: Callable[[str, str], str]) -> str:
    """Return a page whose relative links are what ``place`` makes of path and anchor."""
    return LINK.sub(lambda m: m[1] + place(m[2], m[3] or "") + m[4], text)


def plain_lists(text: str) -> str:
    """Return a page whose lists nest by four columns and begin after an empty line."""
    made: list[str] = []
    fence = ""
    levels: list[tuple[int, int]] = []  # (column of the marker, column of its text)
    for line in text.split("\n"):
        width = len(line) - len(line.lstrip(" "))
        item = None if fence else ITEM.match(line)
        while levels and line.strip() and not fence and width < levels[-1][1]:
            if item and width >= levels[-1][0]:
                break
            if not item and made and made[-1].strip():
                break  # a lazy continuation of the item's paragraph
            levels.pop()
        opened = FENCE.match(line)
        if item:
            if levels and width >= levels[-1][1]:
                levels.append((width, item.end()))
            elif levels:
                levels[-1] = (width, item.end())
            else:
                if made and made[-1].strip() and not made[-1].startswith("#"):
                    made.append("")
                levels = [(width, item.end())]
            made.append(" " * 4 * (len(levels) - 1) + item[2] + " " + line[item.end() :])
        elif levels and line.strip():
            made.append(" " * 4 * len(levels) + line[min(width, levels[-1][1]) :])
        else:
            made.append(line)
        if opened and not fence:
            fence = opened[2]
        elif fence and line.strip() == fence:
            fence = ""
    return "\n".join(made)


def tabulated(text: str) -> str:
    """Return a page whose state diagrams are tables of moves."""

    def rows(drawn: re.Match[str]) -> str:
        moves = [found for line in drawn[1].splitlines() if (found := ARROW.match(line))]
        names = {"[*]": "(begin)"}
        return "\n".join(
            ["| from | to | when |", "|---|---|---|"]
            + [
                f"| {names.get(one[1], one[1])} | {names.get(one[2], one[2])} | {one[3] or ''} |"
                for one in moves
            ]
        )

    return MERMAID.sub(rows, text)


class _Fetched(HTMLParser):
    """Collects addresses that a browser fetches by itself; links that a reader follows are none."""

    LOADS = frozenset({"script", "link", "img", "iframe", "source", "video", "audio", "object"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        given = {name: value or "" for name, value in attrs}
        if tag in self.LOADS and given.get("rel") not in ("canonical", "prev", "next"):
            named = (given.get(name, "") for name in ("src", "href", "data", "srcset"))
            self.found += [each for each in named if re.match(r"(?:\w+:)?//", each)]
        if "mermaid" in given.get("class", "").split():
            self.found.append("mermaid")


def outside(name: str, text: str) -> list[str]:
    """Return what a browser would fetch from another host for a built file.

    Args:
        name: The name of the file; pages and style sheets are looked at.
        text: What it holds.
    """
    if name.endswith(".css"):
        return re.findall(r"(?:url\(|@import\s+)[\"']?((?:\w+:)?//[^\"')\s]+)", text)
    parser = _Fetched()
    parser.feed(text)
    return parser.found
