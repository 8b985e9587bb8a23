"""The picture of the cluster that a node shows: what it asks, how often, and how long it may be."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.cluster import picture
from cli.cluster.picture import HISTORY_SHOWN, LISTED_MAX, TEXT_MAX, Pictures
from cli.context import Context
from cli.fields import Fields
from cli.options import Globals
from cli.render import Printer
from node.config.config import load
from tests.fakes.cli_cluster import CONFIG, GROUP, FakeCluster
from twinlog.errors import Unavailable
from twinlog.wire.frames import Type


class Cluster(FakeCluster):
    """Answers for topics and groups, too."""

    topics = 3
    groups = 2

    def ask(
        self, address: str, kind: int, fields: Mapping[str, object], timeout: float | None
    ) -> Fields:
        """As the process at ``address`` would."""
        if kind not in (Type.TOPIC, Type.GROUP):
            return super().ask(address, kind, fields, timeout)
        self.asked.append((address, Type(kind), fields))
        if Type(kind) in self.errors:
            raise self.errors[Type(kind)]
        if kind == Type.GROUP:
            return {"groups": [GROUP | {"name": f"g{n}"} for n in range(self.groups)], "more": None}
        names = [f"t{n:03}" for n in range(self.topics)] + ["rmq_sys_TWINLOG_META"]
        return {"topics": dict.fromkeys(names, 4), "messages": dict.fromkeys(names, 9)}


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def pictures(cluster: Cluster) -> tuple[Pictures, Clock]:
    """What makes pictures of a fake cluster, seen by n2."""
    path, clock = cluster.directory / "cluster.toml", Clock()
    path.write_text(CONFIG, encoding="utf-8")
    context = Context(
        printer=Printer(Globals(), io.StringIO(), io.StringIO()),
        environment={},
        question=lambda *asked: cluster.ask(*asked[:4]),
        clock=clock,
        wall_ms=lambda: 0,
    )
    return Pictures(load(path), "n2", context), clock


def made(pictures: Pictures) -> dict[str, Any]:
    """One picture."""
    found: dict[str, Any] = json.loads(pictures())
    return found


def test_a_picture_is_the_status_and_more(tmp_path: Path) -> None:
    """The same judgement and the same rows as the command's, with topics, groups and history."""
    cluster = Cluster(tmp_path)
    make, _ = pictures(cluster)
    found = made(make)
    status = json.loads(cluster.run("cluster", "status", "-o", "json")[1])
    assert (found["kind"], found["seen_by"]) == ("ClusterPicture", "n2")
    for key in ("cluster", "health", "problems", "nodes", "master", "epoch", "confirm_offset"):
        assert found[key] == status[key], key
    assert [one["topic"] for one in found["topics"]] == ["t000", "t001", "t002"]
    assert found["topics"][0] == {"topic": "t000", "queues": 4, "messages": 9}
    assert [one["group"] for one in found["groups"]] == ["g0", "g1"]
    assert (found["groups"][0]["lag"], found["more_groups"]) == (5, False)
    history = json.loads(cluster.run("cluster", "history", "-o", "json")[1])
    assert found["history"] == history["epochs"]


def test_what_costs_the_master_is_asked_seldom(tmp_path: Path) -> None:
    """Lists after their time, the history when there is a new epoch."""
    cluster = Cluster(tmp_path)
    make, clock = pictures(cluster)
    made(make)
    cluster.asked.clear()
    clock.now += picture.LISTS_SECONDS / 2
    made(make)
    kinds = {kind for _, kind, _ in cluster.asked}
    assert kinds == {Type.STATUS, Type.CO_READ, Type.CO_STATUS}
    clock.now += picture.LISTS_SECONDS
    cluster.become_master("n2")
    made(make)
    kinds = {kind for _, kind, _ in cluster.asked}
    assert {Type.TOPIC, Type.GROUP, Type.CO_HISTORY} < kinds


def test_what_is_known_stays_while_the_master_is_silent(tmp_path: Path) -> None:
    """A failed question shows the last answer, and is asked again."""
    cluster = Cluster(tmp_path)
    make, clock = pictures(cluster)
    cluster.errors[Type.CO_HISTORY] = Unavailable("gone")
    assert made(make)["history"] == []
    del cluster.errors[Type.CO_HISTORY]
    assert len(made(make)["history"]) == 2
    cluster.errors |= {Type.TOPIC: Unavailable("gone"), Type.GROUP: Unavailable("gone")}
    clock.now += 100.0
    assert len(made(make)["topics"]) == 3
    cluster.down = {"n1", "n2", "n3", "coordinator"}
    silent = made(make)
    assert (silent["health"], silent["nodes"], len(silent["history"])) == ("unavailable", [], 2)
    assert silent["problems"][0]["text"] == "no node of demo answers"


def test_a_picture_is_bounded(tmp_path: Path) -> None:
    """However many topics there are, and whatever a node says of itself."""
    cluster = Cluster(tmp_path)
    cluster.topics, cluster.groups = 500, 500
    cluster.nodes["n3"]["quarantined"] = "x" * 100_000
    cluster.nodes["n2"]["reasons"] = ["y" * 100_000]
    make, _ = pictures(cluster)
    text = make()
    found = json.loads(text)
    assert len(found["topics"]) == len(found["groups"]) == LISTED_MAX
    assert found["more_topics"]
    assert found["more_groups"]
    assert len(found["history"]) <= HISTORY_SHOWN
    assert all(len(one["text"]) <= TEXT_MAX for one in found["problems"])
    assert len(text) < 64 << 10
