# SPDX-License-Identifier: Apache-2.0
"""What the tests of waking share: the service with Events, as deploy/ has it, and how long a pod waits after a change.

`GPU_USHER_EVENTS=false pytest -s` measures the same without Events, where the assertions may fail.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import kubelets, pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.stage import Service, grant_events, install_webhooks, serving, start_scheduler, wait_for_node

EVENTS = "GPU_USHER_EVENTS"
PATIENCE_SECONDS = 60
"""A fifth of the time after which kube-scheduler flushes its queue: a pod that is bound within it was woken."""


@contextmanager
def waking_service(plane: ControlPlane, *words: str, **flags: str) -> Iterator[Service]:
    """Run the service with Events and the webhooks, and a scheduler with the extender.

    `words` are those of `scheduler-config`.
    """
    grant_events(plane)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EVENTS, os.environ.get(EVENTS, "true"))
        with serving(plane, **flags) as running, kubelets(plane.api):
            install_webhooks(plane, running)
            start_scheduler(plane, running, *words)
            yield running


def seconds_until_bound(plane: ControlPlane, pod: Object, change: Callable[[], object], patience: float) -> float:
    """Make a change, and return the seconds until a pod is bound, or infinity; the pod is deleted then."""
    began = time.monotonic()
    change()
    try:
        wait_for_node(plane, pod, patience)
        return time.monotonic() - began
    except AssertionError:
        return float("inf")
    finally:
        plane.api.delete(pod_path(pod))
