"""The page of a node in a real browser, over a cluster whose master is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.browser import browsing
from tests.fixtures.processes import Processes
from twinlog import Client

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_failover_seen_on_the_page(processes: Processes, tmp_path: Path) -> None:
    """Nodes in lanes, offsets that move, who was master; nothing is loaded again by hand.

    With ``TWINLOG_SCREENSHOTS`` set, pictures for people are written there.
    """
    master = processes.settled(3)
    watcher, other = (name for name in ("n1", "n2", "n3") if name != master)
    host, port = processes.address(watcher, "http")
    with Client("{}:{}".format(*processes.address(master)), timeout=60.0) as client:
        client.create_topic("orders", 4)
        client.send("orders", b"one")
    shots = Path(os.environ.get("TWINLOG_SCREENSHOTS") or tmp_path)
    with browsing(tmp_path / "profile") as browser:
        page = browser.open(f"http://{host}:{port}/")
        page.until("document.querySelectorAll('.lane').length === 3")
        page.until("document.querySelector('#health').textContent === 'healthy'")
        page.until("document.querySelector('#topics').innerText.includes('orders')")
        text = page.text()
        assert f"master {master}" in text
        assert f"live, as {watcher} sees it" in text
        before = page.evaluate("document.querySelector('#facts').textContent")
        with Client("{}:{}".format(*processes.address(master)), timeout=60.0) as client:
            client.send("orders", b"two")
        page.until(f"document.querySelector('#facts').textContent !== {str(before)!r}")
        page.resize(1200, 900)
        page.picture(shots / "healthy.png")
        processes.kill(master)
        page.until("document.querySelector('#health').textContent === 'unavailable'")
        page.until("document.querySelectorAll('.lane.away').length === 1")
        assert "twinlog cluster failover" in page.text()
        page.picture(shots / "no-master.png")
        processes.failover(other)
        page.until(f"document.querySelector('#facts').textContent.startsWith('master {other}')")
        page.until("document.querySelectorAll('#history li').length === 2")
        assert f"{other} since epoch 2" in page.text()
        page.resize(390, 844, phone=True)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.picture(shots / "phone.png")
        assert page.complaints == []
