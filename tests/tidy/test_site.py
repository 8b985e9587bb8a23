"""The documentation site: each page is in its contents once, and what is made of a page.

Not here: the site itself. ``make site`` builds it, and ends on a link that points nowhere and on
anything that a browser would fetch from another host.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = {"index", "pages", "try-it", "changelog"}
"""Pages that the hooks make: of the README, of the table of pages, of the changelog."""

TABS = [
    "What it is", "Try it", "Install", "Concepts", "Python", "Operate", "RocketMQ", "Spark",
    "Reference", "How we check",
]  # fmt: skip


def load() -> Any:
    """The functions that the hooks of the site use."""
    found = importlib.util.spec_from_file_location("pages", ROOT / "deploy" / "site" / "pages.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


pages = load()


def leaves(contents: object) -> list[str]:
    """Every page of a table of contents."""
    match contents:
        case str():
            return [contents]
        case list():
            return [leaf for each in contents for leaf in leaves(each)]
        case dict():
            return [leaf for each in contents.values() for leaf in leaves(each)]
    raise AssertionError(contents)


def test_every_page_is_in_the_contents_once() -> None:
    """A new page has a place there; none stands twice; none is gone."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = Counter(leaves(config["nav"]))
    there = {
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if "changes.d" not in path.parts and path != DOCS / "README.md"
    }
    assert listed == Counter(there | {f"{name}.md" for name in MADE})
    assert [next(iter(tab)) for tab in config["nav"]] == TABS
    assert config["theme"]["font"] is False and "repo_url" not in config


def test_a_list_is_indented_by_four_for_each_level() -> None:
    """Python-Markdown takes two or three columns for a paragraph of the level above."""
    page = "So:\n* one\n  more\n  * inner\n    - deep\n* two\n\n  apart\n\nafter\n"
    assert pages.plain_lists(page) == (
        "So:\n\n* one\n    more\n    * inner\n        - deep\n* two\n\n    apart\n\nafter\n"
    )
    numbered = "1. one\n\n   ```toml\n   [a]\n     b = 1\n   ```\n2. two\n"
    assert pages.plain_lists(numbered) == (
        "1. one\n\n    ```toml\n    [a]\n      b = 1\n    ```\n2. two\n"
    )


def test_what_looks_like_a_list_in_a_fence_stays() -> None:
    """Output of a command is shown as it is."""
    page = "text\n```\n* a\n  - b\n```\n"
    assert pages.plain_lists(page) == page


def test_links_of_a_page_become_links_of_the_site() -> None:
    """Those to other hosts and to places of the same page stay."""
    page = "[a](../b.py), [c](page.md#e), [f](#g), [h](http://localhost:1/)"
    found = pages.relinked(page, lambda path, anchor: f"<{path}{anchor}>")
    assert found == "[a](<../b.py>), [c](<page.md#e>), [f](#g), [h](http://localhost:1/)"


def test_sections_are_cut_out_whole() -> None:
    """Nothing is lost, and subsections go with their section."""
    kept, cut = pages.split("# T\n\n## A\n\na\n\n### B\n\n## C\n\nc\n", {"A"})
    assert (kept, cut) == ("# T\n\n## C\n\nc\n", "## A\n\na\n\n### B\n\n")


def test_every_move_of_a_diagram_is_a_row() -> None:
    """The site draws nothing: what draws would come from another host."""
    source = (DOCS / "state-machines.md").read_text(encoding="utf-8")
    made = pages.tabulated(source)
    assert "mermaid" not in made
    assert made.count("\n| ") == source.count(" --> ") + source.count("```mermaid")


def test_what_a_browser_fetches_elsewhere_is_found() -> None:
    """Scripts, styles, pictures and frames; what a reader may click is no fetch."""
    away = "//host.example/x"
    for page in (f'<script src="https:{away}">', f'<link rel="stylesheet" href="{away}">',
                 f'<img src="http:{away}">', '<pre class="mermaid">'):  # fmt: skip
        assert pages.outside("a.html", page), page
    assert pages.outside("a.css", f"@import url(https:{away})") == [f"https:{away}"]
    assert pages.outside("a.html", f'<a href="https:{away}">') == []
    assert pages.outside("a.css", "a { background: url('data:image/svg+xml,<svg/>') }") == []
