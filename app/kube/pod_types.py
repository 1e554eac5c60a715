# SPDX-License-Identifier: Apache-2.0
"""The types of the members of a Pod that explanations read, and the check of a Pod against them.

The API server refuses a Pod whose members have other types, but one of a file or of a request was never sent to it. The
decoder skips what nobody reads. Amounts are checked where they are parsed, and times are left to the reader of YAML.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from app.values.errors import MalformedPod
from app.values.json_members import json_type


def _record(**members: Any) -> Any:
    """Declare an object by its members that are read, each of which may be absent or null."""
    return msgspec.defstruct("Record", [(name, kind | None, None) for name, kind in members.items()])


def _items(kind: Any) -> Any:
    return list[kind]


ANY, TEXTS, TEXT_BY_NAME = dict[str, Any], list[str], dict[str, str]
REQUIREMENTS = _items(_record(key=str, operator=str, values=TEXTS))
SELECTOR = _record(matchLabels=TEXT_BY_NAME, matchExpressions=REQUIREMENTS)
NODE_TERM = _record(matchExpressions=REQUIREMENTS, matchFields=REQUIREMENTS)
NODE_AFFINITY = _record(
    requiredDuringSchedulingIgnoredDuringExecution=_record(nodeSelectorTerms=_items(NODE_TERM)),
    preferredDuringSchedulingIgnoredDuringExecution=_items(_record(weight=int, preference=NODE_TERM)),
)
TERM = _record(topologyKey=str, labelSelector=SELECTOR, namespaces=TEXTS, namespaceSelector=SELECTOR,
               matchLabelKeys=TEXTS, mismatchLabelKeys=TEXTS)  # fmt: skip
OTHER_PODS = _record(
    requiredDuringSchedulingIgnoredDuringExecution=_items(TERM),
    preferredDuringSchedulingIgnoredDuringExecution=_items(_record(weight=int, podAffinityTerm=TERM)),
)
AFFINITY = _record(nodeAffinity=NODE_AFFINITY, podAffinity=OTHER_PODS, podAntiAffinity=OTHER_PODS)
SPREAD = _record(maxSkew=int, minDomains=int, topologyKey=str, whenUnsatisfiable=str, labelSelector=SELECTOR,
                 matchLabelKeys=TEXTS)  # fmt: skip
TOLERATION = _record(key=str, operator=str, value=str, effect=str)
PORT = _record(hostPort=int, hostIP=str, protocol=str)
RESOURCES = _record(limits=ANY, requests=ANY, claims=_items(ANY))
CONTAINER = _record(name=str, image=str, ports=_items(PORT), env=_items(ANY), restartPolicy=str, resources=RESOURCES,
                    volumeMounts=_items(ANY), securityContext=_record(privileged=bool))  # fmt: skip
VOLUME = _record(name=str, persistentVolumeClaim=_record(claimName=str), hostPath=TEXT_BY_NAME,
                 projected=_record(sources=_items(ANY)))  # fmt: skip
STATE = _record(waiting=_record(reason=str, message=str), terminated=_record(reason=str, message=str, exitCode=int))
CONTAINER_STATUS = _record(
    name=str, state=STATE, lastState=STATE, restartCount=int,
    allocatedResourcesStatus=_items(_record(name=str, resources=_items(_record(resourceID=str, health=str)))),
)  # fmt: skip
POD = _record(
    metadata=_record(name=str, generateName=str, namespace=str, uid=str, labels=TEXT_BY_NAME, annotations=TEXT_BY_NAME,
                     ownerReferences=_items(_record(kind=str, name=str, uid=str, controller=bool))),
    spec=_record(affinity=AFFINITY, topologySpreadConstraints=_items(SPREAD), tolerations=_items(TOLERATION),
                 nodeSelector=TEXT_BY_NAME, containers=_items(CONTAINER), initContainers=_items(CONTAINER),
                 ephemeralContainers=_items(CONTAINER), volumes=_items(VOLUME), resources=RESOURCES, overhead=ANY,
                 schedulingGates=_items(_record(name=str)), resourceClaims=_items(ANY), priority=int, nodeName=str),
    status=_record(phase=str, reason=str, message=str, conditions=_items(_record(type=str, status=str, reason=str,
                   message=str)), containerStatuses=_items(CONTAINER_STATUS), nominatedNodeName=str,
                   initContainerStatuses=_items(CONTAINER_STATUS), resourceClaimStatuses=_items(ANY),
                   extendedResourceClaimStatus=_record(resourceClaimName=str, requestMappings=_items(ANY))),
)  # fmt: skip
"""Source of all: the API reference of Kubernetes, core/v1."""
_PROBLEM = re.compile(r"Expected `([a-z]+)[^`]*`, got `([a-z]+)[^`]*`(?: - at `\$\.?(.*)`)?")
_EXAMPLES = {"array": [], "object": {}, "str": "", "int": 0, "bool": True, "float": 0.5}


def check_types(document: Mapping[str, Any]) -> None:
    """Check the types of the members of a Pod that are read. Raises MalformedPod, which names the place."""
    try:
        msgspec.convert(document, POD)
    except msgspec.ValidationError as error:
        if (problem := _PROBLEM.match(str(error))) is None:
            raise MalformedPod(str(error)) from error
        wanted, got = (json_type(_EXAMPLES[name]) if name in _EXAMPLES else name for name in problem.groups()[:2])
        raise MalformedPod(f"{problem[3] or 'the Pod'}: got {got}, wants {wanted}") from error
