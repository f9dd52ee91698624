"""The SCPI link: what is certain after every kind of trouble, and a stop that waits for nobody."""

import itertools
from typing import Any

import pytest
import trio
import trio.testing

from mhsd.driver import (
    DriverFailed,
    LinkDown,
    Measurement,
    OptionInvalid,
    OutcomeUnknown,
    ScpiLink,
    Setpoint,
    Switch,
    tcp_connect,
)
from mhsd.driver.lines import MAX_LINE_BYTES, received_lines
from mhsd.driver.replies import Measured

VOLTAGE = Setpoint(get="VOLT?", set="VOLT {:.7G}", verify=0.001)
OUTPUT = Switch(get="OUTP?", on="OUTP ON", off="OUTP OFF")
METER = Measurement(get="MEAS?")
SAFE = ((OUTPUT, False), (VOLTAGE, 0.0))

NO_ERROR = b'0,"No error"\n'
PATIENCE = b""
"""A script's entry for a query that is never answered."""


class Bench:
    """An instrument whose replies a test writes; it notes every line with the number of its connection."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.seen: list[tuple[int, str]] = []
        self.streams: list[trio.SocketStream] = []
        self.connections = 0
        self.refuse_from: int | None = None
        self.open_connections = 0
        self.single = False
        self.one_after_the_other: trio.Lock | None = None
        self.volts = 0.0
        self.on = False
        self.errors: list[bytes] = []
        self.replies: dict[str, Any] = {}
        self.hold_back_s: dict[str, float] = {}

    async def connect(self) -> trio.SocketStream:
        if self.single and self.open_connections:
            raise ConnectionRefusedError("one connection only")
        if self.refuse_from is not None and self.connections >= self.refuse_from:
            raise ConnectionRefusedError("refused")
        ours, theirs = trio.socket.socketpair()
        self.connections += 1
        self.open_connections += 1
        self.streams.append(trio.SocketStream(theirs))
        self.nursery.start_soon(self.serve, self.streams[-1], self.connections)
        return trio.SocketStream(ours)

    async def serve(self, stream: trio.SocketStream, number: int) -> None:
        try:
            async with self.one_after_the_other or trio.Lock():
                await self.talk(stream, number)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.open_connections -= 1
            await trio.aclose_forcefully(stream)

    async def talk(self, stream: trio.SocketStream, number: int) -> None:
        async for line in received_lines(stream):
            self.seen.append((number, line))
            for piece in self.reply(line):
                await trio.sleep(self.hold_back_s.get(line, 0))
                await stream.send_all(piece)

    def reply(self, line: str) -> list[bytes]:
        scripted = self.replies.get(line)
        if scripted is not None and scripted != []:
            reply = scripted.pop(0) if isinstance(scripted, list) else scripted
            return reply if isinstance(reply, tuple) else [reply] if reply else []
        return self.answer(line)

    def answer(self, line: str) -> list[bytes]:
        if line.startswith("VOLT "):
            self.volts = float(line[5:])
        elif line.startswith("OUTP "):
            self.on = line == "OUTP ON"
        elif line == "SYST:ERR?":
            return [self.errors.pop(0) if self.errors else NO_ERROR]
        else:
            known = {"*IDN?": "ACME,PSU-1,77,1.0", "VOLT?": f"{self.volts:.4E}", "OUTP?": str(int(self.on))}
            return [f"{known.get(line, '12.5')}\r\n".encode()]
        return []

    def lines_of(self, number: int) -> list[str]:
        return [line for of, line in self.seen if of == number]


@pytest.fixture
def bench(nursery: trio.Nursery) -> Bench:
    return Bench(nursery)


def link_to(bench: Bench, **given: Any) -> ScpiLink:
    return ScpiLink(bench.connect, **{"name": "/bench/psu", "idn": "ACME,PSU-1,", "timeout_s": 1.0, **given})


# --- connecting -----------------------------------------------------------------------------------


async def test_old_errors_are_drained_at_connect_and_blame_no_later_command(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.errors = [b'-350,"Queue overflow"\n', b'-100,"Command error"\n']
    link = link_to(bench)
    await link.open()
    assert [record.args for record in caplog.records] == [
        ("/bench/psu", -350, "'Queue overflow'"),
        ("/bench/psu", -100, "'Command error'"),
    ]
    assert await link.set(VOLTAGE, 5) == 5.0


async def test_another_instrument_at_the_address_is_refused_before_anything_else_is_sent(
    bench: Bench,
) -> None:
    bench.replies["*IDN?"] = b"OTHER,THING,1,1\n"
    link = link_to(bench)
    with pytest.raises(LinkDown, match="identifies as 'OTHER,THING,1,1', not as idn ACME,PSU-1,"):
        await link.set(VOLTAGE, 5)
    assert bench.seen == [(1, "*IDN?")]


async def test_an_instrument_that_is_not_there_is_link_down_and_nothing_was_sent(bench: Bench) -> None:
    bench.refuse_from = 0
    with pytest.raises(LinkDown, match="no connection"):
        await link_to(bench).set(VOLTAGE, 5)
    assert bench.seen == []


async def test_a_link_that_is_down_is_tried_again_only_after_a_while_that_doubles(
    bench: Bench, autojump_clock: Any
) -> None:
    bench.refuse_from = 0
    link = link_to(bench)
    tried_at: list[float] = []
    began = trio.current_time()
    while trio.current_time() < began + 30:
        with pytest.raises(LinkDown) as down:
            await link.get(VOLTAGE)
        if "no connection" in down.value.message:
            tried_at.append(trio.current_time())
        await trio.sleep(0.05)
    waits = [later - earlier for earlier, later in itertools.pairwise(tried_at)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5], abs=0.06)
    bench.refuse_from = None
    await trio.sleep(5)
    assert await link.get(VOLTAGE) == 0.0


async def test_an_error_queue_without_an_end_does_not_hold_the_link(bench: Bench) -> None:
    bench.replies["SYST:ERR?"] = b'-113,"Undefined header"\n'
    with pytest.raises(LinkDown, match="more than 64 entries"):
        await link_to(bench).open()


# --- getting and setting --------------------------------------------------------------------------


async def test_a_set_and_its_error_query_leave_in_one_send_and_are_then_read_back(bench: Bench) -> None:
    link = link_to(bench)
    await link.open()
    sends: list[bytes] = []
    assert link._wire is not None
    stream = link._wire._stream
    send_all = stream.send_all

    async def noted(data: bytes) -> None:
        sends.append(data)
        await send_all(data)

    stream.send_all = noted  # type: ignore[method-assign, assignment]
    assert await link.set(VOLTAGE, 5) == 5.0
    assert sends == [b"VOLT 5\nSYST:ERR?\n", b"VOLT?\n"]


async def test_a_negative_zero_is_never_sent(bench: Bench) -> None:
    await link_to(bench).set(VOLTAGE, -0.0)
    assert (1, "VOLT 0") in bench.seen


async def test_a_refusal_in_the_error_queue_is_failed_with_its_code_and_leaves_the_link_in_use(
    bench: Bench,
) -> None:
    link = link_to(bench)
    await link.open()
    bench.errors = [b'-222,"Data out of range"\n', b'-100,"Command error"\n']
    with pytest.raises(DriverFailed) as caught:
        await link.set(VOLTAGE, 31)
    assert (caught.value.mhs_code, caught.value.native_code) == ("MHS.DEVICE.FAULT", "-222")
    assert "VOLT 31" in caught.value.message
    assert await link.set(VOLTAGE, 5) == 5.0
    assert bench.connections == 1


async def test_a_read_back_that_differs_is_failed_with_both_values(bench: Bench) -> None:
    bench.replies["VOLT?"] = b"4.9\n"
    with pytest.raises(DriverFailed) as caught:
        await link_to(bench).set(VOLTAGE, 5)
    assert caught.value.details == {"asked": 5, "read_back": 4.9}


async def test_a_read_back_within_the_tolerance_is_what_is_returned(bench: Bench) -> None:
    bench.replies["VOLT?"] = b"4.9995\n"
    assert await link_to(bench).set(VOLTAGE, 5) == 4.9995


async def test_a_switch_is_set_and_read_back(bench: Bench) -> None:
    link = link_to(bench)
    assert await link.set(OUTPUT, True) is True
    assert bench.on
    bench.replies["OUTP?"] = b"1\n"
    with pytest.raises(DriverFailed):
        await link.set(OUTPUT, False)


async def test_an_overloaded_meter_has_no_value(bench: Bench) -> None:
    bench.replies["MEAS?"] = b"9.9E37\n"
    assert await link_to(bench).get(METER) == Measured(None, "overrange")


async def test_a_reply_in_pieces_is_one_reply(bench: Bench, autojump_clock: Any) -> None:
    bench.replies["MEAS?"] = (b"12.", b"5\r", b"\n")
    bench.hold_back_s["MEAS?"] = 0.2
    assert await link_to(bench).get(METER) == Measured(12.5, "good")


async def test_empty_lines_around_a_reply_are_no_replies(bench: Bench) -> None:
    link = link_to(bench)
    bench.replies["MEAS?"] = b"\r\n12.5\n\r\n"
    assert await link.get(METER) == Measured(12.5, "good")
    assert await link.get(VOLTAGE) == 0.0
    assert bench.connections == 1


# --- trouble --------------------------------------------------------------------------------------


async def test_a_late_reply_is_never_read_by_the_next_query(bench: Bench, autojump_clock: Any) -> None:
    """[B01] The reply comes after 1.6 s, the time-out is 1 s, and another query follows at once."""
    link = link_to(bench)
    bench.replies["MEAS?"] = b"99.9\n"
    bench.hold_back_s["MEAS?"] = 1.6
    with pytest.raises(OutcomeUnknown, match="no reply to MEAS"):
        await link.get(METER)
    assert await link.get(VOLTAGE) == 0.0
    await trio.sleep(2)
    assert await link.get(VOLTAGE) == 0.0
    assert bench.lines_of(2)[:2] == ["*IDN?", "SYST:ERR?"]


@pytest.mark.parametrize(
    "reply",
    [b"12,5\n", b"nonsense\n", b"\xff\x00\xb0C 21.5\n", b"12.5\n13.5\n", b"5" * (MAX_LINE_BYTES + 5000)],
    ids=["comma", "words", "not text", "two replies", "no end"],
)
async def test_a_measurement_that_cannot_be_read_is_failed_and_the_link_is_dropped(
    bench: Bench, reply: bytes
) -> None:
    link = link_to(bench)
    bench.replies["MEAS?"] = reply
    with pytest.raises(DriverFailed) as caught:
        await link.get(METER)
    assert caught.value.mhs_code == "MHS.DEVICE.FAULT"
    assert await link.get(VOLTAGE) == 0.0
    assert bench.connections == 2


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        ("SYST:ERR?", PATIENCE),
        ("SYST:ERR?", b"\xb0\n"),
        ("SYST:ERR?", b"5.0\n"),
        ("SYST:ERR?", NO_ERROR * 2),
        ("VOLT?", PATIENCE),
        ("VOLT?", b"9.91E37\n"),
        ("VOLT?", b"five\n"),
    ],
)
async def test_a_set_without_a_clean_confirmation_is_unknown_and_the_link_is_dropped(
    bench: Bench, query: str, reply: bytes, autojump_clock: Any
) -> None:
    link = link_to(bench)
    await link.open()
    bench.replies[query] = [reply]
    with pytest.raises(OutcomeUnknown, match="VOLT 5 was sent and not confirmed"):
        await link.set(VOLTAGE, 5)
    bench.replies.clear()
    assert await link.get(VOLTAGE) == 5.0
    assert bench.connections == 2


@pytest.mark.parametrize("closer", ["instrument", "driver"])
async def test_a_connection_that_closes_in_an_exchange_is_unknown_and_comes_back(
    bench: Bench, nursery: trio.Nursery, closer: str
) -> None:
    link = link_to(bench)
    await link.open()
    bench.replies["SYST:ERR?"] = [PATIENCE]
    unknown: list[str] = []

    async def set_voltage() -> None:
        with pytest.raises(OutcomeUnknown) as caught:
            await link.set(VOLTAGE, 5)
        unknown.append(caught.value.message)

    nursery.start_soon(set_voltage)
    await trio.testing.wait_all_tasks_blocked(0.01)
    if closer == "instrument":
        await trio.aclose_forcefully(bench.streams[0])
    else:
        await link.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert "VOLT 5 was sent and not confirmed" in unknown[0]
    assert await link.get(VOLTAGE) == 5.0
    assert bench.connections == 2


async def test_a_connection_that_was_closed_while_idle_is_replaced_before_anything_is_sent(
    bench: Bench,
) -> None:
    link = link_to(bench)
    await link.open()
    await trio.aclose_forcefully(bench.streams[0])
    assert await link.set(VOLTAGE, 5) == 5.0
    assert bench.lines_of(1) == ["*IDN?", "SYST:ERR?"]


async def test_a_stray_line_while_idle_makes_the_link_start_afresh(bench: Bench, autojump_clock: Any) -> None:
    link = link_to(bench)
    bench.replies["MEAS?"] = [(b"1.0\n", b"2.0\n")]
    bench.hold_back_s["MEAS?"] = 0.1
    assert await link.get(METER) == Measured(1.0, "good")
    await trio.sleep(1)
    assert await link.get(METER) == Measured(12.5, "good")
    assert bench.connections == 2


async def test_a_cancelled_exchange_drops_the_link(bench: Bench, autojump_clock: Any) -> None:
    link = link_to(bench, timeout_s=60)
    bench.replies["MEAS?"] = b"99.9\n"
    bench.hold_back_s["MEAS?"] = 30
    with trio.move_on_after(5) as scope:
        await link.get(METER)
    assert scope.cancelled_caught
    assert await link.get(VOLTAGE) == 0.0
    assert bench.connections == 2


async def test_exchanges_of_many_tasks_never_mix(bench: Bench) -> None:
    link = link_to(bench)
    for number in range(20):
        bench.replies[f"Q{number}?"] = f"{number}.0\n".encode()
    wrong: list[int] = []

    async def ask(number: int) -> None:
        item = Measurement(get=f"Q{number}?")
        for _ in range(20):
            if await link.get(item) != Measured(float(number), "good"):
                wrong.append(number)

    async with trio.open_nursery() as askers:
        for number in range(20):
            askers.start_soon(ask, number)
    assert wrong == []
    assert bench.connections == 1


# --- an instrument that answers every command ------------------------------------------------------


async def test_an_instrument_may_confirm_every_command_with_a_reply(bench: Bench) -> None:
    link = link_to(bench, confirm="reply")
    bench.replies["VOLT 5"] = b"OK\n"
    bench.replies["VOLT?"] = b"5.0\n"
    assert await link.set(VOLTAGE, 5) == 5.0
    assert "SYST:ERR?" not in bench.lines_of(1)
    bench.replies["VOLT 31"] = b"ERR voltage out of range\n"
    with pytest.raises(DriverFailed, match="ERR voltage out of range"):
        await link.set(VOLTAGE, 31)
    bench.replies["VOLT 6"] = b"5.0\n"
    with pytest.raises(OutcomeUnknown, match="neither OK nor an error"):
        await link.set(VOLTAGE, 6)
    assert bench.connections == 1


async def test_such_an_instrument_is_stopped_too(bench: Bench) -> None:
    link = link_to(bench, confirm="reply")
    bench.replies |= {"OUTP OFF": b"OK\n", "VOLT 0": b"OK\n", "OUTP?": b"0\n", "VOLT?": b"0.0\n"}
    assert await link.stop(SAFE) is True
    assert bench.lines_of(1) == ["*IDN?", "OUTP OFF", "OUTP?", "VOLT 0", "VOLT?"]


# --- the stop -------------------------------------------------------------------------------------


async def test_a_stop_takes_a_connection_of_its_own_while_a_query_hangs(
    bench: Bench, nursery: trio.Nursery
) -> None:
    link = link_to(bench, timeout_s=60)
    await link.set(VOLTAGE, 20)
    await link.set(OUTPUT, True)
    bench.replies["MEAS?"] = PATIENCE
    nursery.start_soon(link.get, METER)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert await link.stop(SAFE) is True
    assert (bench.on, bench.volts) == (False, 0.0)
    assert bench.lines_of(2) == ["*IDN?", "OUTP OFF", "OUTP?", "VOLT 0", "VOLT?", "SYST:ERR?"]
    assert bench.lines_of(1)[-1] == "MEAS?"
    nursery.cancel_scope.cancel()


async def test_where_only_one_connection_is_taken_the_stop_closes_the_first_and_takes_its_place(
    bench: Bench, nursery: trio.Nursery
) -> None:
    link = link_to(bench, timeout_s=60)
    await link.set(OUTPUT, True)
    bench.single = True
    bench.replies["MEAS?"] = PATIENCE
    ends: list[str] = []

    async def hang() -> None:
        try:
            await link.get(METER)
        except OutcomeUnknown:
            ends.append("unknown")

    nursery.start_soon(hang)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert await link.stop(SAFE) is True
    assert not bench.on
    assert ends == ["unknown"]


async def test_where_a_second_connection_waits_for_the_first_to_end_the_stop_ends_the_first(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """As an instrument with one session does, whose network stack accepts what it does not serve."""
    bench.one_after_the_other = trio.Lock()
    link = link_to(bench, timeout_s=60)
    await link.set(OUTPUT, True)
    assert await link.stop(SAFE) is True
    assert not bench.on
    assert bench.lines_of(bench.connections)[:2] == ["*IDN?", "OUTP OFF"]


async def test_while_a_stop_is_under_way_nobody_else_connects(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    link = link_to(bench)
    bench.hold_back_s["OUTP?"] = 0.5
    nursery.start_soon(link.stop, SAFE)
    await trio.sleep(0.1)
    with pytest.raises(LinkDown, match="being stopped"):
        await link.get(VOLTAGE)
    await trio.sleep(1)
    assert await link.get(VOLTAGE) == 0.0


async def test_a_mute_instrument_is_never_said_to_be_stopped_and_the_stop_ends_in_its_time(
    bench: Bench, autojump_clock: Any
) -> None:
    bench.replies["*IDN?"] = PATIENCE
    began = trio.current_time()
    assert await link_to(bench, timeout_s=60).stop(SAFE) is False
    assert trio.current_time() - began <= 4.0


async def test_an_output_that_stays_on_is_said_to_be_unsafe_and_the_voltage_is_still_set_to_0(
    bench: Bench,
) -> None:
    link = link_to(bench)
    await link.set(VOLTAGE, 20)
    bench.replies["OUTP?"] = b"1\n"
    assert await link.stop(SAFE) is False
    assert bench.volts == 0.0


async def test_an_unanswered_command_makes_the_stop_state_the_safe_values_a_second_time(
    bench: Bench, autojump_clock: Any
) -> None:
    """The command may lie unread in the instrument and take effect between the two."""
    link = link_to(bench)
    await link.open()
    bench.replies["SYST:ERR?"] = [PATIENCE]
    with pytest.raises(OutcomeUnknown):
        await link.set(OUTPUT, True)
    bench.replies.clear()
    assert await link.stop(SAFE) is True
    assert bench.lines_of(2).count("OUTP OFF") == 2
    assert await link.stop(SAFE) is True
    assert bench.lines_of(3).count("OUTP OFF") == 1


async def test_two_stops_at_once_both_end_confirmed(bench: Bench, nursery: trio.Nursery) -> None:
    link = link_to(bench)
    bench.single = True
    results: list[bool] = []

    async def stop() -> None:
        results.append(await link.stop(SAFE))

    async with trio.open_nursery() as stops:
        stops.start_soon(stop)
        stops.start_soon(stop)
    assert results == [True, True]


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["tcp://127.0.0.1:5025", "tcp://psu.lab.example:1", "tcp://[::1]:5025"])
def test_a_tcp_address_is_host_and_port(link: str) -> None:
    assert callable(tcp_connect(link))


@pytest.mark.parametrize(
    "link",
    [
        "127.0.0.1:5025",
        "tcp://127.0.0.1",
        "tcp://:5025",
        "tcp://h:0",
        "tcp://h:99999",
        "tcp://h:1/x",
        "udp://h:1",
    ],
)
def test_any_other_address_is_refused_with_an_example(link: str) -> None:
    with pytest.raises(OptionInvalid, match="as in tcp://"):
        tcp_connect(link)


def test_an_identity_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="is no regular expression"):
        ScpiLink(tcp_connect("tcp://h:1"), name="x", idn="(", timeout_s=1)
