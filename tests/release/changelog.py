"""The changelog of a release, composed: texts in, text out.

A release takes every fragment of ``docs/changes.d``, as towncrier renders them. An entry that was
begun by hand, ``## X.Y.Z (unreleased)``, stays the overview of that version, and what the fragments
say follows it as one section. So the first release has one entry.

Not here: which files these are (`tests.release.build`).
"""

from __future__ import annotations

import re

MARK = "<!-- towncrier release notes start -->"
"""Above the newest entry; what stands before it is kept."""

ENTRY = re.compile(r"(?m)^## (\S+) \(([^)]*)\)$")
"""The heading of an entry: version, and date or ``unreleased``."""

BEGUN = "unreleased"
DETAILS = """\
### In detail

For those who ran earlier states of this tree: what is new, and what is otherwise than it was.
"""


def entries(text: str) -> dict[str, str]:
    """Return the version of each entry of a changelog, with its date or ``unreleased``."""
    return dict(ENTRY.findall(text))


def faults(text: str, version: str, fragments: int) -> list[str]:
    """Say what keeps a changelog from getting an entry for a version; empty when nothing does.

    Args:
        text: The changelog.
        version: The version to release.
        fragments: How many fragments there are.
    """
    found: list[str] = []
    known = entries(text)
    if text.count(MARK) != 1:
        found.append(f"CHANGELOG.md must have the line {MARK} once")
    if known.get(version, BEGUN) != BEGUN:
        found.append(f"CHANGELOG.md has {version} of {known[version]}: take the next version")
    for other, date in known.items():
        if date == BEGUN and other != version:
            found.append(f"CHANGELOG.md has begun an entry for {other}, not for {version}")
    if not fragments and version not in known:
        found.append("docs/changes.d has no fragment: there is nothing to release")
    return found


def compose(text: str, version: str, date: str, rendered: str) -> str:
    """Return the changelog with the entry of a release.

    Args:
        text: The changelog, of which `faults` says nothing.
        version: The version to release.
        date: Its date, as ``2026-11-30``.
        rendered: What towncrier makes of the fragments: a heading, then a section for each type.

    Returns:
        The changelog in which this entry is the newest.
    """
    head, mark, rest = text.partition(MARK)
    sections = ENTRY.sub("", rendered, count=1).strip()
    begun = f"## {version} ({BEGUN})"
    title = f"## {version} ({date})"
    if begun in rest:
        before, _, after = rest.partition(begun)
        later = ENTRY.search(after)
        body, older = (after[: later.start()], after[later.start() :]) if later else (after, "")
        if sections:
            body = f"{body.rstrip()}\n\n{DETAILS}\n{sections.replace('### ', '#### ')}\n\n"
        return f"{head}{mark}{before}{title}{body}{older}".rstrip() + "\n"
    return f"{head}{mark}\n\n{title}\n\n{sections}\n{rest}".rstrip() + "\n"
