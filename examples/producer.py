"""Send a year of flights through one producer; it survives a failover by itself.

Needs a cluster: `twinlog dev up` in another terminal. While this runs, try in a third one:
`twinlog dev kill n1`, and a slave takes over. Run: python examples/producer.py [COUNT]
"""

import csv
import json
import lzma
import sys
from itertools import islice
from pathlib import Path

from twinlog import Client

ENDPOINTS = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7410,127.0.0.1:7420,127.0.0.1:7430"
YEAR = Path(__file__).parent / "data" / "flights-2013.csv.xz"


def main() -> None:
    """Send rows and print what became of them."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else None
    with Client(ENDPOINTS) as client, lzma.open(YEAR, "rt", encoding="utf-8") as lines:
        client.create_topic("flights", 8)
        with client.producer("flights", batch="256 KiB", linger="5 ms") as producer:
            for row in islice(csv.DictReader(lines), count):
                key = None if row["tailnum"] == "NA" else row["tailnum"]
                producer.send(json.dumps(row).encode(), key=key, tag=row["carrier"])
            producer.flush()
            print(producer.statistics())


if __name__ == "__main__":
    main()
