"""Sweeps a power supply and writes what it measures to a CSV file.

    mhsd scpi-psu
    mhsctl run psu_sweep.py --to 5 --step 0.5 -o sweep.csv

A code file: it stops at the first command that is not carried out, and its ledger ties the measurements to the
endpoint's evidence. The device goes to its safe state when the session ends, however it ends.
"""

import argparse
import csv

import mhsd

options = argparse.ArgumentParser(description="Sweep a power supply and write what it measures.")
options.add_argument("--to", type=float, default=5.0, metavar="V", help="the last voltage")
options.add_argument("--step", type=float, default=0.5, metavar="V", help="from one voltage to the next")
options.add_argument("--limit", type=float, default=1.0, metavar="A", help="the current limit")
options.add_argument("-o", "--output", default="sweep.csv", metavar="FILE")
asked = options.parse_args()

with mhsd.lab(device_ids="psu") as psu, open(asked.output, "w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["set_v", "measured_v", "measured_a", "receipt_id"])
    psu.write("output", {"voltage_v": 0, "current_a": asked.limit})
    psu.invoke("cap.electrical.output.v1", {"enabled": True})
    for number in range(round(asked.to / asked.step) + 1):
        voltage_v = round(number * asked.step, 6)
        psu.write("output", {"voltage_v": voltage_v})
        sample = psu.invoke("cap.measure.sample.v1", {})
        measured = sample.output
        table.writerow([voltage_v, measured["voltage_v"], measured["current_a"], sample["receipt_id"]])
    psu.invoke("cap.electrical.output.v1", {"enabled": False})
