# SPDX-License-Identifier: Apache-2.0
"""All attacks, in the order in which a round runs them."""

import os
import time
from pathlib import Path

from tests.attacks.connections import CONNECTION_ATTACKS
from tests.attacks.posts import POST_ATTACKS
from tests.attacks.target import Target, raise_descriptor_limit

NICE = 19
"""The least weight; a dozen attackers on the two cores of a small machine would else starve what they attack."""
ATTACKS = (*CONNECTION_ATTACKS, *POST_ATTACKS)


def attack_until(name: str, tls: int, ops: int, ca: str, seconds: float) -> None:
    """Run one attack in this process, which takes the CPU time that the replica leaves: elsewhere it has its own."""
    os.nice(NICE)
    raise_descriptor_limit()
    found = next(attack for attack in ATTACKS if attack.name == name)
    found.run(Target(tls, ops, Path(ca), time.monotonic() + seconds))
