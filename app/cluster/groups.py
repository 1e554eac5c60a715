# SPDX-License-Identifier: Apache-2.0
"""Groups: dicts by group and key, out of which empty groups go."""

from typing import Any


def remove(groups: dict[str, dict[str, Any]], group: str, key: str) -> None:
    """Take a key out of its group, and the group with its last key: names of nodes that are gone must not pile up."""
    del groups[group][key]
    if not groups[group]:
        del groups[group]
