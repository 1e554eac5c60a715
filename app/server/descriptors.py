# SPDX-License-Identifier: Apache-2.0
"""Raises the limit of open files and sockets of this process."""

import contextlib
import resource

TARGET_DESCRIPTORS = 4_096
"""Three listeners of 640 connections, and as many descriptors again for watches, logs and policies. Many systems start
processes with a limit of 1,024."""


def raise_descriptor_limit(target: int = TARGET_DESCRIPTORS) -> int:
    """Raise the soft limit to `target`, or to the hard limit if that is lower; return the limit then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            most = target if hard == resource.RLIM_INFINITY else min(hard, target)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
