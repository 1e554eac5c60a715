# SPDX-License-Identifier: Apache-2.0
"""The wall clock, for the edges of the program; the core reads no clock."""

import datetime as dt


def now() -> dt.datetime:
    """Return the time of the wall clock, in UTC."""
    return dt.datetime.now(dt.UTC)


def today() -> str:
    """Return the day in UTC, as YYYY-MM-DD."""
    return now().date().isoformat()
