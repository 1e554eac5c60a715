# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz 1000000 51` writes tests/results/fuzz.md after each of 51 rounds. `… mutate 17` writes that
input."""

import sys

from tests.fuzz.campaign import RESULTS, body_of, run, table
from tests.fuzz.targets import TARGETS

what, number = sys.argv[1], int(sys.argv[2])
if what.isdecimal():
    crashed = False
    for campaign in run(int(what), number):
        RESULTS.write_text(table(campaign), "utf-8")
        crashed = bool(campaign.crashes)
    sys.exit(crashed)
(target,) = (candidate for candidate in TARGETS if candidate.name == what)
sys.stdout.buffer.write(body_of(target, number))
