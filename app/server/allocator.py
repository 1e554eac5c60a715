# SPDX-License-Identifier: Apache-2.0
"""The C allocator told to give large blocks back to the system."""

import contextlib
import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt (glibc malloc.h M_TRIM_THRESHOLD, M_MMAP_THRESHOLD)."""
LARGE = 256 << 10
"""Bytes: bodies from this size on are counted as they come (app/api/bodies.py)."""


def give_large_blocks_back() -> None:
    """Keep large blocks out of the heap, where what lies behind one keeps its memory for ever.

    glibc raises its threshold to the largest block freed, up to 32 MiB, so that bodies of strangers then lie in the
    heap: after 50 minutes of attacks it held 356 MiB. Nothing happens where there is no glibc.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(MMAP_THRESHOLD, LARGE)
            libc.mallopt(TRIM_THRESHOLD, LARGE)
