"""The container files agree with the tree: names, ports, volumes, health checks, commands.

No container engine runs here; what a name or a port in these files means is looked up instead.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from cli.tree import COMMANDS
from node.config.config import load
from node.node import DRAIN_SECONDS

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "deploy" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CLUSTER = load(FOLDER / "cluster.toml")
IMAGE = (FOLDER / "Containerfile").read_text()
HOME = Path("/var/lib/twinlog")


def mounts(service: str) -> dict[str, str]:
    """What is mounted in a container: place to source."""
    found = (one.split(":") for one in SERVICES[service].get("volumes", ()))
    return {place: source for source, place, *_ in found}


def test_each_process_of_the_cluster_file_is_a_container() -> None:
    """By its name, with the command that starts it, and a volume of its own for its data."""
    nodes = {node.name: ["node", "start", node.name] for node in CLUSTER.nodes}
    assert [host for host, _ in CLUSTER.coordinator.endpoints] == ["coordinator"]
    commands = {"coordinator": ["coordinator", "start"], **nodes}
    for name, command in commands.items():
        assert SERVICES[name]["command"] == command
        assert mounts(name)[str(HOME)] == name
        assert name in COMPOSE["volumes"]
        assert mounts(name)["/etc/twinlog/cluster.toml"] == "./cluster.toml"
        assert float(SERVICES[name]["stop_grace_period"][:-1]) > DRAIN_SECONDS
    assert [node.address for node in CLUSTER.nodes] == list(nodes)
    data = [CLUSTER.coordinator.data, *(node.data for node in CLUSTER.nodes)]
    assert all(HOME in place.parents for place in data)


def test_health_checks_ask_what_exists() -> None:
    """The http port of the cluster file, a path of the server, a command of the tree."""
    routes = (ROOT / "node" / "observe" / "http_server.py").read_text()
    for node in CLUSTER.nodes:
        found = re.search(
            r"http://(\w+):(\d+)(/\w+)", SERVICES[node.name]["healthcheck"]["test"][3]
        )
        assert found is not None
        assert (found[1], int(found[2])) == (node.address, node.listen.http)
        assert f'"{found[3]}"' in routes
    words = SERVICES["coordinator"]["healthcheck"]["test"]
    assert words[1] == "twinlog"
    assert tuple(words[2:]) in {command.path for command in COMMANDS}


def test_nothing_is_reachable_from_other_machines() -> None:
    """The cluster speaks no TLS here, so only this machine's ports are published."""
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_what_watches_finds_every_node_and_every_file() -> None:
    """Prometheus asks the nodes' http ports and has the rules; Grafana has source and dashboard."""
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    wanted = [f"{node.address}:{node.listen.http}" for node in CLUSTER.nodes]
    assert job["static_configs"][0]["targets"] == wanted
    assert set(scraped["rule_files"]) <= mounts("prometheus").keys()
    for service in SERVICES:
        for source in mounts(service).values():
            assert not source.startswith(".") or (FOLDER / source).is_file(), source
    (source,) = yaml.safe_load((FOLDER / "grafana-sources.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    assert SERVICES["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    dashboards = yaml.safe_load((FOLDER / "grafana-dashboards.yaml").read_text())
    folder = dashboards["providers"][0]["options"]["path"]
    assert any(place.startswith(f"{folder}/") for place in mounts("grafana"))


def test_the_image_is_built_of_what_the_wheel_needs() -> None:
    """Every source that the build reads, and an entry point that the wheel has."""
    copied = set(" ".join(re.findall(r"(?m)^COPY (?!--)(.*) /\S+$", IMAGE)).split())
    assert all((ROOT / name).exists() for name in copied)
    assert copied >= {"twinlog", "storage", "replication", "node", "cli", "pyproject.toml"}
    assert copied >= {"setup.py", "README.md", "LICENSE", "pyspark_twinlog.py"}
    project = (ROOT / "pyproject.toml").read_text()
    entry = re.search(r'ENTRYPOINT \["(\w+)"\]', IMAGE)
    assert entry is not None
    assert f'{entry[1]} = "twinlog.__main__:main"' in project
    assert find_spec("twinlog.__main__") is not None
    extras = re.search(r'"twinlog\[([\w,]+)\]', IMAGE)
    assert extras is not None
    assert all(f"\n{extra} = [" in project for extra in extras[1].split(","))
    assert f"VOLUME {HOME}\n" in IMAGE
    assert "ENV TWINLOG_CONFIG=/etc/twinlog/cluster.toml\n" in IMAGE
