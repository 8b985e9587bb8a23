"""``cluster.toml``: everything wrong is told at once, everything right knows where it came from."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.config.config import ClusterConfig, ConfigError, load
from node.config.layer_settings import log_folders
from node.config.pages import Local, local_text, reference, shown, write_local
from twinlog.session.tls_files import EtcdShown, Tls

GOLDEN = Path(__file__).with_name("golden")

TWO_NODES = """\
[cluster]
name = "demo"
[[node]]
name = "n1"
address = "127.0.0.1"
role = "master"
[node.listen]
clients = 0
slaves = 0
http = 0
[[node]]
name = "n2"
address = "127.0.0.1"
[node.listen]
clients = 0
slaves = 0
http = 0
"""


def written(tmp_path: Path, text: str) -> Path:
    """The text as a file."""
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return path


def read(
    tmp_path: Path, text: str, env: dict[str, str] | None = None, **flags: object
) -> ClusterConfig:
    """The checked settings; flags with ``__`` for the dot."""
    overrides = {name.replace("__", "."): value for name, value in flags.items()}
    return load(written(tmp_path, text), env or {}, overrides)


def mistakes(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> list[str]:
    """Every mistake as ``line text | hint``."""
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), env or {}, {})
    return [f"{m.place} {m.text} | {m.hint}" for m in caught.value.mistakes]


def test_every_mistake_is_told_at_once_in_the_files_order(tmp_path: Path) -> None:
    """One look at the screen is enough to mend the whole file."""
    path = tmp_path / "cluster.toml"
    path.write_bytes((GOLDEN / "mistakes.toml").read_bytes())
    env = {"TWINLOG_STORAGE_FLSH": "x", "TWINLOG_LOG_LEVEL": "loud", "TWINLOG_NODE": "n1"}
    with pytest.raises(ConfigError) as caught:
        load(path, env, {"read.from": "nobody"})
    assert caught.value.render() == (GOLDEN / "mistakes.txt").read_text(encoding="utf-8").rstrip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[cluster\n",
            "cluster.toml:1 this is not TOML: "
            "expected ']' at the end of a table declaration | None",
        ),
        (
            '[cluster]\nname = "x"\n',
            "cluster.toml no [[node]] is defined | add one: [[node]] with name and address",
        ),
        (
            "cluster = 3\n",
            "cluster.toml:1 cluster is not a section | write it as [cluster] or leave it out",
        ),
        (
            '[node]\nname = "n1"\n',
            "cluster.toml:1 node is one table for each node | write it as [[node]]",
        ),
    ],
)
def test_texts_that_are_no_cluster_file(tmp_path: Path, text: str, expected: str) -> None:
    """Whatever the file holds, the answer is a sentence with a line, never a trace."""
    assert expected in mistakes(tmp_path, text)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "cluster.toml", {}, {})
    assert caught.value.hint == "make one: twinlog config init --local"


def test_bytes_that_are_no_text_are_told_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_bytes(b"[cluster]\n\xff")
    with pytest.raises(ConfigError, match="byte 10 is not UTF-8"):
        load(tmp_path / "cluster.toml", {}, {})


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """``config show`` can say for each value which of the four it was."""
    text = TWO_NODES + '[storage]\nflush = "async"\nflush_interval = "100 ms"\n'
    env = {"TWINLOG_STORAGE_FLUSH": "sync", "TWINLOG_STORAGE_MESSAGE_SIZE_MAX": "1 MiB"}
    found = read(tmp_path, text, env, storage__message_size_max="2 MiB")
    storage = found.node("n2").storage
    assert (storage.flush, storage.flush_interval, storage.message_size_max) == (
        "sync",
        0.1,
        2 << 20,
    )
    assert str(found.origins["storage.flush"]) == "TWINLOG_STORAGE_FLUSH"
    assert str(found.origins["storage.flush_interval"]) == "cluster.toml:20"
    assert str(found.origins["storage.message_size_max"]) == "--set storage.message_size_max"
    assert str(found.origins["storage.segment_size"]) == "default"


def test_a_node_differs_only_where_it_says_so(tmp_path: Path) -> None:
    text = TWO_NODES.replace("http = 0\n", "http = 0\n[node.storage]\nflush = 'sync'\n", 1)
    found = read(tmp_path, text)
    assert (found.node("n1").storage.flush, found.node("n2").storage.flush) == ("sync", "async")
    assert found.origins["n1.storage.flush"].line == 12
    assert "n2.storage.flush" not in found.origins


def test_the_environment_beats_a_nodes_own_section(tmp_path: Path) -> None:
    text = TWO_NODES + '[node.storage]\nflush = "async"\n'
    found = read(tmp_path, text, {"TWINLOG_STORAGE_FLUSH": "sync"})
    assert found.node("n2").storage.flush == "sync"


@pytest.mark.parametrize(
    ("lines", "mistake"),
    [
        (
            'kind = "etcd"',
            'cluster.toml:19 kind is "etcd", but no member is named | '
            'etcd = ["10.0.0.1:2379", ...]',
        ),
        (
            'kind = "embedded"\netcd = ["127.0.0.1:2379"]',
            'cluster.toml:19 etcd has addresses, but kind is "embedded" | set kind = "etcd"',
        ),
        (
            'kind = "etcd"\netcd = ["127.0.0.1"]',
            'cluster.toml:20 "127.0.0.1" is not HOST:PORT | write it like "10.0.0.1:7400"',
        ),
        (
            'kind = "etcd"\netcd = ["10.0.0.1:2379"]',
            "cluster.toml:20 the coordinator would speak to etcd at 10.0.0.1 without encryption | "
            "set etcd_authority, or insecure = true under [listen] in a trusted network",
        ),
        (
            'kind = "etcd"\netcd = ["127.0.0.1:2379"]\netcd_user = "u"',
            "cluster.toml:21 etcd_user needs etcd_password_file | set etcd_password_file",
        ),
        (
            'kind = "etcd"\netcd = ["127.0.0.1:2379"]\netcd_certificate = "c"',
            "cluster.toml:21 etcd_certificate needs etcd_authority | set etcd_authority",
        ),
        (
            'etcd_authority = "a"',
            "cluster.toml:19 etcd_authority is set, and no member of etcd | leave it out",
        ),
    ],
)
def test_etcd_is_named_if_and_only_if_it_keeps_the_register(
    tmp_path: Path, lines: str, mistake: str
) -> None:
    assert mistakes(tmp_path, f"{TWO_NODES}[coordinator]\n{lines}\n") == [mistake]


def test_each_coordinator_with_etcd_has_a_folder_of_its_own(tmp_path: Path) -> None:
    lines = 'kind = "etcd"\netcd = ["[::1]:2379"]\nendpoints = ["127.0.0.1:1", "127.0.0.1:2"]'
    found = read(tmp_path, f"{TWO_NODES}[coordinator]\n{lines}\n").coordinator
    assert found.etcd == (("::1", 2379),)
    assert {name: folder.name for name, folder in found.folders().items()} == {
        "coordinator": "coordinator",
        "coordinator-2": "coordinator-2",
    }


def test_facts_of_the_group_may_not_differ(tmp_path: Path) -> None:
    text = TWO_NODES + '[node.replication]\nack = "durable"\n'
    expected = (
        "cluster.toml:19 ack is the same for every node of the group | move it to [replication]"
    )
    assert mistakes(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ('[failover]\nlease = "6 s"', "lease comes with a later version"),
        ("[metrics]\ntopics_max = 1", "topics_max comes with a later version"),
    ],
)
def test_what_comes_later_is_refused_with_a_sentence(
    tmp_path: Path, lines: str, refused: str
) -> None:
    """A setting that were accepted and did nothing would be a lie."""
    found = mistakes(tmp_path, TWO_NODES + lines + "\n")
    assert len(found) == 1
    assert refused in found[0]


@pytest.mark.parametrize("where", ['address = "10.0.0.1"', 'address = "db1.example"'])
def test_listening_beyond_loopback_needs_a_word(tmp_path: Path, where: str) -> None:
    """An open port without encryption is a decision and not an accident."""
    text = TWO_NODES.replace('address = "127.0.0.1"', where, 1)
    assert "would listen on" in mistakes(tmp_path, text)[0]
    assert read(tmp_path, text + "[listen]\ninsecure = true\n").node("n1").bind == where[11:-1]


def test_binding_to_all_interfaces_needs_the_same_word(tmp_path: Path) -> None:
    text = TWO_NODES + '[listen]\nbind = "all"\n'
    assert "every interface" in mistakes(tmp_path, text)[0]
    assert read(tmp_path, text + "insecure = true\n").node("n1").bind == "0.0.0.0"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "n2"', 'name = "n1"', 'name is "n1" more than once'),
        ('name = "n2"', 'name = "n2"\ndata = "data/n1"', "is already used as n1.data"),
        ('name = "n2"', 'name = "n2"\ndata = "data/n3/../n1"', "is already used as n1.data"),
        ('name = "n2"', 'name = "n2"\ndata = "data/coordinator"', "used as coordinator.data"),
        ('name = "n2"', 'name = "master"', 'name is "master", which commands take for a role'),
        ('name = "n2"', 'name = "any"', 'name is "any", which commands take for a role'),
        ("clients = 0", "clients = 7400", "port 7400 at 127.0.0.1 is already used as coordinator."),
        ('name = "n2"', 'name = "n2"\nrole = "master"', 'role is "master" twice: n1 and n2'),
        ('address = "127.0.0.1"\n[node', 'address = "::1"\n[node', "IPv4 and IPv6"),
        ("clients = 0\nslaves = 0", "clients = 7000\nslaves = 7000", "port 7000 at 127.0.0.1"),
    ],
)
def test_nodes_that_do_not_fit_together(tmp_path: Path, old: str, new: str, expected: str) -> None:
    found = mistakes(tmp_path, TWO_NODES.replace(old, new, 1))
    assert any(expected in text for text in found), found


def test_in_sync_min_fits_the_number_of_nodes(tmp_path: Path) -> None:
    assert read(tmp_path, TWO_NODES).in_sync_min == 2
    one = TWO_NODES[: TWO_NODES.index('[[node]]\nname = "n2"')]
    assert read(tmp_path, one).in_sync_min == 1
    found = mistakes(tmp_path, TWO_NODES + "[replication]\nin_sync_min = 3\n")
    assert "in_sync_min is 3, but there are 2 nodes" in found[0]


def test_an_unknown_node_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, TWO_NODES).node("n3")
    assert (
        caught.value.mistakes[0].text == 'cluster.toml has no node named "n3"; it defines n1 and n2'
    )


def test_lists_are_refused_from_the_environment(tmp_path: Path) -> None:
    found = mistakes(tmp_path, TWO_NODES, {"TWINLOG_COORDINATOR_ENDPOINTS": "a:1"})
    assert "TWINLOG_COORDINATOR_ENDPOINTS endpoints is" in found[0]


def test_endpoints_are_host_and_port(tmp_path: Path) -> None:
    text = TWO_NODES + '[coordinator]\nendpoints = ["10.0.0.1:7400", "nowhere"]\n'
    assert mistakes(tmp_path, text)[0].startswith('cluster.toml:19 "nowhere" is not HOST:PORT')
    text = TWO_NODES + '[coordinator]\nendpoints = ["h:\u00b2"]\n'
    assert '"h:\u00b2" is not HOST:PORT' in mistakes(tmp_path, text)[0]


@pytest.mark.parametrize("base", [7400, 0])
@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_the_generated_file_runs(tmp_path: Path, nodes: int, base: int) -> None:
    """What ``config init --local`` writes has no mistake, and ports as docs/decisions/0018 says."""
    path = tmp_path / "cluster.toml"
    write_local(path, Local(nodes=nodes, base_port=base, cluster="dev"))
    found = load(path, {}, {})
    assert [node.name for node in found.nodes] == [f"n{n}" for n in range(1, nodes + 1)]
    assert found.in_sync_min == min(2, nodes)
    last = found.nodes[-1].listen
    expected = 7400 + 10 * nodes if base else 0
    assert (last.clients, last.http) == (expected, expected + 2 if base else 0)
    assert found.coordinator.endpoints == (("127.0.0.1", base),)
    assert found.nodes[0].data == tmp_path / "data" / "n1"
    with pytest.raises(FileExistsError):
        write_local(path, Local())


def test_the_generated_file_takes_more_storage_keys(tmp_path: Path) -> None:
    text = local_text(Local(nodes=1, storage=(("flush_interval", '"50 ms"'),)))
    assert read(tmp_path, text).nodes[0].storage.flush_interval == 0.05


def test_a_coordinator_on_port_0_is_found_by_its_run_file(tmp_path: Path) -> None:
    write_local(tmp_path / "cluster.toml", Local(base_port=0))
    coordinator = load(tmp_path / "cluster.toml", {}, {}).coordinator
    assert coordinator.found() == ()
    (coordinator.data / "twinlog").mkdir(parents=True)
    (coordinator.data / "twinlog" / "run.json").write_text('{"ports": {"coordinator": 4711}}')
    assert coordinator.found() == (("127.0.0.1", 4711),)


def test_the_reference_names_every_key_with_a_reason() -> None:
    """A key without a reason has no place in the file."""
    from node.config.section import Section
    from node.config.sections import SECTIONS, NodeSection, keys_of

    page = reference()
    sections: list[type[Section]] = [NodeSection, *SECTIONS.values()]
    for section in sections:
        for key, info in zip(keys_of(section), section.model_fields.values(), strict=True):
            assert info.description, key
            assert f"| `{key}` |" in page
    assert "| `segment_size` | size, 64 KiB to 2 GiB | `1 GiB` |" in page


def test_values_are_shown_as_the_file_writes_them() -> None:
    assert shown(64 << 20, "size") == "64 MiB"
    assert shown(0.5, "duration") == "500 ms"
    assert (shown(True), shown(("a:1", "b:2")), shown("x")) == ("true", "a:1, b:2", "x")


JUNK = """\
[
]]
=
x =
\'\'\'
[[node]]
[node.storage]
name = 3
[storage]
flush = []
clients = true
address = 1
[cluster.x]
node = 5
data = {}
role = 2020-01-01
endpoints = [1]
endpoints = [":"]
in_sync_min = 1e9
in_sync_min = nan
heartbeat = inf
""".splitlines()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(JUNK)), max_size=4))
def test_any_edit_ends_in_settings_or_in_sentences(edits: list[tuple[int, str]]) -> None:
    """Whatever somebody types into the file, the answer is never a trace."""
    lines = local_text(Local()).splitlines()
    for at, junk in edits:
        lines.insert(at, junk)
    with TemporaryDirectory() as folder:
        path = written(Path(folder), "\n".join(lines))
        told = "error: cluster.toml"
        try:
            load(path, {}, {})
        except ConfigError as error:
            told = error.render()
        assert told.startswith("error: cluster.toml")


def test_the_checkouts_file_is_what_config_init_writes() -> None:
    """The README calls it such a cluster."""
    text = (Path(__file__).parents[4] / "cluster.toml").read_text(encoding="utf-8")
    assert text == local_text(Local())


def test_log_folders_are_of_one_node_and_one_of_them_is_open(tmp_path: Path) -> None:
    """Relative to the file, as the data folder; two nodes never share one."""
    open_one = 'log_folders = ["more", "/far/log"]\nlog_folders_closed = ["data/n1/commitlog"]\n'
    text = TWO_NODES.replace('role = "master"\n', 'role = "master"\n' + open_one)
    found = read(tmp_path, text).node("n1")
    assert found.log_folders == (tmp_path / "more", Path("/far/log"))
    assert found.log_folders_closed == {tmp_path / "data/n1/commitlog"}
    folders = log_folders(found)
    assert folders.more == (str(tmp_path / "more"), "/far/log")
    assert "commitlog" in folders.closed
    assert log_folders(read(tmp_path, text).node("n2")).more == ()
    shared = text.replace('name = "n2"\n', 'name = "n2"\nlog_folders = ["/far/log"]\n')
    (wrong,) = mistakes(tmp_path, shared)
    assert "log folder /far/log is already used as n1.log_folders[1]" in wrong
    closed = text.replace('["data/n1/commitlog"]', '["data/n1/commitlog", "more", "/far/log"]')
    (wrong,) = mistakes(tmp_path, closed)
    assert "every log folder of n1 is closed" in wrong
    (wrong,) = mistakes(tmp_path, text.replace('["data/n1/commitlog"]', '["elsewhere"]'))
    assert "elsewhere is closed, but it is not a log folder of n1" in wrong


@pytest.mark.parametrize("where", ["0.0.0.0", "10.0.0.1", "coordinator.example"])
def test_a_coordinator_beyond_loopback_needs_the_same_word(tmp_path: Path, where: str) -> None:
    """Its port can do more than that of any node."""
    text = TWO_NODES + f'[coordinator]\nendpoints = ["{where}:7400"]\n'
    assert f"the coordinator would listen on {where}" in mistakes(tmp_path, text)[0]
    assert read(tmp_path, text + "[listen]\ninsecure = true\n").coordinator.endpoints[0][0] == where
    for host in ("127.0.0.1", "localhost", "[::1]"):
        read(tmp_path, text.replace(where, host))


def test_what_is_shown_to_etcd_lies_beside_the_file(tmp_path: Path) -> None:
    """With its authority a member beyond loopback needs no other word."""
    keys = 'etcd_authority = "a"\netcd_user = "u"\netcd_password_file = "p"\n'
    text = f'[coordinator]\nkind = "etcd"\netcd = ["10.0.0.1:2379"]\n{keys}'
    shown = read(tmp_path, TWO_NODES + text).coordinator.etcd_shown
    assert shown == EtcdShown(Tls(str(tmp_path / "a")), "u", str(tmp_path / "p"))


TLS = '[tls]\nauthority = "ca.pem"\n'


def test_tls_opens_ports_beyond_loopback(tmp_path: Path) -> None:
    """One rule for all listeners: TLS, or the word that says that there is none."""
    text = TWO_NODES.replace('address = "127.0.0.1"', 'address = "10.0.0.1"', 1)
    text += '[coordinator]\nendpoints = ["10.0.0.1:7400"]\n'
    assert len(mistakes(tmp_path, text)) == 2
    assert not read(tmp_path, text + TLS).insecure
    assert read(tmp_path, text + "[listen]\ninsecure = true\n").insecure
    assert not read(tmp_path, TWO_NODES + "[listen]\ninsecure = true\n").insecure
    assert read(tmp_path, TWO_NODES + '[listen]\nbind = "all"\ninsecure = true\n').insecure


def test_tls_does_not_excuse_an_etcd_in_the_clear(tmp_path: Path) -> None:
    lines = '[coordinator]\nkind = "etcd"\netcd = ["10.0.0.1:2379"]\n'
    assert "would speak to etcd" in mistakes(tmp_path, TWO_NODES + lines + TLS)[0]


def test_each_process_has_files_of_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, TWO_NODES).tls_of("n1") is None
    found = read(tmp_path, TWO_NODES + TLS).tls_of("n1")
    assert found is not None and not found.clients_ask
    assert found.files.authority == str(tmp_path / "ca.pem")
    assert found.files.certificate == str(tmp_path / "certificates" / "n1.pem")
    assert found.files.key == str(tmp_path / "certificates" / "n1.key")
    more = (
        'certificate = "/etc/pki/{name}/cert"\nclients = "certificate"\nclients_authority = "b"\n'
    )
    found = read(tmp_path, TWO_NODES + TLS + more).tls_of("coordinator-2")
    assert found is not None and found.clients_ask
    assert found.files.certificate == "/etc/pki/coordinator-2/cert"
    assert found.clients_authority == str(tmp_path / "b")


def test_options_of_commands_are_no_settings(tmp_path: Path) -> None:
    """The environment of a command has names that begin like a section."""
    path = tmp_path / "cluster.toml"
    path.write_text(TWO_NODES)
    load(path, {"TWINLOG_TLS_CA": "x", "TWINLOG_TLS_CERT": "y", "TWINLOG_TLS_KEY": "z"})
