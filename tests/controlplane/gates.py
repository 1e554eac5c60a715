# SPDX-License-Identifier: Apache-2.0
"""The feature gates that the tests' control planes set, as far as their programs know them.

A gate that a version has not yet, or has no more, would end the program, so the program is asked: its help lists the
gates that can be set.
"""

import re
import subprocess
from functools import cache

WANTED = (
    "DynamicResourceAllocation",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
)
"""What gpu-usher reads of dynamic resource allocation, and what not every supported version has on by default."""
GROUPS = (
    "CompositePodGroup",
    "DRAWorkloadResourceClaims",
    "GangScheduling",
    "GenericWorkload",
    "TopologyAwareWorkloadScheduling",
    "WorkloadAwarePreemption",
)
"""What makes kube-scheduler place PodGroups: alpha in v1.36, the first ones beta in v1.37."""
GROUP_APIS = {False: ("scheduling.k8s.io/v1alpha2",), True: ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3")}
"""The versions of the API with PodGroups: in v1.36, and since v1.37, which also knows groups of groups."""
BETA_APIS = ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2")
"""The versions of the API where the gate DynamicResourceAllocation can still be set, that is, before v1."""
HELP_SECONDS = 60
_GATE = re.compile(r"(?:kube:)?(\w+)=true\|false \((ALPHA|BETA)")


@cache
def settable_gates(command: tuple[str, ...]) -> frozenset[str]:
    """Ask a program of Kubernetes, by the words that start it, which of the gates above can be set."""
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS, check=True)
    listed = {match[1] for match in _GATE.finditer(done.stdout)}
    return frozenset(listed.intersection((*WANTED, *GROUPS)))


def gate_flags(command: tuple[str, ...], wanted: tuple[str, ...] = WANTED) -> dict[str, str]:
    """Return the flag that switches these gates on, in the programs that know any of them."""
    gates = settable_gates(command).intersection(wanted)
    return {"feature-gates": ",".join(f"{gate}=true" for gate in sorted(gates))} if gates else {}


def api_flags(command: tuple[str, ...], wanted: tuple[str, ...] = WANTED) -> dict[str, str]:
    """Return the flags of kube-apiserver that serve what these gates switch on, in the newest version that it has."""
    before_v1 = "DynamicResourceAllocation" in settable_gates(command)
    versions = (
        *(BETA_APIS if before_v1 else ()),
        *(GROUP_APIS["CompositePodGroup" in settable_gates(command)] if set(GROUPS) & set(wanted) else ()),
    )
    served = {"runtime-config": ",".join(f"{version}=true" for version in versions)} if versions else {}
    return {**gate_flags(command, wanted), **served}
