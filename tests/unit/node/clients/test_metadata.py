"""HELLO and METADATA: who answers, where the others are, which topics exist."""

from __future__ import annotations

from collections.abc import Mapping

from node.clients.freshness import Freshness
from node.clients.metadata import PAGE_BYTES, page_of_topics
from tests.unit.node.clients.answering import Shelf, answers, made, of_master
from twinlog.wire import frames
from twinlog.wire.frames import Frame, Type


def test_hello_says_what_an_encoder_must_know() -> None:
    """Names, the length of store hosts, the size of a file."""
    hello = answers().metadata.hello()
    assert (hello["node"], hello["cluster"], hello["group"]) == ("n1", "c", "g1")
    assert (hello["family"], hello["segment_size"]) == (4, 1 << 20)


def test_metadata_of_all_topics_or_of_those_asked_for() -> None:
    """A topic that does not exist is simply not there; every node is, in order."""
    found = answers().metadata.metadata(None)
    assert found["topics"] == {"t": 2, "u": 1}
    assert (found["leader"], found["epoch"]) == ("n2", 7)
    nodes = found["nodes"]
    assert isinstance(nodes, list)
    assert [entry["name"] for entry in nodes] == ["n1", "n2", "n3"]
    assert answers().metadata.metadata({"u", "nobody"})["topics"] == {"u": 1}
    assert answers().metadata.metadata({"u", "nobody"})["batched"] == ["u"]
    assert answers().metadata.metadata({"t"})["batched"] == []


def test_topics_that_may_have_been_acknowledged_are_not_left_out_silently() -> None:
    """All topics are all that a master has confirmed, when its log has no others."""
    master = of_master()
    assert master.metadata.metadata(None)["settled"] is False
    assert master.metadata.metadata({"u", "nobody"})["settled"] is True
    assert answers().metadata.metadata({"u", "nobody"})["settled"] is False


def test_metadata_lists_epochs_that_hold_a_confirmed_byte() -> None:
    """An epoch whose first byte is not confirmed may still be cut."""
    assert answers().metadata.metadata(None)["epochs"] == [[3, 0], [7, 150]]


class ManyTopics(Shelf):
    """A store with more topics than fit a frame, each name as long as a name may be."""

    def topics(self) -> Mapping[str, int]:
        """Nine thousand, in no order."""
        return {f"topic-{number:06d}-".ljust(127, "x"): 1 for number in reversed(range(9000))}

    def topics_waiting(self) -> bool:
        """All are confirmed."""
        return False

    def batched(self) -> frozenset[str]:
        """The worst case: each name is listed twice."""
        return frozenset(self.topics())


def test_nine_thousand_long_topics_come_in_pages_that_fit_a_frame() -> None:
    """Together they have each topic once; METADATA of them in one piece could not be sent."""
    one = made(Freshness("n1", "master", 0.0, None, 8), "n1", ManyTopics()).metadata
    found: dict[str, int] = {}
    after = ""
    for _ in range(20):
        page = one.metadata(None, after)
        topics = page["topics"]
        assert isinstance(topics, dict)
        assert not found.keys() & topics.keys()
        found |= topics
        frames.encode(Frame(Type.METADATA, frames.ANSWER, fields=page))
        more = page.get("more")
        if more is None:
            break
        assert isinstance(more, str)
        after = more
    assert found == ManyTopics().topics()


def test_a_page_has_at_least_one_topic_and_the_last_one_no_more() -> None:
    """Asking for what comes after the last name is answered with an empty page."""
    assert page_of_topics({"b": 2, "a": 1}) == {"topics": {"a": 1, "b": 2}}
    assert page_of_topics({"b": 2, "a": 1}, "a") == {"topics": {"b": 2}}
    assert page_of_topics({"b": 2}, "b") == {"topics": {}}
    long = {"a" * (PAGE_BYTES + 1): 1, "b": 2}
    assert len(page_of_topics(long)["topics"]) == 1  # type: ignore[arg-type]
