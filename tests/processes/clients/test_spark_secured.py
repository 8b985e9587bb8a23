"""Spark's source, sink and jobs at a cluster with TLS, certificates of clients and rules.

The tasks run in this process, without Spark around them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra spark")

import pyarrow as pa

from cli.app import main
from tests.fixtures.certificates import Certificates
from tests.fixtures.processes import Processes
from twinlog import Client
from twinlog.client.blocking import Client as Blocking
from twinlog.errors import Denied
from twinlog.session.tls_files import Login, Tls
from twinlog.spark.errors import SourceError
from twinlog.spark.sink.settings import Identity, parse
from twinlog.spark.sink.writer import send_rows
from twinlog.spark.source.queries import batch_query, read_any
from twinlog.wire.frames import Type

pytestmark = [pytest.mark.processes, pytest.mark.slow]

OPERATOR = Login("operator", "only for the operator's eyes")
ALICE = "open sesame"


class Guarded(Processes):
    """One node that wants TLS, a certificate of clients, and to know who asks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, nodes=1, tls=True)
        self.apps = Certificates(folder / "apps")
        lines = f'clients = "certificate"\nclients_authority = "{self.apps.authority}"\n'
        lines += "\n[access]\nenabled = true\n"
        self.path.write_text(self.path.read_text(encoding="utf-8") + lines, encoding="utf-8")
        (folder / "access.secret").write_text(OPERATOR.password + "\n", encoding="utf-8")
        (folder / "alice").write_text(ALICE + "\n", encoding="utf-8")

    @property
    def authority(self) -> str:
        """What clients trust."""
        assert self.tls is not None
        return self.tls.authority

    @property
    def servers(self) -> str:
        """Where clients connect."""
        return "{}:{}".format(*self.address("n1"))

    def shown(self, name: str) -> dict[str, str]:
        """The options of a query that shows the certificate of someone."""
        app = self.apps.of(name)
        return {
            "servers": self.servers, "tls.ca": self.authority,
            "tls.certificate": app.certificate or "", "tls.key": app.key or "",
        }  # fmt: skip

    def operate(self, *words: str) -> int:
        """Run a command as the operator, whose certificate is one of the applications'."""
        app = self.apps.of("someone")
        files = ["--tls-ca", self.authority, "--tls-cert", app.certificate, "--tls-key", app.key]
        secret = str(self.folder / "access.secret")
        said = ["--user", "operator", "--password-file", secret, "-e", self.servers]
        return main([str(word) for word in [*files, *said, *words]])


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """The node as master, with a topic and a user with a certificate and one with a password."""
    found = Guarded(tmp_path)
    try:
        found.start("coordinator", "n1")
        app = found.apps.of("operator")
        shown = Tls(found.authority, app.certificate, app.key, OPERATOR)
        with Client(found.servers, timeout=60.0, tls=shown) as client:
            client.create_topic("orders", 1)
            client.create_topic("bills", 1)
            client.send("bills", b"secret")
        alice = str(tmp_path / "alice")
        for words in (
            ("user", "add", "billing", "--certificate"),
            ("rule", "add", "billing", "read", "topic:orders"),
            ("user", "add", "alice", "--new-password-file", alice),
            ("rule", "add", "alice", "write", "topic:orders"),
        ):
            assert found.operate(*words) == 0, words
        yield found
    finally:
        found.close()


def bodies(given: Mapping[str, str]) -> list[bytes]:
    """What a batch query brings."""
    query = batch_query({**given, "maxStaleness": "60 s"})
    found = [batch for task in query.tasks(0) for batch in read_any(task)]
    return [value for batch in found for value in batch.column("body").to_pylist()]


def test_rows_go_in_and_out_by_rules(
    guarded: Guarded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink with a password in a file, the source with a certificate alone; a job by options."""
    alice = {**guarded.shown("app"), "user": "alice", "passwordFile": str(guarded.folder / "alice")}
    settings = parse({**alice, "topic": "orders"})
    assert ALICE not in repr(settings)
    rows = pa.RecordBatch.from_pydict({"body": [b"one", b"two"]})
    assert send_rows(settings, Identity("w", 0, 0), iter([rows])).rows == 2
    reader = guarded.shown("billing")
    assert bodies({**reader, "subscribe": "orders"}) == [b"one", b"two"]
    certificate_is_the_user(guarded)
    each_refusal_says_what_is_wrong(guarded)
    monkeypatch.setenv("TWINLOG_SPARK_ENGINE", "plain")
    capsys.readouterr()
    words = ("spark", "verify", "--servers", guarded.servers, "-o", "json")
    assert guarded.operate(*words) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "fine"


def certificate_is_the_user(guarded: Guarded) -> None:
    """Its common name, by what the node was sent; another name of the same authority is no user."""
    for name, topics in (("billing", ["orders"]), ("stranger", None)):
        app = guarded.apps.of(name)
        files = Tls(guarded.authority, app.certificate, app.key)
        with Blocking(guarded.servers, timeout=30.0, tls=files) as client:
            if topics is None:
                with pytest.raises(Denied, match="stranger"):
                    client.topics()
                continue
            assert list(client.topics()) == topics
            with pytest.raises(Denied):
                client.send("orders", b"no")
            with pytest.raises(Denied):
                client.call("any", Type.ADMIN, {"op": "stop"})


def each_refusal_says_what_is_wrong(guarded: Guarded) -> None:
    """At once, and in the words of Spark's options."""
    reader = guarded.shown("billing")
    plain = {"servers": guarded.servers, "subscribe": "orders"}
    for given, words in (
        (plain, "tls.ca"),
        ({**plain, "tls.ca": reader["tls.ca"]}, "wants a certificate"),
        ({**reader, "subscribe": "bills"}, "bills"),
        ({**guarded.shown("stranger"), "subscribe": "orders"}, "stranger"),
        ({**reader, "subscribe": "orders", "user": "alice"}, "passwordFile"),
        ({**reader, "subscribe": "orders", "password": ALICE}, "a password is no option"),
    ):
        with pytest.raises(SourceError, match=words) as caught:
            bodies(given)
        assert ALICE not in str(caught.value)
