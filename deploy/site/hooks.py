"""Hooks of mkdocs: pages from outside ``docs``, links to sources, and nothing from other hosts.

Not here: what happens to a text (`deploy/site/pages.py`), which pages there are (``mkdocs.yml``).
"""

from __future__ import annotations

import importlib.util
import posixpath
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[2]
_found = importlib.util.spec_from_file_location("site_pages", Path(__file__).with_name("pages.py"))
assert _found and _found.loader
pages = importlib.util.module_from_spec(_found)
_found.loader.exec_module(pages)

TRY_IT = {"Try it", "A cluster of your own"}
FIRST = "try-it"
"""Sections of the README that are a page of their own, and its name."""

MOVED = {"README.md": "index", "docs/README.md": "pages", "CHANGELOG.md": "changelog"}
"""Files of the tree whose page has another name on the site."""

DOORS = (
    "**[Try it](README.md#try-it)** · [install](docs/install.md) · [promises](docs/guarantees.md)"
)
"""Where the opening page points to, as the README would write it."""

STYLE = "deploy/site/site.css"
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}


def on_config(config: Any) -> Any:
    """Give headings the anchors that links within the tree use."""
    config.mdx_configs["toc"] = {"permalink": True, "slugify": slugify(case="lower")}
    return config


def address(source: str) -> str:
    """Return the page of the site that shows a file of the tree, both as paths from their root."""
    if source in MOVED:
        return f"{MOVED[source]}.md"
    if source.startswith("docs/") and source.endswith(".md"):
        return source.removeprefix("docs/")
    return f"source/{source}.md"


def placed(text: str, source: str, page: str, shown: set[str]) -> str:
    """Return a file's text as the page of the site: links go to pages.

    Args:
        text: What the file holds.
        source: The file, from the root of the tree.
        page: Its page, from the root of the site.
        shown: Gets the files outside ``docs`` that a link names.
    """

    def place(path: str, anchor: str) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / target).is_file():
            return path + anchor  # the strict build says what is wrong with it
        found = address(target)
        if target == "README.md" and anchor.lstrip("#") in {
            title.lower().replace(" ", "-") for title in TRY_IT
        }:
            found = f"{FIRST}.md"
        if found.startswith("source/"):
            shown.add(target)
        return posixpath.relpath(found, posixpath.dirname(page) or ".") + anchor

    return str(pages.tabulated(pages.plain_lists(pages.relinked(text, place))))


def made(config: Any, page: str, text: str) -> File:
    """Return a page that has no file in ``docs``."""
    level = InclusionLevel.NOT_IN_NAV if page.startswith("source/") else InclusionLevel.UNDEFINED
    return File.generated(config, page, content=text, inclusion=level)


def on_files(files: Files, config: Any) -> Files:
    """Read every page once; add the README as the first ones, the changelog, and shown sources."""
    shown: set[str] = set()
    kept: list[File] = []
    for file in files:
        if file.is_documentation_page() and file.inclusion is not InclusionLevel.EXCLUDED:
            source = f"docs/{file.src_uri}"
            text = (ROOT / source).read_text(encoding="utf-8")
            file = made(config, address(source), placed(text, source, address(source), shown))
        kept.append(file)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    about, first = pages.split(readme, TRY_IT)
    about = about.replace("\n## ", f"\n{DOORS}\n\n## ", 1)
    lead = "# Try it and start a cluster\n\n"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for page, source, text in (
        (address("README.md"), "README.md", about),
        (f"{FIRST}.md", "README.md", lead + first),
        (address("CHANGELOG.md"), "CHANGELOG.md", changes),
    ):
        kept.append(made(config, page, placed(text, source, page, shown)))
    style = (ROOT / STYLE).read_text(encoding="utf-8")
    kept.append(File.generated(config, "site.css", content=style))
    for name in sorted(shown):
        text = (ROOT / name).read_text(encoding="utf-8")
        language = LANGUAGES.get(Path(name).suffix, "text")
        kept.append(made(config, address(name), f"# {name}\n\n~~~~{language}\n{text}\n~~~~\n"))
    return Files(kept)


def on_post_build(config: Any) -> None:
    """End the build when a page would fetch something from another host."""
    folder = Path(config.site_dir)
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".html", ".css"):
            found = pages.outside(path.name, path.read_text(encoding="utf-8"))
            if found:
                raise PluginError(f"{path.relative_to(folder)} fetches {found[0]}")
