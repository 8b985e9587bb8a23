"""Follow a topic and keep the own position where you like: here, in a file.

A consumer's position is the caller's: `message.next` says where to go on in its queue. Needs a
cluster: `twinlog dev up`. Run: python examples/follow.py TOPIC [COUNT]
"""

import json
import sys
from itertools import islice
from pathlib import Path

from twinlog import Client

TOPIC = sys.argv[1] if len(sys.argv) > 1 else "orders"
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else None
ENDPOINTS = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1:7410,127.0.0.1:7420,127.0.0.1:7430"
PLACE = Path("follow.json")


def main() -> None:
    """Go on in queue 0 where the last run ended."""
    begin = json.loads(PLACE.read_text())["next"] if PLACE.exists() else 0
    with Client(ENDPOINTS) as client:
        for message in islice(client.read(TOPIC, f"{begin}:", queue=0, follow=True), COUNT):
            print(message.address, message.body.decode(errors="replace"))
            PLACE.write_text(json.dumps({"next": message.next}))


if __name__ == "__main__":
    main()
