"""Permits in any order of events: used at most once, by whom they are for, never late, never after the session."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from mhsd.core.permits import Permit, PermitBook

SESSIONS = st.sampled_from(["mhs_s_a", "mhs_s_b"])
INPUTS = st.sampled_from(["sha256:1", "sha256:2"])


class AnyOrder(RuleBasedStateMachine):
    """Commands that reserve, use and give back permits while time passes and sessions end."""

    permits: Bundle[Permit] = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.book = PermitBook()
        self.now_mono_s = 0.0
        self.ended: set[str] = set()
        self.issued: list[Permit] = []
        self.uses: dict[str, int] = {}

    def refusal(self, permit: Permit, session_id: str, digest: str, *, own: bool) -> Any:
        wanted = {**permit.scope(), "input_digest": digest, "principal": f"owner of {session_id}"}
        return self.book.refusal(
            permit.permit_id, wanted=wanted, session_id=session_id, own=own, now_mono_s=self.now_mono_s
        )

    @rule(target=permits, session_id=SESSIONS, digest=INPUTS, ttl_s=st.integers(1, 5))
    def issue(self, session_id: str, digest: str, ttl_s: int) -> Permit:
        permit = Permit(
            permit_id=f"permit_{len(self.issued)}",
            session_id=session_id,
            device_id="mhs://a/belt",
            capability_id="cap.a.v1",
            resource="belt",
            input_digest=digest,
            principal_id=f"owner of {session_id}",
            expires_mono_s=self.now_mono_s + ttl_s,
            expires_at="2026-10-20T07:45:00.000Z",
            approvals=(),
            # A permit cannot be issued for a session that is over.
            ended=session_id in self.ended,
        )
        self.book.issue(permit, self.now_mono_s)
        self.issued.append(permit)
        return permit

    @rule(permit=permits, session_id=SESSIONS, digest=INPUTS)
    def reserve(self, permit: Permit, session_id: str, digest: str) -> None:
        if self.refusal(permit, session_id, digest, own=False) is None:
            assert permit.state == "issued"
            assert permit.session_id == session_id
            assert permit.session_id not in self.ended
            assert permit.input_digest == digest
            assert self.now_mono_s < permit.expires_mono_s
            permit.state = "reserved"

    @rule(permit=permits)
    def use(self, permit: Permit) -> None:
        """As the last look does: the command that reserved it asks once more, then calls the driver."""
        if permit.state != "reserved":
            return
        if self.refusal(permit, permit.session_id, permit.input_digest, own=True) is None:
            assert self.now_mono_s < permit.expires_mono_s
            permit.state = "used"
            self.uses[permit.permit_id] = self.uses.get(permit.permit_id, 0) + 1

    @rule(permit=permits)
    def give_back(self, permit: Permit) -> None:
        if permit.state == "reserved":
            permit.state = "issued"

    @rule(seconds=st.floats(0.5, 3))
    def wait(self, seconds: float) -> None:
        self.now_mono_s += seconds

    @rule(session_id=SESSIONS)
    def end_session(self, session_id: str) -> None:
        self.ended.add(session_id)
        self.book.release_session(session_id)

    @invariant()
    def no_permit_is_used_twice(self) -> None:
        assert all(count == 1 for count in self.uses.values())

    @invariant()
    def what_is_shown_as_live_can_be_used_and_all_that_can_be_used_is_shown(self) -> None:
        shown = {entry["permit_id"] for entry in self.book.live("mhs://a/belt", self.now_mono_s)}
        usable = {
            permit.permit_id
            for permit in self.issued
            if self.refusal(permit, permit.session_id, permit.input_digest, own=False) is None
        }
        assert shown == usable


AnyOrder.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=30)
TestAnyOrder: Any = AnyOrder.TestCase
