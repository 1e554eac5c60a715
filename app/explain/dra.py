# SPDX-License-Identifier: Apache-2.0
"""The DRA equivalent of a device-plugin demand, as an explanation shows it: the template, and the pod's part."""

from collections.abc import Iterator
from typing import Any

import yaml

from app.admission.claims.template import (
    NEWEST_VERSION,
    RequestedDevices,
    claim_template,
    device_class_of,
    not_expressible,
    request_name,
)
from app.knowledge.tables import Knowledge
from app.policy.demand import Demand


class _Dumper(yaml.SafeDumper):
    """Writes CEL as a YAML block, so that its quotes are not doubled."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "'" in text else None)


_Dumper.add_representer(str, _text)


def templates_as_yaml(*templates: Any) -> str:
    """Write templates as YAML documents, with CEL as blocks."""
    return yaml.dump_all(templates, Dumper=_Dumper, sort_keys=False)


def dra_equivalent(
    demand: Demand, knowledge: Knowledge, name: str = "gpus", version: str = NEWEST_VERSION
) -> dict[str, Any]:
    """Write the ResourceClaimTemplate for the same devices, the pod's part of it, and what DRA cannot express.

    `version` is the version of resource.k8s.io that the template is written in, one that the cluster serves.
    In the result `template` and `pod` are None where no requested resource has a DeviceClass. `yaml` is the template
    as lines of text for people. `not_expressible` are sentences.
    """
    devices = tuple(_devices(demand, knowledge))
    template = claim_template(devices, demand, knowledge, name, version)
    pod = {
        "resourceClaims": [{"name": name, "resourceClaimTemplateName": name}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": name}]}}],
    }
    return {
        "template": template if devices else None,
        "pod": pod if devices else None,
        "yaml": templates_as_yaml(template).splitlines() if devices else [],
        "not_expressible": [*_without_class(demand, knowledge), *not_expressible(demand, devices)],
    }


def _devices(demand: Demand, knowledge: Knowledge) -> Iterator[RequestedDevices]:
    """List one request for each resource that has a DeviceClass, for the pod as a whole."""
    served = [(resource, count, device_class_of(resource, demand, knowledge)) for resource, count in demand.resources]
    with_class = [(resource, count, place) for resource, count, place in served if place is not None]
    for resource, count, (device_class, profiles) in with_class:
        name = request_name(resource, several=len(with_class) > 1)
        yield RequestedDevices(name, resource, count, device_class, profiles)


def _without_class(demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    for resource, count in demand.resources:
        if device_class_of(resource, demand, knowledge) is None:
            yield f"{count} x {resource}: no DeviceClass of its family is known"
