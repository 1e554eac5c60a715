# SPDX-License-Identifier: Apache-2.0
"""The wall clock, for edges: the core reads none."""

import datetime as dt


def now() -> dt.datetime:
    """Read the wall clock, in UTC."""
    return dt.datetime.now(dt.UTC)


def today() -> str:
    """Give the day of the UTC calendar, as YYYY-MM-DD."""
    return now().date().isoformat()
