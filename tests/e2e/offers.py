# SPDX-License-Identifier: Apache-2.0
"""What the API server offers of dynamic resource allocation, by its own word: nothing here reads a version number."""

import pytest

from app.kube.api_kinds import API_KINDS
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object

GROUP = "resource.k8s.io"
KNOWN_VERSIONS = API_KINDS["ResourceClaim"].versions
CLASS_NAME, RESOURCE = "gpu.nvidia.com", "nvidia.com/gpu"


def served_versions(plane: ControlPlane, group: str) -> list[str]:
    """List the versions of an API group that the API server serves; none where it does not know the group."""
    answer = plane.api.client.get(f"/apis/{group}")
    return [entry["version"] for entry in answer.json()["versions"]] if answer.is_success else []


def dra_version(plane: ControlPlane) -> str:
    """Find the newest version of DRA that the API server serves and gpu-usher reads; without one the test skips."""
    served = served_versions(plane, GROUP)
    for version in KNOWN_VERSIONS:
        if version in served:
            return version
    return pytest.skip(
        f"The API server serves none of {GROUP} {', '.join(KNOWN_VERSIONS)}. Choose a version that does."
    )


def dra_path(plane: ControlPlane) -> str:
    """Return the path of DRA's kinds in the version that dra_version finds."""
    return f"/apis/{GROUP}/{dra_version(plane)}"


def keeps_extended_resources(plane: ControlPlane) -> bool:
    """Tell whether a DeviceClass can serve an extended resource here (KEP-5004), or the field is dropped."""
    written = {"metadata": {"name": CLASS_NAME}, "spec": {"extendedResourceName": RESOURCE}}
    stored = plane.api.create(f"{dra_path(plane)}/deviceclasses?dryRun=All", written)
    return "extendedResourceName" in stored["spec"]


def keeps_counters(plane: ControlPlane) -> bool:
    """Tell whether devices can share counters here (KEP-4815), or the field is dropped or refused."""
    return "sharedCounters" in try_slice(plane, sharedCounters=COUNTERS).get("spec", {})


def keeps_counters_apart(plane: ControlPlane) -> bool:
    """Tell whether devices may use the counters of another ResourceSlice of their pool, without any of their own."""
    device = {"name": "d", "consumesCounters": [{"counterSet": "c", "counters": COUNTERS[0]["counters"]}]}
    return keeps_counters(plane) and bool(try_slice(plane, devices=[device]))


COUNTERS: list[Object] = [{"name": "c", "counters": {"memory": {"value": "1"}}}]


def try_slice(plane: ControlPlane, **fields: object) -> Object:
    """Create a ResourceSlice as a dry run, and return it as it would be stored; {} if it is refused."""
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 2}
    written = {"metadata": {"name": "s"}, "spec": {"driver": CLASS_NAME, "nodeName": "n", "pool": pool, **fields}}
    answer = plane.api.try_create(f"{dra_path(plane)}/resourceslices?dryRun=All", written)
    stored: Object = answer.json() if answer.is_success else {}
    return stored
