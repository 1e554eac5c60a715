# SPDX-License-Identifier: Apache-2.0
"""Kinds of bad edits of policies: each is the content of the file `own.yaml` that was valid before."""

from tests.builders import policy

VALID = policy("own", "priority: 40, placement: {products: {deny: [T4]}}")
TIED = "own and base both have priority 30"
MISTAKES: dict[str, tuple[str | bytes, str]] = {
    "field": (policy("own", "admission: {maxGpusPerPod: 4}"), "did you mean maxGPUsPerPod?"),
    "field of the spec": (policy("own", "placment: {}"), "did you mean placement?"),
    "field beside the spec": (policy("own", "") + "specs: {}\n", "specs: unknown field"),
    "kind": ("kind: nope", "kind: got the text 'nope', wants GPUPolicy"),
    "version": (policy("own", "").replace("v1alpha1", "v1"), "did you mean gpu-usher.io/v1beta1?"),
    "no name": (policy("own", "").replace("{name: own}", "{}"), "metadata.name: missing, wants text, such as training"),
    "name of another": (policy("base", "priority: 5"), "base is taken by"),
    "tie with another": (policy("own", "priority: 30, admission: {runtimeClassName: other}"), TIED),
    "product": (policy("own", "placement: {products: {allow: [H10O]}}"), "unknown product 'H10O'"),
    "pattern": (policy("own", "placement: {products: {allow: [A1*]}}"), "A1*"),
    "type": (policy("own", "priority: high"), "spec.priority: "),
    "bound": (policy("own", "priority: -1"), "spec.priority: "),
    "word": (policy("own", "action: Shout"), "spec.action: "),
    "word that is no string": (policy("own", "action: Off"), "Off"),
    "quantity": (policy("own", "admission: {defaults: {cpuPerGPU: many}}"), "spec.admission.defaults.cpuPerGPU: "),
    "amount": (policy("own", "admission: {defaults: {cpuPerGPU: '0'}}"), "positive"),
    "memory": (policy("own", "placement: {gpuMemory: huge}"), "spec.placement.gpuMemory: "),
    "CUDA": (policy("own", "placement: {cuda: {minimum: new}}"), "spec.placement.cuda.minimum: "),
    "day": (policy("own", "enforceFrom: soon"), "wants a day such as 2027-01-31"),
    "selector": (
        policy("own", "match: {podSelector: {matchExpressions: [{key: a, operator: In}]}}"),
        "spec.match.podSelector: ",
    ),
    "class of a high priority": (policy("own", "priority: 1000, match: {workloadClass: [training]}"), "less than 1000"),
    "exception for all": (
        policy("own", "exceptions: [{match: {}, owner: o, reason: r, expires: '2027-01-01'}]"),
        "selects every pod",
    ),
    "rule": (policy("own", "actions: {gpuMemry: Warn}"), "gpuMemry"),
    "list for a mapping": (policy("own", "").replace("spec: {}", "spec: []"), "spec: "),
    "no YAML": ("spec: {", "not YAML"),
    "tab": ("spec:\n\tpriority: 1", "not YAML"),
    "text": ("just: text", "apiVersion: missing, wants one of"),
    "list": ("- 1", "wants a GPUPolicy document"),
    "key twice": (policy("own", "priority: 1, priority: 2"), "priority"),
    "alias": ("a: &a [1]\nb: *a", "own.yaml:1:"),
    "many documents": ("---\n" * 1_000, "1000 documents"),
    "many values": (
        policy("own", f"placement: {{products: {{allow: [{'H100, ' * 3_000}]}}}}"),
        "more than 2500 values",
    ),
    "deep": ("[" * 999, "own.yaml"),
    "no UTF-8": (VALID.encode() + b"\xff", "UTF-8"),
}
"""Name → the content, and words of the message about it."""
NO_OBJECT = {"no YAML", "tab", "list", "key twice", "alias", "many documents", "deep", "no UTF-8"}
"""What no object of the API server can be: it would not be JSON, or not one object."""
