# SPDX-License-Identifier: Apache-2.0
"""All attacks, in the order in which a round runs them."""

import os
import time
from pathlib import Path

from tests.attacks.connections import CONNECTION_ATTACKS
from tests.attacks.posts import POST_ATTACKS
from tests.attacks.target import Target, raise_descriptor_limit

NICE = 19
"""The lowest priority; otherwise a dozen attackers on two cores would take all CPU time from the replica."""
ATTACKS = (*CONNECTION_ATTACKS, *POST_ATTACKS)


def attack_until(name: str, tls: int, ops: int, ca: str, seconds: float) -> None:
    """Run one attack in this process, with the lowest priority, as attackers elsewhere have CPUs of their own."""
    os.nice(NICE)
    raise_descriptor_limit()
    chosen = next(attack for attack in ATTACKS if attack.name == name)
    chosen.run(Target(tls, ops, Path(ca), time.monotonic() + seconds))
