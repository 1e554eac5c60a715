# SPDX-License-Identifier: Apache-2.0
"""Scenes of a night with failures, and the first line that `doctor` has for each, with kubelets and without."""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from app.doctor.node_states import NOT_READY
from app.telemetry.logs import now
from tests.controlplane.cluster import ControlPlane
from tests.e2e.test_doctor import patched_object, replaced

Scene = Callable[[ControlPlane], AbstractContextManager[None]]
MIG, UPGRADE = "nvidia.com~1mig.config.state", "nvidia.com~1gpu-driver-upgrade-state"
"""Labels, as JSON patches write them."""
FIRST_LINES: Mapping[str, tuple[str, str]] = {
    "replicas 0": ("NoReadyEndpoint", "Deployment gpu-usher is scaled to 0"),
    "replica crashes": ("NoReadyEndpoint", "gpu-usher: tls.crt: valid until 18:00Z, not now"),
    "certificates": ("ReplicasUnavailable", "scaled to 0, so that our certificates are not"),
    "MIG failed": ("MIGLayoutFailed", "MIG Manager failed"),
    "MIG pending": ("MIGReconfiguring", "nvidia.com/mig.config.state=pending for 3 h"),
    "upgrade failed": ("DriverUpgrading", "driver upgrade failed"),
    "profile misnamed": ("SchedulerConfiguration", "none is named gpu-usher-scheduler"),
    "policy unreadable": ("PolicyUnreadable", "own.yaml"),
    "no webhook": ("WebhookAbsent", "GPU pods are created without being reviewed"),
    "caBundle of another": ("Certificate", "none of the 1 CAs"),
    "kubelet gone": (NOT_READY, "1 GPU node with 8 GPUs does not answer since"),
    "two nodes gone": (NOT_READY, "2 GPU nodes with 16 GPUs do not answer since"),
    "GPU withdrawn": ("GPUUnhealthy", "1 of 8 nvidia.com/gpu withdrawn by the device plugin"),
}
"""Scene → the check and a part of the text of its first line."""


def label(node: str, key: str, value: str) -> Scene:
    """Set a label of a node, which is named by its path."""
    return lambda plane: patched_object(plane, node, replaced(f"/metadata/labels/{key}", value))


def pending_for_hours(node: str) -> Scene:
    """Leave a change of the MIG layout pending for three hours.

    Another writer sets the time back, with an annotation: a request that changes times alone changes nothing.
    """

    @contextmanager
    def scene(plane: ControlPlane) -> Iterator[None]:
        with label(node, MIG, "pending")(plane):
            document = plane.api.get(node)
            for writer in document["metadata"]["managedFields"]:
                writer["time"] = (now() - dt.timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
            document["metadata"].setdefault("annotations", {})["example.com/clock"] = "set back"
            plane.api.client.put(node, json=document, params={"fieldManager": "clock"}).raise_for_status()
            yield

    return scene
