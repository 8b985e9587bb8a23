"""Exit codes: what a script may rely on, one row each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.app import unwrap
from cli.failures import EXITS, UNKNOWN_AGE_MS, Exit, describe, exit_of
from cli.help.pages import reference
from tests.fakes.cli_cluster import FakeCluster
from twinlog import errors
from twinlog.client.search import message_at
from twinlog.wire.frames import Frame, Type
from twinlog.wire.schema import AGE_UNKNOWN_MS

ROOT = Path(__file__).parents[3]


def message_error(status: str) -> errors.UsageError:
    """What `message get log@4097` ends with when the node answers GET with ``status``."""
    with pytest.raises(errors.UsageError) as caught:
        message_at(Frame(Type.GET, fields={"status": status, "stored_by": "h:1"}), 4097)
    return caught.value


ERRORS = [
    (errors.OutcomeUnknown("no answer"), Exit.UNKNOWN),
    (errors.CorruptionError("bad bytes"), Exit.DATA),
    (errors.RecordRefused("record 3 is too large"), Exit.DATA),
    (errors.UnknownTopic("there is no topic orders"), Exit.MISSING),
    (errors.QuotaReached("the quota is used up", retry_after_ms=5), Exit.UNAVAILABLE),
    (errors.TopicClosed("topic orders may not be written"), Exit.USAGE),
    (errors.OffsetGone("before the start", start=5), Exit.MISSING),
    (errors.OffsetBeyond("past the end", end=5), Exit.MISSING),
    (message_error("none"), Exit.MISSING),
    (message_error("other-host"), Exit.USAGE),
    (errors.Denied("not yours"), Exit.DENIED),
    (errors.UsageError("it makes no sense"), Exit.USAGE),
    (errors.UnavailableError("open of x: EACCES", errno=13), Exit.DENIED),
    (errors.UnavailableError("open of x: EIO", errno=5), Exit.UNAVAILABLE),
    (errors.UnavailableError("x: EEXIST", errno=17, op="open.make-dir", path="x"), Exit.CONFIG),
    (errors.UnavailableError("x: ENOTDIR", errno=20, op="open.make-dir", path="x"), Exit.CONFIG),
    (errors.Unavailable("no answer"), Exit.UNAVAILABLE),
    (errors.NotMaster("n2 is a slave", leader="n1", host="h", port=1), Exit.UNAVAILABLE),
    (errors.NotEnoughInSync("1 of 2"), Exit.UNAVAILABLE),
    (errors.ProtocolError("not ours"), Exit.UNAVAILABLE),
    (FileNotFoundError(2, "No such file", "x.csv"), Exit.MISSING),
    (PermissionError(13, "Permission denied", "x"), Exit.DENIED),
    (KeyboardInterrupt(), Exit.INTERRUPTED),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_ends_with_its_code(error: BaseException, code: Exit, tmp_path: Path) -> None:
    """Every known error has a text and one exit code; none shows a trace."""
    failure = describe(error)
    assert failure is not None
    assert failure.exit is code
    if isinstance(error, errors.TwinlogError):
        cluster = FakeCluster(tmp_path, errors={Type.CO_HISTORY: error})
        got, out, err = cluster.run("cluster", "history")
        assert (got, out) == (code, "")
        assert error.text in err
        assert "Traceback" not in err


@pytest.mark.parametrize("command", ["status", "health"])
def test_a_cluster_that_does_not_tell_who_asks_is_not_called_dead(
    command: str, tmp_path: Path
) -> None:
    """Nodes that answer and refuse are not nodes that are gone: their state is not known."""
    denied = errors.Denied("this cluster asks who you are", code="login", hint="log in")
    cluster = FakeCluster(tmp_path, errors={Type.STATUS: denied})
    got, out, err = cluster.run("cluster", command)
    assert (got, out) == (int(Exit.DENIED), "")
    assert "asks who you are" in err
    assert "no master" not in err


@pytest.mark.parametrize(
    ("age_ms", "facts"), [(0, ()), (1500, ("age: 1.5 s",)), (AGE_UNKNOWN_MS, ("age: unknown",))]
)
def test_an_error_tells_the_age_of_what_it_is_based_on(age_ms: int, facts: tuple[str]) -> None:
    """As a duration; a master's word has none."""
    failure = describe(errors.OffsetBeyond("there is no queue 99", age_ms=age_ms))
    assert failure is not None
    assert failure.facts == facts
    assert UNKNOWN_AGE_MS == AGE_UNKNOWN_MS


WORDS = [
    ([], Exit.USAGE),
    (["--help"], Exit.OK),
    (["help", "exit"], Exit.OK),
    (["topic", "--help"], Exit.OK),
    (["topic", "list", "--help"], Exit.OK),
    (["--version"], Exit.OK),
    (["nonsense"], Exit.USAGE),
    (["topic"], Exit.USAGE),
    (["topic", "nonsense"], Exit.USAGE),
    (["topic", "list", "--nonsense"], Exit.USAGE),
    (["topic", "list", "too", "much"], Exit.USAGE),
    (["topic", "create"], Exit.USAGE),
    (["topic", "create", "x", "--queues", "many"], Exit.USAGE),
    (["cluster", "status", "-o", "tabel"], Exit.USAGE),
    (["cluster", "status", "--timeout", "10 parsecs"], Exit.USAGE),
    (["cluster", "status", "-o"], Exit.USAGE),
    (["cluster", "status"], Exit.OK),
    (["cluster", "status", "-c", "missing.toml"], Exit.MISSING),
    (["node", "show", "n9"], Exit.MISSING),
    (["node", "start", "n9"], Exit.MISSING),
    (["cluster", "failover"], Exit.USAGE),
    (["cluster", "switchover", "--to", "n3", "--yes"], Exit.UNAVAILABLE),
    (["cluster", "failover", "--to", "n3", "--yes"], Exit.UNAVAILABLE),
    (["coordinator", "adopt", "--yes"], Exit.NO),
    (["message", "send", "x", "--body", "a", "--lines"], Exit.USAGE),
    (["message", "get", "nonsense"], Exit.USAGE),
    (["message", "read", "x", "--format", "%z"], Exit.USAGE),
    (["dev", "status", "--data", "nowhere"], Exit.NO),
    (["dev", "kill", "n1", "--data", "nowhere"], Exit.UNAVAILABLE),
]


@pytest.mark.parametrize(("words", "code"), WORDS, ids=lambda value: " ".join(map(str, value))
                         if isinstance(value, list) else value.name)  # fmt: skip
def test_a_call_ends_with_its_code(words: list[str], code: Exit, tmp_path: Path) -> None:
    """What the call says decides the exit code, before anything else happens."""
    cluster = FakeCluster(tmp_path)
    cluster.client = cluster_client()
    got, _, err = cluster.run(*words)
    assert got == code, err
    assert "Traceback" not in err


def test_a_wrong_filter_is_shown_with_a_caret(tmp_path: Path) -> None:
    """Before anybody is asked: text, the place, and a hint."""
    cluster = FakeCluster(tmp_path)
    cluster.client = cluster_client()
    got, _, err = cluster.run("message", "read", "orders", "--where", "price like 'x%'")
    assert got == Exit.USAGE
    assert err.splitlines() == [
        'error: filter, character 7: expected AND, OR or the end, found "like"',
        "  price like 'x%'",
        "        ^",
        "  hint: there is no LIKE: use CONTAINS, STARTSWITH or ENDSWITH",
    ]


def cluster_client() -> object:
    """A client that no refused call may come to use."""

    class Unused:
        def __enter__(self) -> Unused:
            return self

        def __exit__(self, *_: object) -> None:
            return None

    return Unused()


def test_mistakes_in_the_file_are_told_all_at_once(tmp_path: Path) -> None:
    """Exit 78; each mistake with its line and the nearest word."""
    (tmp_path / "cluster.toml").write_text(
        '[cluster]\nname = "demo"\n[[node]]\nname = "n1"\naddress = "127.0.0.1"\n'
        'role = "mastre"\n[storage]\nsegment_size = "64MBB"\n',
        encoding="utf-8",
    )
    code, out, err = FakeCluster(tmp_path).run("config", "check")
    assert code == Exit.CONFIG
    assert out == ""
    assert "cluster.toml:6" in err
    assert "cluster.toml:8" in err
    assert 'the nearest is "master"' in err


def test_a_bug_names_a_file_and_shows_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error ends with 70; the trace is in the file that is named."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cluster = FakeCluster(tmp_path)
    cluster.nodes["n1"]["peers"] = 0
    monkeypatch.setattr("cli.cluster.status.status_answer", lambda *_: 1 // 0)
    code, _, err = cluster.run("cluster", "status")
    assert code == Exit.BUG
    assert "Traceback" not in err
    reports = list(tmp_path.glob("twinlog-bug-*.txt"))
    assert len(reports) == 1
    assert str(reports[0]) in err
    assert "ZeroDivisionError" in reports[0].read_text(encoding="utf-8")


def test_nobody_is_asked_where_nobody_can_answer(tmp_path: Path) -> None:
    """Without a terminal a question is refused, and nothing was changed."""
    cluster = FakeCluster(tmp_path)
    code, _, err = cluster.run("cluster", "switchover", "--to", "n2")
    assert code == Exit.USAGE
    assert "--yes" in err
    assert not [asked for asked in cluster.asked if asked[1] is Type.ADMIN]


@pytest.mark.parametrize(("answer", "code"), [("y\n", Exit.OK), ("\n", Exit.NO), ("n\n", Exit.NO)])
def test_a_question_on_a_terminal(answer: str, code: Exit, tmp_path: Path) -> None:
    """Only yes is yes."""
    cluster = FakeCluster(tmp_path)
    got, _, _ = cluster.run("cluster", "switchover", "--to", "n2", stdin=answer, terminal=True)
    assert got == code


def test_an_order_without_an_answer_is_looked_up(tmp_path: Path) -> None:
    """The request was sent and no answer came: the cluster is asked until it is known."""
    cluster = FakeCluster(tmp_path, down={"n1"})
    cluster.become_master("n2")
    cluster.nodes["n2"]["epoch"] = 7
    assert cluster.state is not None
    cluster.state = {**cluster.state, "epoch": 7, "leader": "n1"}
    cluster.errors = {Type.CO_CALL: errors.OutcomeUnknown("no answer")}
    code, _, err = cluster.run("cluster", "failover", "--to", "n2", "--yes", "--timeout", "300 ms")
    assert code == Exit.UNKNOWN, err
    assert err.splitlines()[-3].startswith("unknown: ")


def test_a_node_that_is_silent_may_run(tmp_path: Path) -> None:
    """Where nothing listens nothing runs; a silent node may be paused or cut off."""
    cluster = FakeCluster(tmp_path, down={"n3"}, silent={"n2"})
    code, out, _ = cluster.run("node", "stop", "n3")
    assert (code, "n3: not running" in out) == (Exit.OK, True)
    code, out, err = cluster.run("node", "stop", "n2")
    assert (code, out) == (Exit.UNDECIDED, "")
    assert err.startswith("error: n2 does not answer, so it is unknown whether it runs")


@pytest.mark.parametrize("verb", ["read", "tail", "get", "find"])
def test_a_node_that_is_none_is_not_waited_for(verb: str, tmp_path: Path) -> None:
    """The cluster file says so at once; exit 66 as for every unknown name."""
    cluster = FakeCluster(tmp_path, client=cluster_client())
    words = {"get": ["orders/0@1"], "find": ["orders", "--key", "k1"]}.get(verb, ["orders"])
    code, _, err = cluster.run("message", verb, *words, "--from", "n9")
    assert code == Exit.MISSING
    assert '"n9"' in err
    no_node = errors.UsageError("there is no node n9", code="unknown-node")
    assert exit_of(no_node) is Exit.MISSING


def test_the_table_of_exit_codes_is_complete() -> None:
    """Every code has its line in the table and in the reference page."""
    assert set(EXITS) == set(Exit)
    page = reference()
    for code in Exit:
        assert f"| {int(code)} | {code.name.lower()} |" in page


@pytest.mark.parametrize(
    "words", [["cluster", "status"], ["cluster", "failover", "--yes"], ["cluster", "history"]]
)
def test_ctrl_c(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 130 wherever it strikes; what is left running is said, no trace is shown."""
    cluster = FakeCluster(tmp_path)

    def interrupted(*_: object) -> dict[str, object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "ask", interrupted)
    code, out, err = cluster.run(*words)
    assert (code, out) == (Exit.INTERRUPTED, "")
    assert err == "interrupted: stopped by Ctrl-C\n  this command left nothing running\n"


@pytest.mark.parametrize(
    ("facts", "who"), [({"node": "n3"}, "n3 of demo"), ({"cluster": "other"}, "n2 of other")]
)
def test_a_node_at_anothers_address_is_not_taken_for_it(
    facts: dict[str, str], who: str, tmp_path: Path
) -> None:
    """Addresses mixed up, or of another cluster: nothing is reported or done as n2."""
    cluster = FakeCluster(tmp_path)
    cluster.nodes["n2"] |= facts
    code, out, _ = cluster.run("cluster", "status")
    assert code == Exit.OK
    assert f"n2 is unreachable: 127.0.0.1:7420 is {who}" in out
    code, _, err = cluster.run("node", "stop", "n2", "--yes")
    assert code == Exit.UNDECIDED
    assert f"127.0.0.1:7420 is {who}" in err
    code, _, err = cluster.run("cluster", "switchover", "--to", "n2", "--yes")
    assert code == Exit.UNAVAILABLE
    assert f"127.0.0.1:7420 is {who}" in err


def test_a_cluster_of_ipv6_addresses(tmp_path: Path) -> None:
    """Every node and the coordinator are asked at their addresses, which need brackets."""
    cluster = FakeCluster(tmp_path, host="::1")
    code, out, _ = cluster.run("cluster", "status", "-o", "json")
    assert code == Exit.OK
    assert [node["address"] for node in json.loads(out)["nodes"]] == [
        "[::1]:7410", "[::1]:7420", "[::1]:7430",
    ]  # fmt: skip
    assert {name for name, _, _ in cluster.asked} == {"coordinator", "n1", "n2", "n3"}
    assert errors.NotMaster("x", host="::1", port=7410).address == "[::1]:7410"


@pytest.mark.parametrize("words", [["send"], ["send", "--prepared"], ["replicate"]])
@pytest.mark.parametrize("option", ["--size", "--batch"])
def test_a_bench_does_not_fill_the_memory(words: list[str], option: str, tmp_path: Path) -> None:
    """What no node would take is refused before it is made, and before a topic is."""
    cluster = FakeCluster(tmp_path)
    code, _, err = cluster.run("bench", *words, option, "4097 KiB")
    assert code == Exit.USAGE
    assert f"{option} is 4097 KiB; at most 4 MiB" in err
    assert not cluster.asked


def test_nobody_to_switch_to_is_said_plainly(tmp_path: Path) -> None:
    """No slave answers."""
    code, _, err = FakeCluster(tmp_path, down={"n2", "n3"}).run("cluster", "switchover", "--yes")
    assert code == Exit.UNAVAILABLE
    assert err.startswith("error: no slave is in sync, so a switchover could lose records")


def test_a_failover_to_the_master_changes_nothing(tmp_path: Path) -> None:
    """It is not told that the master was deposed, and the coordinator is not asked."""
    cluster = FakeCluster(tmp_path, errors={Type.CO_CALL: errors.Unavailable("it was asked")})
    for more in ((), ("--dry-run",)):
        code, out, err = cluster.run("cluster", "failover", "--to", "n1", "--yes", *more)
        assert code == Exit.OK
        assert "n1 is master already" in err
        assert "is cut" not in err
        assert "master n1" in out


def test_a_failover_without_a_successor_does_not_ask_to_start_the_master(tmp_path: Path) -> None:
    """The master runs; what the others lack is the news."""
    cluster = FakeCluster(tmp_path, down={"n2"})
    code, _, err = cluster.run("cluster", "failover", "--yes")
    assert code == Exit.UNAVAILABLE
    assert err.startswith("error: n1 is master and answers, and no other node")
    assert "start one of them" not in err
    assert "n2: " in err


def test_candidates_are_not_given_away(tmp_path: Path) -> None:
    """Needing fewer in sync while the last one of the set is dead would leave no candidate."""
    cluster = FakeCluster(tmp_path, down={"n1"})
    cluster.state = {**(cluster.state or {}), "isr": {"n1": 3}, "elr": {"n2": 4}}
    code, _, err = cluster.run("cluster", "set", "in_sync_min", "1", "--yes")
    assert code == Exit.UNAVAILABLE
    assert "now n2 could, too" in err
    assert "cluster failover" in err
    assert cluster.run("cluster", "set", "in_sync_min", "3", "--yes")[0] == Exit.OK
    cluster.down = set()
    assert cluster.run("cluster", "set", "in_sync_min", "1", "--yes")[0] == Exit.OK


@pytest.mark.parametrize(
    ("down", "words", "elected", "code"),
    [
        ({"n1"}, (), "n2", Exit.OK),
        ({"n1"}, ("--to", "n3"), "n2", Exit.UNAVAILABLE),
        (set[str](), (), "n2", Exit.UNAVAILABLE),
    ],
    ids=["no master", "another was named", "a master was deposed meanwhile"],
)
def test_a_failover_that_comes_second(
    down: set[str], words: tuple[str, ...], elected: str, code: Exit, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The coordinator elected by itself while a person decided: the wish is fulfilled, or not."""
    cluster = FakeCluster(tmp_path, down=down)

    def refused(operation: object) -> dict[str, object]:
        cluster.become_master(elected)
        return {"ok": False, "code": "other-epoch", "text": "the newest is of n2"}

    monkeypatch.setattr(cluster, "on_call", refused)
    got, out, err = cluster.run("cluster", "failover", *words, "--yes")
    assert got == code, err
    assert ("n2 was elected meanwhile" in err) is (code == Exit.OK)
    assert ("master n2" in out) is (code == Exit.OK)


def test_ctrl_c_while_a_change_settles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order went out: what may still happen is said."""
    cluster = FakeCluster(tmp_path, down={"n1"})
    asked = cluster.on_call

    def ordered(operation: object) -> dict[str, object]:
        answer = asked(operation)
        monkeypatch.setattr(cluster, "nodes", Interrupting())
        return answer

    monkeypatch.setattr(cluster, "on_call", ordered)
    code, _, err = cluster.run("cluster", "failover", "--yes")
    assert code == Exit.INTERRUPTED
    assert "may still happen" in err


class Interrupting(dict[str, dict[str, object]]):
    """Ctrl-C strikes when a node is asked."""

    def __getitem__(self, key: str) -> dict[str, object]:
        raise KeyboardInterrupt


def test_ctrl_c_inside_a_task_group() -> None:
    """An interrupt among other errors is an interrupt."""
    group = BaseExceptionGroup("x", [ValueError(), BaseExceptionGroup("y", [KeyboardInterrupt()])])
    assert isinstance(unwrap(group), KeyboardInterrupt)
    alone = BaseExceptionGroup("x", [BaseExceptionGroup("y", [ValueError("why")])])
    assert str(unwrap(alone)) == "why"
    both = BaseExceptionGroup("x", [ValueError(), ValueError()])
    assert unwrap(both) is both
