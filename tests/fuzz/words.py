# SPDX-License-Identifier: Apache-2.0
"""Words for the mutations: hostile values, odd quantities, nearly valid annotations, and the keys that are read."""

from collections.abc import Sequence
from typing import Any

RAW = {
    "@nan@": b"NaN",
    "@infinity@": b"-Infinity",
    "@overflow@": b"1e999",
    "@underflow@": b"1e-999",
    "@surrogate@": b'"\\ud800"',
    "@pair@": b'"\\ud83d\\ude00"',
    "@nul@": b'"\\u0000"',
    "@digits@": b"1" * 5000,
    "@minus@": b"-0",
    "@lists@": b"[" * 1500 + b"]" * 1500,
    "@objects@": b'{"a":' * 300 + b"1" + b"}" * 300,
    "@utf8@": b'"\xff\xfe"',
    "@twice@": b'{"name":"a","name":1}',
}
"""Bytes that no JSON encoder writes. A placeholder stands for them until the document is encoded."""

SCALARS: Sequence[Any] = (
    *RAW, None, True, False, 0, -1, 1, 1.5, -0.0, 1e300, 2**31, 2**63, -(2**63), 2**64 - 1, "", " ", "x", "\n",
    "null", "NaN", "true", "☃", "\u202e", "٣", "²", "x" * 300, "a/b/c", "~1~0", "../..", "${A}", "<b>", [], {},
    [None], {"": None}, [[]], [{}], {"a": {"b": {}}}, {"name": None}, [0] * 40, "gpu-usher.io/products",
    "nvidia.com/gpu", "Always", "default",
)  # fmt: skip
QUANTITIES: Sequence[Any] = (
    "0", "1", "2", "8", "9", "16", "-1", "+1", "01", "1.0", "1.5", "0.5", "500m", "1500m", "1n", "1k", "1Ki", "40Gi",
    "1Ei", "1E", "1e3", "1E3", "1e-3", "1e18", "1e999", "1e-999999999", "9e999999999", "9" * 39, "9" * 5000, "0x10",
    "1_0", "٣", "１", " 1", "1 ", "1\n", "", ".", "-", "1.", ".5", "Gi", "nan", "inf", "many", 1, 8, 2.0, 0.5, -1,
    2**63, 1e300, True, "9223372036854775808", "0." + "0" * 40 + "1", "1Zi",
)  # fmt: skip
GRAMMAR: Sequence[str] = (
    "H100", "A100", "H200", "T4", "L40S", "NVIDIA-A100-SXM4-*", "*", "!", ",", ", ", ">=", "<=", "=", "-", ".", "..",
    "12", "12.4", "8.0", "9", "535", "40", "Gi", "Mi", "gb", "1g", "1g.10gb", "3g.40gb+me", "7g.80gb", "+", "nvlink",
    "exclusive", "allowed", "forbidden", "training", "inference", "notebook", "batch-inference", "SXM", "PCIe", " ",
    "\t", "\n", "é", "٣", "²", "\u0000", "e", "E9", "x" * 70, "None", "true", '"', "\\", "9" * 30,
)  # fmt: skip
ANNOTATIONS: Sequence[str] = (
    "products", "cuda", "gpu-memory", "compute-capability", "interconnect", "sharing", "mig-profile",
    "workload-class", "decision", "allow-hostile", "gpu-memory ", "Products", "", "x" * 300, "form-factor",
    "node-selector",
)  # fmt: skip
KEYS: Sequence[str] = (
    "", "\u0000", "metadata", "name", "namespace", "uid", "labels", "annotations", "ownerReferences", "generateName",
    "spec", "status", "containers", "initContainers", "ephemeralContainers", "resources", "limits", "requests",
    "claims", "resourceClaims", "resourceClaimTemplateName", "env", "envFrom", "value", "valueFrom", "image",
    "nodeSelector", "affinity", "nodeAffinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms", "matchExpressions", "matchFields", "key", "operator", "values", "tolerations", "effect",
    "volumes", "emptyDir", "volumeMounts", "mountPath", "restartPolicy", "priorityClassName", "runtimeClassName",
    "schedulerName", "schedulingGates", "nodeName", "overhead", "hostPID", "securityContext", "privileged",
    "deletionTimestamp", "nominatedNodeName", "phase", "allocatable", "capacity", "taints", "unschedulable",
    "devices", "attributes", "basic", "consumesCounters", "exactly", "firstAvailable", "count", "allocationMode",
    "deviceClassName", "selectors", "cel", "expression", "allocation", "results", "data", "object", "oldObject",
    "options", "dryRun", "subResource", "operation", "kind", "apiVersion", "items", "Pods", "UID", "NumPDBViolations",
    "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com/gpu", "nvidia.com/gpu.product",
    "nvidia.com/gpu.memory", "nvidia.com/cuda.driver-version.full", "nvidia.com/gpu.sharing-strategy",
    "nvidia.com/gpu.replicas", "nvidia.com/mig.strategy", "nvidia.com/mig.config.state", "NVIDIA_REQUIRE_CUDA",
    "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip
