"""Which revision a read shows: the current one of a live device, any recorded one of a replay [PROTO-024, PROTO-035a].

A replay device stands at the newest revision of its recording for as long as it is served. Seeking changes nothing of
it: each read names the revision that it wants.
"""

from collections.abc import Sequence

from mhsd.base.errors import Fault, StartError
from mhsd.driver import Reading
from mhsd.services.device_host import DeviceHost

REPLAY_SEEK = "replay.seek"
"""The feature of an endpoint that serves a replay device."""

STEADY_READS = 3
"""How often a read is repeated when a mutation ended while it was under way."""


async def open_recording(host: DeviceHost) -> None:
    """Stand at the newest recorded revision; StartError for a recording that has none or does not show it."""
    recorded = host.driver.recorded_revisions()
    if not recorded:
        raise StartError(f"{host.device_id}: the recording has no revision", exit_code=1)
    host.revision = recorded[-1]
    try:
        host.remember(await host.read(host.all_resources()), host.all_resources())
    except Fault as fault:
        raise StartError(f"{host.device_id}: {fault.message}", exit_code=1) from fault


async def sample(host: DeviceHost, resource_id: str, revision: int | None) -> tuple[int, Reading]:
    """A resource at a revision, at the current one for None, with the revision that the state belongs to.

    Raises MHS.RESOURCE.UNKNOWN, with the revisions that there are, for one that is not kept.
    """
    if host.mode == "replay":
        recorded = host.driver.recorded_revisions()
        wanted = host.revision if revision is None else revision
        if wanted not in recorded:
            raise _not_kept(f"revision {wanted} of {host.device_id} was not recorded", recorded)
        return wanted, await host.read((resource_id,), revision=wanted)
    for _ in range(STEADY_READS):
        before = host.revision
        if revision not in (None, before):
            raise _not_kept(f"{host.device_id} is at revision {before} and keeps no other", [before])
        reading = await host.read((resource_id,))
        if host.revision == before:
            break
    return host.revision, reading


def _not_kept(message: str, recorded: Sequence[int]) -> Fault:
    return Fault("MHS.RESOURCE.UNKNOWN", message, details={"recorded_revisions": list(recorded)})
