# SPDX-License-Identifier: Apache-2.0
"""The document of a policy case, which `gpu-usher policy test` runs: a pod, some nodes, and the expected result.

It is apart from explain/policy_cases.py, which runs cases, so that `lint` starts without admission and placement.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from app.kube.pods import read_pod
from app.policy.document import YAMLPath, read_documents
from app.policy.problems import NAMESPACE_NAME, describe_error, located, namespace_problem, similar_choice
from app.values.computations import finish
from app.values.errors import BadInput, PolicyError
from app.values.reasons import Code


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class CaseNode(_Part):
    """A node in short form: its labels, its resources, what pods hold of them, and its taints."""

    labels: dict[str, str] = Field(default={}, description="labels of the node")
    allocatable: dict[str, int] = Field(default={}, description="units, by resource")
    capacity: dict[str, int] = Field(default={}, description="where it exceeds allocatable")
    used: dict[str, int] = Field(default={}, description="units that pods hold")
    taints: list[dict[str, str]] = Field(default=[], description="key, value, effect")

    def document(self, name: str) -> dict[str, Any]:
        """Write it as a Node object of the API server."""
        return {
            "kind": "Node",
            "metadata": {"name": name, "labels": self.labels},
            "spec": {"taints": self.taints},
            "status": {"allocatable": _texts(self.allocatable), "capacity": _texts(self.allocatable | self.capacity)},
        }


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {key: str(amount) for key, amount in amounts.items()}


class Expectation(_Part):
    """The expected result; a member that is absent is not checked, except `allowed` and `reasons`."""

    allowed: bool = Field(default=True, description="whether admission allows the pod")
    reasons: list[str] = Field(default=[], description="all reason codes of a denial")
    warnings: list[str] = Field(default=[], description="parts of warnings")
    patched: dict[str, Any] = Field(
        default={}, description="values after admission, by path such as spec.tolerations[0].key"
    )
    unchanged: bool | None = Field(default=None, description="whether admission leaves the pod unchanged")
    fits: list[str] | None = Field(default=None, description="all nodes on which it fits")
    refused: dict[str, str] = Field(default={}, description="reason code by node")
    best: str | None = Field(default=None, description="the node with the highest score")


class Case(_Part):
    """One case file."""

    pod: dict[str, Any] = Field(description="the pod as its user writes it")
    namespace_labels: dict[str, str] = Field(
        default={}, description="the labels of its namespace; kubernetes.io/metadata.name is added"
    )
    nodes: dict[str, CaseNode] = Field(default={}, description="by name; see below")
    runtime_classes: list[str] | None = Field(default=None, description="of the cluster; absent: unknown")
    expect: Expectation = Field(default=Expectation(), description="see below")

    @property
    def namespace(self) -> str:
        """The namespace of the pod."""
        metadata = self.pod.get("metadata")
        return str((metadata.get("namespace") if isinstance(metadata, dict) else None) or "default")

    @property
    def labels_of_namespace(self) -> dict[str, str]:
        """The labels of the namespace, with the one that the API server sets."""
        return {NAMESPACE_NAME: self.namespace, **self.namespace_labels}


def read_case(file: str, text: str) -> Case:
    """Read a case file.

    Raises PolicyError with file:line:column.
    """
    documents = finish(read_documents(file, text))
    if len(documents) != 1:
        raise PolicyError((f"{file}:1:1: got {len(documents)} documents, wants one case",))
    try:
        case = Case.model_validate(documents[0].value)
    except ValidationError as error:
        raise PolicyError(tuple(describe_error(documents[0], detail, Case) for detail in error.errors())) from error
    problems = [located(documents[0], path, text) for path, text in _case_problems(case)]
    try:
        read_pod(case.pod)
    except BadInput as error:
        problems.append(f"{documents[0].locate(('pod',))}: pod.{error}")
    if problems:
        raise PolicyError(tuple(problems))
    return case


def _case_problems(case: Case) -> Iterator[tuple[YAMLPath, str]]:
    """List misspelt reason codes, nodes that the case does not have, and a namespace that no cluster can have."""
    expect = case.expect
    codes: dict[YAMLPath, str] = {("expect", "reasons", index): code for index, code in enumerate(expect.reasons)}
    codes |= {("expect", "refused", node): code for node, code in expect.refused.items()}
    for path, code in codes.items():
        if code not in Code.__members__:
            similar = similar_choice(code, list(Code.__members__))
            hint = f"did you mean {similar}?" if similar else "wants one of docs/reference/reasons.md"
            yield path, f"no such reason code {code[:40]!r}, {hint}"
    listed = [("fits", name) for name in expect.fits or ()] + [("refused", name) for name in expect.refused]
    for field, name in [*listed, *([("best", expect.best)] if expect.best else [])]:
        if name not in case.nodes:
            nodes = ", ".join(case.nodes)[:200] or "none"
            yield ("expect", field), f"got the node {name[:40]!r}, wants one of nodes: {nodes}"
    if problem := namespace_problem(case.namespace):
        yield ("pod", "metadata", "namespace"), problem
