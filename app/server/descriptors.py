# SPDX-License-Identifier: Apache-2.0
"""How many files and sockets this process may have open."""

import contextlib
import resource

WANTED = 4_096
"""Three listeners of 640 connections each, and as many again for watches, logs and policies; many systems start at
1,024."""


def raise_descriptor_limit(wanted: int = WANTED) -> int:
    """Raise our own limit as far as we may and want; gives what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
