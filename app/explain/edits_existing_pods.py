# SPDX-License-Identifier: Apache-2.0
"""Edits for kube-scheduler's objections because of other pods: each drops one inter-pod constraint of the pod."""

from collections.abc import Iterator

from app.explain.edits import Document, Edit, NearMiss, containers_of
from app.intree.causes import InTreeCause
from app.intree.existing_pods import REQUIRED


def drop_host_port(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop a host port that another pod on the node uses."""
    if near_miss.code is not InTreeCause.HostPortTaken:
        return
    number, protocol = near_miss.about

    def drop(pod: Document) -> None:
        for container in containers_of(pod):
            for port in container.get("ports") or ():
                if (str(port.get("hostPort")), port.get("protocol") or "TCP") == (number, protocol):
                    del port["hostPort"]

    yield Edit("drop-host-port", f"drop hostPort {number}/{protocol}", 22, drop)


def drop_pod_affinity(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop one required term of pod affinity or anti-affinity."""
    if near_miss.code is InTreeCause.PodAffinityMismatch:
        kind, words = "podAffinity", "affinity"
    elif near_miss.code is InTreeCause.PodAntiAffinityConflict:
        kind, words = "podAntiAffinity", "anti-affinity"
    else:
        return
    key, index = near_miss.about

    def drop(pod: Document) -> None:
        del pod["spec"]["affinity"][kind][REQUIRED][int(index)]

    yield Edit(f"drop-pod-{words}", f"drop the required pod {words} over {key}", 23, drop)


def soften_spread(near_miss: NearMiss) -> Iterator[Edit]:
    """Make a required topology spread constraint a preferred one."""
    if near_miss.code is not InTreeCause.TopologySpreadConflict:
        return
    key, index = near_miss.about

    def soften(pod: Document) -> None:
        pod["spec"]["topologySpreadConstraints"][int(index)]["whenUnsatisfiable"] = "ScheduleAnyway"

    yield Edit("soften-spread", f"set whenUnsatisfiable: ScheduleAnyway for the spread over {key}", 21, soften)


EXISTING_PODS = (
    drop_host_port,
    drop_pod_affinity,
    soften_spread,
)
