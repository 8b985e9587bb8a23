"""Drills as files: every shipped one is sound and documented, every mistake is named."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cli.drill.commands import ALL_SECONDS
from cli.drill.scenario import KINDS, find, parse, shipped
from cli.failures import Exit, Failure

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "drills.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_drill_is_sound_and_documented(name: str) -> None:
    """It has something that goes wrong, ends within its limit, and has a row in the page."""
    found = find(name)
    assert found.faults
    assert found.title
    assert found.seconds <= found.limit
    assert re.search(rf"^\| `{name}` \| .+ \| .+ \|$", PAGE, re.MULTILINE)


def test_the_page_names_no_other_drill() -> None:
    """A drill that is gone leaves its row."""
    section = PAGE.partition("## The drills")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)) == set(shipped())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_is_documented(kind: str) -> None:
    """In the table of the page."""
    section = PAGE.partition("## A drill of your own")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert any(f"`{kind}`" in row for row in rows)


def test_the_page_shows_a_sound_file() -> None:
    """The example is a drill."""
    text = PAGE.partition("## A drill of your own")[2].partition("```toml\n")[2].partition("```")[0]
    found = parse(text, "example")
    assert [fault.do for fault in found.faults] == ["cut", "disk-slow"]
    assert (found.rounds, found.promises.says) == (2, ("not-in-sync",))
    assert found.cluster.node == {"n2": {"storage.hot_memory": "64 MiB"}}


def test_all_drills_fit_into_their_time() -> None:
    """As far as their files say."""
    assert sum(find(name).seconds for name in shipped()) < ALL_SECONDS


def test_every_kind_is_used() -> None:
    """A fault that no drill has is one that nobody has seen."""
    used = {fault.do for name in shipped() for fault in find(name).faults}
    assert set(KINDS) - used == {"bandwidth", "failover"}


GOOD = """
[drill]
title = "a"

[[fault]]
do = "kill"
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('title = "a"', "", "needs a title"),
        ("[drill]", "[dril]", 'has no key "dril"'),
        ('do = "kill"', 'do = "kil"', 'the nearest is "kill"'),
        ('do = "kill"', 'do = "kill"\nat = 3', "has no unit"),
        ('do = "kill"', 'do = "kill"\nfrom = "n1"', "is not about a link"),
        ('do = "kill"', 'do = "delay"', "needs an amount"),
        ('do = "kill"', 'do = "kill"\namount = "1 s"', "takes no amount"),
        ('do = "kill"', 'do = "loss"\namount = 2', "is a share"),
        ('do = "kill"', 'do = "wipe"\nfor = "1 s"', "has no end"),
        ("[[fault]]", '[load]\nwriters = 0\n[[fault]]', "it can be 1 to 16"),
        ("[[fault]]", '[promise]\nlost = -1\n[[fault]]', "it can be 0 to"),
        ("[[fault]]", "[[fault", "is no TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(old: str, new: str, told: str) -> None:
    """With what is wrong with it, exit 78."""
    with pytest.raises(Failure) as caught:
        parse(GOOD.replace(old, new), "mine")
    lines = "\n".join(caught.value.lines())
    assert told in lines
    assert caught.value.exit is Exit.CONFIG


def test_several_mistakes_are_named_at_once() -> None:
    """Nobody mends a file one error at a time."""
    with pytest.raises(Failure) as caught:
        parse(GOOD.replace('title = "a"', "") + 'to = 5\nat = "x"\n', "mine")
    assert len(caught.value.more) == 2


def test_an_unknown_drill_names_the_nearest() -> None:
    """Exit 66."""
    with pytest.raises(Failure, match="no drill") as caught:
        find("kill-mastr")
    assert "kill-master" in caught.value.hints[0]


def test_a_node_may_have_settings_of_its_own() -> None:
    """And etcd may keep the register."""
    text = '[cluster]\ncoordinator = "etcd"\n[cluster.node.n2]\n"storage.flush" = "sync"\n'
    found = parse(GOOD + text, "mine").cluster
    assert (found.coordinator, found.node) == ("etcd", {"n2": {"storage.flush": "sync"}})


def test_any_is_no_limit() -> None:
    """For numbers and for durations."""
    found = parse(GOOD + '[promise]\nlost = "any"\nin_sync_within = "any"\n', "mine")
    plain = parse(GOOD, "mine").promises
    assert found.promises == replace(plain, lost_max=None, in_sync_within=None)
