"""A bench supply for sinstruments-server: SCPI with an error queue, and a meter that can be made to hang.

It runs in the instrument server's own process and knows nothing of mhsd. `SIM:` lines are the test's: `SIM:HOLD`
makes MEAS:VOLT? wait until `SIM:RELEASE`, `SIM:WAITING?` is answered when it does, `SIM:LOG?` tells what happened
in which order.
"""

from gevent.event import Event
from sinstruments.simulator import BaseDevice

IDENTITY = "EXAMPLE,BENCH-30-5,0001,2.1"


class ErrorQueuePsu(BaseDevice):
    """30 V, 5 A, into 10 ohm."""

    newline = b"\n"

    def __init__(self, name, **options):
        super().__init__(name, **options)
        self.volts, self.limit, self.on = 0.0, 1.0, False
        self.errors = ['-350,"Left over from before"']
        self.log = []
        self.released = Event()
        self.released.set()
        self.waiting = Event()

    def handle_message(self, message):
        line = message.decode().strip()
        reply = self.query(line) if line.endswith("?") else self.command(line)
        return None if reply is None else f"{reply}\r\n".encode()

    def query(self, line):
        if line == "SIM:LOG?":
            return ";".join(self.log)
        if line == "SIM:WAITING?":
            self.waiting.wait()
            return "1"
        if line == "MEAS:VOLT?" and not self.released.is_set():
            self.log.append("meter waits")
            self.waiting.set()
            self.released.wait()
            self.log.append("meter answers")
        if line == "SYST:ERR?":
            return self.errors.pop(0) if self.errors else '+0,"No error"'
        actual = min(self.volts, self.limit * 10) if self.on else 0.0
        return {
            "*IDN?": IDENTITY,
            "VOLT?": f"{self.volts:+.6E}",
            "CURR?": f"{self.limit:+.6E}",
            "OUTP?": str(int(self.on)),
            "MEAS:VOLT?": f"{actual:+.6E}",
            "MEAS:CURR?": f"{actual / 10:+.6E}",
        }.get(line)

    def command(self, line):
        head, _, argument = line.partition(" ")
        self.log.append(line)
        if line == "SIM:HOLD":
            self.released.clear()
            self.waiting.clear()
        elif line == "SIM:RELEASE":
            self.released.set()
        elif line in ("OUTP ON", "OUTP OFF"):
            self.on = argument == "ON"
        elif head == "VOLT" and 0 <= float(argument) <= 30:
            self.volts = float(argument)
        elif head == "CURR" and 0 <= float(argument) <= 5:
            self.limit = float(argument)
        else:
            self.errors.append('-222,"Data out of range"')
