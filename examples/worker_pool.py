"""A worker of a pool, with a database: each order changes an account exactly once.

Run it on as many machines as there are, and kill any of them: a message whose worker died is handed
to another one. The mark that a message was handled is written in the transaction that handles it,
so a second attempt finds it. Needs a cluster: `twinlog dev up`.
Run: python examples/worker_pool.py [COUNT] [ENDPOINTS]
"""

import json
import sqlite3
import sys
from itertools import islice

from twinlog import Client, Delivery

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else None
ENDPOINTS = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7410,127.0.0.1:7420,127.0.0.1:7430"
TABLES = """
    CREATE TABLE IF NOT EXISTS handled (address TEXT PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, due INTEGER NOT NULL);
"""


def handle(database: sqlite3.Connection, message: Delivery) -> bool:
    """Charge an account; False when an earlier attempt did."""
    order = json.loads(message.body)
    with database:  # one transaction: the mark and the effect, or neither
        marked = database.execute("INSERT OR IGNORE INTO handled VALUES (?)", (message.address,))
        if marked.rowcount == 0:
            return False
        database.execute(
            "INSERT INTO accounts VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET due = due + ?",
            (order["customer"], order["total"], order["total"]),
        )
    return True


def main() -> None:
    """Handle orders until killed, or COUNT of them."""
    database = sqlite3.connect("accounts.db", timeout=60.0)
    database.executescript(TABLES)
    with Client(ENDPOINTS) as client:
        messages = client.consume("orders", group="billing", invisible="5 s")
        for message in islice(messages, COUNT):
            new = handle(database, message)
            print(message.address, "charged" if new else "charged before", flush=True)


if __name__ == "__main__":
    main()
