# SPDX-License-Identifier: Apache-2.0
"""The largest inputs per route and kind: those that are just accepted, and those that are far too large, as bytes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from app.api.bodies import ADMISSION_LIMIT
from app.api.preemption import MOST_CANDIDATES, MOST_VICTIMS
from app.api.wire import MOST_NAMES, MOST_VALUES
from app.kube.pod_limits import (
    MOST_CLAUSES,
    MOST_CONTAINERS,
    MOST_EXTENDED,
    MOST_LABELS,
    MOST_RESOURCES,
    MOST_VARIABLES,
)
from app.policy.document import LARGEST_POLICY_BYTES, MOST_DOCUMENTS
from app.policy.document import MOST_YAML_VALUES as MOST_VALUES_OF_TEXT
from app.policy.load import MOST_POLICY_VALUES as MOST_VALUES_OF_POLICY
from tests.builders import container, gpus, node_document, pod, policy

SLICES = ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb")
GPU = gpus(1)
FILLER = 7 << 20
"""Characters of a text that nearly fills a body."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input.

    `route` is the last part of the path that it is posted to. `sent` is its JSON, as text, as a document, or as what
    makes one, which is written only when asked for: all bodies together take seconds. `refusal` holds words of its
    refusal, or "".
    """

    name: str
    route: str
    sent: bytes | Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    refusal: str = ""

    @property
    def body(self) -> bytes:
        """The bytes that are posted."""
        sent = self.sent() if callable(self.sent) else self.sent
        return sent if isinstance(sent, bytes) else as_json(sent)


def as_json(document: Any) -> bytes:
    """Write compact JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def review_of(resource: str, document: Mapping[str, Any], group: str = "", namespace: str = "team-a") -> dict[str, Any]:
    """Make the AdmissionReview of an object's creation."""
    kind = {"group": group, "version": "v1", "resource": resource}
    request = {"uid": "u", "operation": "CREATE", "namespace": namespace, "resource": kind, "object": document}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def gpu_policy(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Make the review of a GPUPolicy."""
    head = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": "a"}}
    return review_of("gpupolicies", {**head, "spec": spec}, "gpu-usher.io")


def config_map(**texts: str) -> dict[str, Any]:
    """Make the review of a ConfigMap with policies."""
    metadata = {"name": "a", "namespace": "gpu-usher", "labels": {"gpu-usher.io/policy": "true"}}
    return review_of("configmaps", {"metadata": metadata, "data": texts}, namespace="gpu-usher")


def products(count: int) -> dict[str, Any]:
    """Allow that many products, each of which is unknown and similar to a known one."""
    return {"placement": {"products": {"allow": [f"H1O0-{index}" for index in range(count)]}}}


def repeated(line: str, characters: int = LARGEST_POLICY_BYTES) -> str:
    """Repeat a line of YAML up to a number of characters."""
    return line * (characters // len(line))


def policy_inputs() -> list[Input]:
    """List policies at each limit, and far beyond it."""
    selector = [{"key": f"k{index}", "operator": "In", "values": ["a", "b"]} for index in range(60)]
    one_priority = "---\n".join(
        policy(f"p{index}", f"priority: 7, match: {{podSelector: {{matchLabels: {{a{index}: b}}}}}},"
               f" admission: {{runtimeClassName: c{index}}}")
        for index in range(200)
    )  # fmt: skip
    documents = "---\n".join(policy(f"p{index}", f"priority: {index}") for index in range(MOST_DOCUMENTS))
    inputs = (
        ("300,000 products", gpu_policy(products(300_000)), "values"),
        ("products past the limit", gpu_policy(products(MOST_VALUES_OF_POLICY)), "values"),
        ("most products", gpu_policy(products(MOST_VALUES_OF_POLICY - 20)), "at most 128"),
        ("unknown fields", gpu_policy({f"prioriti{index}": 1 for index in range(MOST_VALUES_OF_POLICY // 2 - 20)}),
         "unknown field"),
        ("one long unknown field", gpu_policy({"x" * FILLER: 1}), "characters"),
        ("one long product", gpu_policy({"placement": {"products": {"deny": ["x" * 60_000]}}}), "wants"),
        ("selectors", gpu_policy({"match": {"podSelector": {"matchExpressions": selector}}}), ""),
        ("1 MiB of ---", config_map(a=repeated("---\n")), "lines"),
        ("1 MiB of lines", config_map(a=repeated("- a\n")), "lines"),
        ("1 MiB of [],", config_map(a="[" + repeated("[],", LARGEST_POLICY_BYTES - 2) + "]"), "values"),
        ("1 MiB of [", config_map(a=repeated("[")), "values"),
        ("1 MiB of comments", config_map(a=repeated("#\n")), ""),
        ("1 MiB of one word", config_map(a=repeated("x")), "characters"),
        ("1 MiB of one number", config_map(a="a: 1" + repeated(":1", LARGEST_POLICY_BYTES - 8)), "lines"),
        ("most values of a text", config_map(a=repeated("--- [" + "a," * 900 + "]\n", MOST_VALUES_OF_TEXT * 2 - 200)),
         "no mapping"),
        ("most documents", config_map(a=documents), ""),
        ("more documents", config_map(a="---\n---\n" + documents), "documents"),
        ("texts of one ConfigMap", config_map(**{f"k{index}": policy(f"p{index}", "") for index in range(250)}), ""),
        ("more texts", config_map(**{f"k{index}": "" for index in range(300)}), "keys"),
        ("contradictions of one priority", config_map(a=one_priority), "differently"),
    )  # fmt: skip
    return [Input(f"policy: {name}", "validate", body, refusal) for name, body, refusal in inputs]


def pod_documents() -> dict[str, tuple[dict[str, Any], str]]:
    """Return pods by name, each with words of its refusal, or "" if it is accepted."""

    def named(count: int, **more: Any) -> list[dict[str, Any]]:
        return [{**container(), "name": f"c{index}", **more} for index in range(count)]

    def of(amounts: Mapping[str, int], **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": dict(amounts)}, **more}

    def env(names: list[str], value: str = "all") -> dict[str, Any]:
        return {"env": [{"name": name, "value": value} for name in names]}

    four = dict.fromkeys(SLICES, 1)
    plain = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    visible = ["NVIDIA_VISIBLE_DEVICES"]
    clauses = " ".join(f"cuda>=12.{index}" for index in range(MOST_CLAUSES - 1))
    mounts = [{"name": "a", "mountPath": f"/var/run/nvidia-container-devices/{index}"} for index in range(1_000)]
    odd = [{"name": "a", "mountPath": "/nvidia-container-devices/../" * 100} for _ in range(2_000)]
    term = {"matchExpressions": [{"key": "k", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * 20_000}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}] * 15_000}
    annotated = {
        "products of 200,000 characters": {"products": "x" * 200_000},
        "45,000 products": {"products": "x," * 45_000},
        "patterns": {"products": ",".join(f"*-{index}-*-a-*" for index in range(32))},
        "memory of 200,000 digits": {"gpu-memory": "9" * 200_000},
        "memory of spaces": {"gpu-memory": " " * 200_000 + "Gi"},
        "long version": {"cuda": "1." * 100_000},
        "long profile": {"mig-profile": "1g." * 60_000},
        "forged record": {"decision": '{"v":1,"actions":[' + ",".join(['"a"'] * 60_000) + "]}"},
        "nested record": {"decision": "[" * 90_000},
    }
    made = {
        "1,000 containers of 4 slices": (pod(*named(1_000, **of(four))), "at most"),
        "most containers": (pod(GPU, *named(MOST_CONTAINERS - 1, resources=plain)), ""),
        "most slices": (pod(*named(MOST_EXTENDED // 4, **of(four))), ""),
        "most GPU containers": (pod(*named(MOST_EXTENDED, **of({SLICES[0]: 1}))), ""),
        "most kinds": (pod(container(None, {f"nvidia.com/mig-{k}": 1 for k in range(MOST_RESOURCES)})), ""),
        "most variables": (pod(*named(1, **env(visible * MOST_VARIABLES))), ""),
        "more variables": (pod(*named(1, **env(visible * 20_000))), "at most"),
        "45,000 plain variables": (pod(GPU, *named(1, **env(["A"] * 45_000))), ""),
        "wide containers": (pod(GPU, *named(MOST_CONTAINERS - 1, **env(["A"] * (30_000 // MOST_CONTAINERS)))), ""),
        "requirements": (pod({**GPU, **env(["NVIDIA_REQUIRE_CUDA"], clauses)}), ""),
        "more requirements": (pod({**GPU, **env(["NVIDIA_REQUIRE_CUDA"], clauses + " a" * 9)}), "comparisons"),
        "device mounts": (pod(*named(1, volumeMounts=mounts)), ""),
        "more device mounts": (pod(*named(1, volumeMounts=mounts * 30)), ""),
        "odd mounts": (pod({**GPU, "volumeMounts": odd}), ""),
        "tolerations": (pod(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}] * 45_000), ""),
        "required terms": (pod(affinity={"nodeAffinity": required}), ""),
        "preferred terms": (pod(affinity={"nodeAffinity": preferred}), ""),
        "nodeSelector": (pod(nodeSelector={f"k{index}": "x" for index in range(90_000)}), ""),
        "volumes": (pod(volumes=[{"name": f"v{index}", "hostPath": {"path": "/dev"}} for index in range(30_000)]), ""),
        "claims": (pod(resourceClaims=[{"name": f"c{k}", "resourceClaimName": "x"} for k in range(40_000)]), "at most"),
        "long image": (pod({**GPU, "image": "x" * FILLER}), "characters"),
        "long name": (pod({**GPU, "name": "x" * FILLER}), "characters"),
        "long command": (pod({**GPU, "command": ["x" * FILLER]}), ""),
        "values past the limit": (pod({**GPU, "args": ["x"] * MOST_VALUES}), "values"),
        "most values": (pod({**GPU, "args": ["x"] * (MOST_VALUES - 100)}), ""),
        "fractions": (pod({**GPU, "args": [1.7976931348623157e308] * (MOST_VALUES - 100)}), ""),
    }  # fmt: skip
    for name, count, words in (("most labels", MOST_LABELS, ""), ("more labels", 90_000, "at most")):
        document = pod()
        document["metadata"]["labels"] = {f"k{index}": "x" for index in range(count)}
        made[name] = document, words
    managed = pod(annotations={"decision": '{"v":1,"actions":["a"]}'})
    managed["metadata"]["managedFields"] = [{"fieldsV1": {f"f:{index}": {} for index in range(40_000)}}]
    made["managed fields"] = managed, ""
    return {**made, **{name: (pod(annotations=annotations), "") for name, annotations in annotated.items()}}


UNEXPLAINED = {"nodeSelector": "spec.nodeSelector: got 90000"}
"""Pods that are admitted without a change, but are too large to explain."""


def pod_inputs() -> list[Input]:
    """List pods as they come to each route that reads one."""
    inputs = []
    for name, (document, refusal) in pod_documents().items():
        for verb in ("mutate", "validate"):
            inputs.append(Input(f"pod: {name}", verb, review_of("pods", document), refusal))
        inputs.append(Input(f"pod: {name}", "filter", {"Pod": document, "NodeNames": ["n"]}, refusal))
        inputs.append(Input(f"pod: {name}", "dry-run", document, refusal))
        inputs.append(Input(f"pod: {name}", "explain", document, refusal or UNEXPLAINED.get(name, "")))
    return inputs


def question_inputs() -> list[Input]:
    """List arguments of the extender; whole nodes are read in steps, and as many as there are known nodes."""

    def names(count: int, length: int = 1) -> dict[str, Any]:
        return {"Pod": pod(), "NodeNames": [f"{index}".rjust(length, "n") for index in range(count)]}

    def victims(nodes: int, pods: int) -> dict[str, Any]:
        meta = {f"n{index}": {"Pods": [{"UID": "u"}] * pods, "NumPDBViolations": 0} for index in range(nodes)}
        return {"Pod": pod(), "NodeNameToMetaVictims": meta}

    whole = [{**node_document(f"n{index}"), "spec": {"podCIDR": "x" * 20_000}} for index in range(150)]
    large = node_document("n", labels={f"k{index}": "x" for index in range(80_000)})
    inputs = []
    for verb in ("filter", "prioritize"):
        made: tuple[tuple[str, bytes | Mapping[str, Any] | Callable[[], Mapping[str, Any]], str], ...] = (
            ("most names", names(MOST_NAMES), ""),
            ("names too many", names(MOST_NAMES + 1), "at most"),
            ("long names", names(7, 1 << 20), ""),
            ("a million names", partial(names, 1_000_000), "at most"),
            ("150 whole nodes", {"Pod": pod(), "Nodes": {"items": whole}}, ""),
            ("a node of 80,000 labels", {"Pod": pod(), "Nodes": {"items": [large]}}, ""),
            ("nodes of nothing", b'{"Pod":{},"Nodes":{"items":[' + b"1," * 3_000_000 + b"1]}}", "at most"),
        )
        inputs += [Input(f"question: {name}", verb, body, refusal) for name, body, refusal in made]
    most = MOST_VICTIMS // MOST_CANDIDATES
    return [
        *inputs,
        Input("question: most victims", "preempt", victims(MOST_CANDIDATES, most), ""),
        Input("question: more candidates", "preempt", victims(MOST_CANDIDATES + 1, 1), "at most"),
        Input("question: a hundred thousand candidates", "preempt", partial(victims, 100_000, 1), "at most"),
        Input("question: a million victims", "preempt", partial(victims, 1, 1_000_000), "at most"),
    ]


def json_inputs() -> list[Input]:
    """List JSON of the largest size that a body of admission may have, each of one kind of value."""
    inputs: tuple[tuple[str, str, str], ...] = (
        ("lists", "[],", "values"),
        ("objects", "{},", "values"),
        ("integers", "1,", "values"),
        ("fractions", "1.7976931348623157e308,", "values"),
        ("words", '"a",', "values"),
        ("integers of 4,000 digits", "9" * 4_000 + ",", "digits"),
        ("integers of 300 digits", "9" * 300 + ",", ""),
        ("escapes", '"' + "\\ud83d\\ude00" * 5_000 + '",', ""),
    )
    made = []
    for name, text, refusal in inputs:
        values = "[" + text * ((ADMISSION_LIMIT - 400) // len(text)) + "1]"
        made.append(Input(f"JSON: {name}", "dry-run", f'{{"x":{values}}}'.encode(), refusal))
        wrapped = as_json(review_of("pods", {"x": "VALUES"})).replace(b'"VALUES"', values.encode())
        made.append(Input(f"JSON: {name}", "validate", wrapped, refusal))
    return made


@cache
def largest() -> tuple[Input, ...]:
    """List all inputs."""
    makers: tuple[Callable[[], list[Input]], ...] = (policy_inputs, pod_inputs, question_inputs, json_inputs)
    return tuple(entry for make in makers for entry in make())
