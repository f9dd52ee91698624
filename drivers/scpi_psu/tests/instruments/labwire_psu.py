"""Runs the labwire simulator's supply until standard input closes; prints its port. For Python 3.12 or newer."""

import asyncio
import sys

from labwire.sim import SimPowerSupply


async def main() -> None:
    supply = SimPowerSupply(seed=7)
    await supply.start()
    print(supply.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await supply.stop()


asyncio.run(main())
