"""What the rig sees, judged at the instant at which it sees it."""

from typing import TYPE_CHECKING, Any

from mhsd.driver import Call
from tests.documents import input_digest
from tests.property.model.history import Native
from tests.property.model.steps import CONFIGURE, FIRE, MOVE, SAMPLE, TOGGLE, TRAVEL

if TYPE_CHECKING:
    from tests.property.model.lives import Lives

GUARDED = frozenset({MOVE, TRAVEL, FIRE, CONFIGURE})
ACTUATING = GUARDED | {TOGGLE}
LIMITED = GUARDED
LIMIT = 5
SAMPLE_PERIOD_S = 2.0


class Watch:
    """The watcher of one rig in one life of the endpoint."""

    def __init__(self, world: "Lives", device: int) -> None:
        self.world = world
        self.device = device
        self.stops_under_way = 0
        self.closed_at_s: list[float] = []
        """When the rig was read with its gate closed."""
        self.sampled_at_s = float("-inf")

    def began(self, call: Call) -> Native:
        world, device = self.world, self.device
        served = world.endpoint.devices[world.device_id(device)]
        carriages = [c for c in served.executions.live() if c.attempt.command_id == call.command_id]
        world.expect(len(carriages) == 1, f"{call.capability_id} runs as {len(carriages)} operations")
        attempt = carriages[0].attempt
        native = Native(
            life=world.life,
            device=device,
            capability_id=call.capability_id,
            command_id=call.command_id,
            value=call.input,
            session_id=attempt.session.session_id,
            permit_id=attempt.permit_id,
            stops_before=world.stops[device],
            state_before=world.bodies[device].shown(),
            began=world.now(),
        )
        self._judge(native, attempt)
        for other in world.natives:
            if other.life == world.life and other.device == device and other.command_id in world.unsettled:
                other.alone = native.alone = False
        if served.host.resetting or served.host.safety.stop_pending(served.device_id):
            native.alone = False
        world.natives.append(native)
        world.unsettled.add(native.command_id)
        return native

    def _judge(self, native: Native, attempt: Any) -> None:
        world, now_mono_s = self.world, native.began.mono_s
        what = f"{native.capability_id} of {native.command_id} on rig {self.device}"
        world.expect(attempt.input == native.value, f"{what} got another input")
        world.expect(now_mono_s < attempt.deadline_mono_s, f"{what} began after its deadline")
        world.expect(
            world.endpoint.sessions.any_live(native.session_id) is not None
            and not world.visit(native.session_id).over(now_mono_s),
            f"{what} began in a session that had ended",
        )
        earlier = [
            n for n in world.natives if n.command_id == native.command_id and n.device == native.device
        ]
        world.expect(all(n.refused for n in earlier), f"{what} ran twice")
        if native.capability_id == SAMPLE:
            since_s = now_mono_s - self.sampled_at_s
            world.expect(since_s >= SAMPLE_PERIOD_S - 1e-6, f"{what} ran again after {since_s} s")
            self.sampled_at_s = now_mono_s
        if native.capability_id in LIMITED:
            asked = native.value.get("amount", native.value.get("speed", 0))
            world.expect(asked <= LIMIT, f"{what} was beyond its limit")
        if native.capability_id in GUARDED:
            self._judge_guarded(native, attempt, what)
        if native.capability_id == FIRE:
            self._judge_permit(native, what)

    def _judge_guarded(self, native: Native, attempt: Any, what: str) -> None:
        world = self.world
        latched = world.endpoint.safety.latched(world.device_id(self.device))
        world.expect(not latched, f"{what} began while latched")
        world.expect(not world.surely_latched(self.device), f"{what} began after a stop without a reset")
        world.expect(not self.stops_under_way, f"{what} began while the rig was being stopped")
        out = [
            n
            for n in world.natives
            if n.life == world.life
            and n.device == self.device
            and n.ended is None
            and n.capability_id in GUARDED
        ]
        world.expect(not out, f"{what} began while another call was out")
        if native.capability_id in (MOVE, TRAVEL):
            seen = any(at_s >= attempt.received_mono_s for at_s in self.closed_at_s)
            world.expect(seen, f"{what} began and its gate was not seen closed")
        expected = attempt.expected_revision
        if expected is not None:
            known = world.revisions_since(self.device, attempt.received_mono_s)
            world.expect(expected in known, f"{what} expected revision {expected}, not one of {known}")

    def _judge_permit(self, native: Native, what: str) -> None:
        world = self.world
        grant = world.grants.get(native.permit_id or "")
        if grant is None:
            world.expect(False, f"{what} began without a permit")
            return
        digest = input_digest(FIRE, "axis", native.value)
        world.expect(
            (grant.life, grant.session_id, grant.device_id, grant.input_digest)
            == (world.life, native.session_id, world.device_id(self.device), digest),
            f"{what} began with a permit for something else",
        )
        world.expect(native.began.mono_s < grant.expires_mono_s, f"{what} began with an expired permit")
        world.expect(grant.used_by is None, f"{what} began with the permit that {grant.used_by} had used")
        grant.used_by = native.command_id

    def moved(self, command_id: str) -> None:
        """Something moved on behalf of a command."""
        native = next(n for n in reversed(self.world.natives) if n.command_id == command_id)
        native.moves.append(self.world.now())

    def ended(self, token: Any, how: str) -> None:
        token.ended, token.how = self.world.now(), how
        if token.refused and token.permit_id in self.world.grants:
            self.world.grants[token.permit_id].used_by = None

    def read(self, gate: str) -> None:
        if gate == "closed":
            self.closed_at_s.append(self.world.now().mono_s)

    def stopping(self, change: int) -> None:
        self.stops_under_way += change
        for native in self.world.natives:
            if native.device == self.device and native.command_id in self.world.unsettled:
                native.alone = False
