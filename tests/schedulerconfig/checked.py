# SPDX-License-Identifier: Apache-2.0
"""Check a configuration by the shipped tables."""

from typing import Any

from app.schedulerconfig import verify as verified
from tests.builders import knowledge


def verify(file: str, text: str, *known: Any, **of_the_fleet: Any) -> list[verified.ConfigurationFinding]:
    """Check a configuration for what is known of a fleet."""
    return verified.verify(knowledge().scheduler_findings, file, text, *known, **of_the_fleet)
