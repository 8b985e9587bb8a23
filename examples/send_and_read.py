"""Send one message, read it back from any node.

Needs a cluster: `twinlog dev up` in another terminal. Run: python examples/send_and_read.py
"""

import sys

from twinlog import Client

ENDPOINTS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7410,127.0.0.1:7420,127.0.0.1:7430"


def main() -> None:
    """Create a topic, send, read, get."""
    with Client(ENDPOINTS) as client:
        client.create_topic("orders", 4)
        receipt = client.send("orders", b'{"id": 42}', key="42", tag="paid")
        print(f"stored at {receipt.address}, confirmed by {', '.join(receipt.confirmed_by)}")

        # Slaves answer too: they serve everything that is confirmed, a moment after the master.
        for message in client.read("orders", "-1:", queue=receipt.queue, read_from="any"):
            print(message.address, message.key, message.tag, message.body.decode())


if __name__ == "__main__":
    main()
