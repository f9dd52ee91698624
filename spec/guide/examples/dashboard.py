"""Shows what the devices of an endpoint do, live: a reader that can change nothing.

    mhsctl token new --file tokens.toml --principal service:dashboard --role reader -o dashboard.token
    mhsd --token-file tokens.toml
    python dashboard.py --token-file dashboard.token

It holds a token of the role `reader` and sessions without a single capability, so that neither a mistake in here nor
somebody who takes over this program can move anything. What it must never do is hide that it has missed something: a
gap is shown, and the state is read again.
"""

import argparse
import os
import threading

import mhsd

options = argparse.ArgumentParser(description="Show what the devices of an endpoint do.")
options.add_argument("--token-file", metavar="FILE")
options.add_argument(
    "--for", dest="seconds", type=float, metavar="S", help="end when nothing came for so long"
)
asked = options.parse_args()


def show(lab: mhsd.Client, device: mhsd.Device) -> None:
    """One device, until it has been quiet for long enough; each has a session of its own and a thread."""
    with (
        lab.session(device.device_id, capabilities=[]) as session,
        session.subscribe(["state", "progress"], rate_hz=2) as events,
    ):
        show_all(session, device)
        for event in events.events(asked.seconds):
            if event.is_gap:
                print(device.path, "MISSED", event["dropped"], "events; reading again", flush=True)
                show_all(session, device)
            else:
                print(device.path, event.stream, event.get("resource_id"), event.payload, flush=True)


def show_all(session: mhsd.Session, device: mhsd.Device) -> None:
    """What is so now, whatever was missed."""
    for resource in device.resources:
        print(device.path, "now", resource, session.read(resource)["state"], flush=True)


endpoint = os.environ.get("MHS_ENDPOINT", "http://127.0.0.1:7400")
with mhsd.connect(endpoint, token_file=asked.token_file) as lab:
    threads = [threading.Thread(target=show, args=(lab, device)) for device in lab.devices()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
