# SPDX-License-Identifier: Apache-2.0
"""Health of GPUs as others report it (F72)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """How many GPUs of a node are ill (to be drained now) or ailing, and why, in words for people."""

    ill: int = 0
    ailing: int = 0
    causes: tuple[str, ...] = ()
