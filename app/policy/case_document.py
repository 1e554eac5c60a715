# SPDX-License-Identifier: Apache-2.0
"""The document of a policy case: a pod, some nodes, and what is expected to come of them."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from app.kube.pods import read_pod
from app.policy.document import read_documents
from app.values.errors import BadInput, PolicyError
from app.values.reasons import Code


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class CaseNode(_Part):
    """A node in short: its labels, what it offers, what pods hold of that, its taints; `capacity` where it is more."""

    labels: dict[str, str] = Field(default={}, description="as GPU Feature Discovery and the cloud write them")
    allocatable: dict[str, int] = Field(default={}, description="what it offers, by resource")
    capacity: dict[str, int] = Field(default={}, description="where it is more than is offered: withdrawn devices")
    used: dict[str, int] = Field(default={}, description="what pods hold of that")
    taints: list[dict[str, str]] = Field(default=[], description="key, value, effect")

    def document(self, name: str) -> dict[str, Any]:
        """Write it as the Node that the API server would send."""
        return {
            "kind": "Node",
            "metadata": {"name": name, "labels": self.labels},
            "spec": {"taints": self.taints},
            "status": {"allocatable": _texts(self.allocatable), "capacity": _texts(self.allocatable | self.capacity)},
        }


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {key: str(amount) for key, amount in amounts.items()}


class Expectation(_Part):
    """What is expected; whatever is left out is not looked at, but for `allowed` and `reasons`."""

    allowed: bool = Field(default=True, description="whether admission lets the pod in")
    reasons: list[str] = Field(default=[], description="reason codes of a denial, all of them")
    warnings: list[str] = Field(default=[], description="words, each of which some warning holds")
    patched: dict[str, Any] = Field(
        default={}, description="by path of the pod after admission, what stands there: spec.tolerations[0].key"
    )
    unchanged: bool | None = Field(default=None, description="whether admission leaves the pod as it is")
    fits: list[str] | None = Field(default=None, description="the nodes that it fits on, all of them")
    refused: dict[str, str] = Field(default={}, description="reason code by node")
    best: str | None = Field(default=None, description="the node with the highest score")


class Case(_Part):
    """One case file."""

    pod: dict[str, Any] = Field(description="as its user writes it")
    namespace_labels: dict[str, str] = Field(default={}, description="of its namespace")
    nodes: dict[str, CaseNode] = Field(default={}, description="the fleet, by name; see below")
    runtime_classes: list[str] | None = Field(default=None, description="that the cluster has; absent: not known")
    expect: Expectation = Field(default=Expectation(), description="what is expected; see below")


def read_case(file: str, text: str) -> Case:
    """Read a case file.

    Raises PolicyError with file:line:column.
    """
    documents = read_documents(file, text)
    if len(documents) != 1:
        raise PolicyError((f"{file}:1:1: got {len(documents)} documents, wants one case",))
    try:
        case = Case.model_validate(documents[0].value)
    except ValidationError as error:
        problems = (f"{documents[0].locate(each['loc'])}: {each['msg']}" for each in error.errors())
        raise PolicyError(tuple(problems)) from error
    unknown = {*case.expect.reasons, *case.expect.refused.values()} - set(Code.__members__)
    if unknown:
        where = documents[0].locate(("expect",))
        raise PolicyError((f"{where}: {', '.join(sorted(unknown))}: no such reason code",))
    try:
        read_pod(case.pod)
    except BadInput as error:
        raise PolicyError((f"{documents[0].locate(('pod',))}: pod.{error}",)) from error
    return case
