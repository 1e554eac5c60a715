# SPDX-License-Identifier: Apache-2.0
"""The text of `gpu-usher export claim-templates`: templates as YAML, with the pods that they are for as comments."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app import __version__
from app.admission.claim_template import in_version
from app.admission.preview import target_of_new_object, wanted_template
from app.admission.reviewed_pod import ReviewContext
from app.cli.mutate import namespace_of
from app.cli.names import names_of
from app.cluster.state import State
from app.explain.explanation import templates_as_yaml
from app.kube.gpu_usage import FINISHED
from app.policy.compiled import PolicySet
from app.values.json_members import member

Object = Mapping[str, Any]


@dataclass
class Templates:
    """Templates by namespace and name, with the objects that need them; and the objects that have no equivalent."""

    by_key: dict[tuple[str, str], Object] = field(default_factory=dict)
    needed_by: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    without: dict[str, list[str]] = field(default_factory=dict)

    def text(self, version: str) -> str:
        """Write the templates as YAML in a version of resource.k8s.io."""
        return "\n".join(self._head()) + "\n" + "".join(self._documents(version))

    def _head(self) -> Iterator[str]:
        yield f"# Made by `gpu-usher export claim-templates` of gpu-usher {__version__}; templates: {len(self.by_key)}."
        if self.without:
            yield "# These stay as they are:"
        for reason, names in sorted(self.without.items()):
            yield f"# - {names_of(tuple(names))}: {reason}"

    def _documents(self, version: str) -> Iterator[str]:
        for key, template in sorted(self.by_key.items()):
            yield f"---\n# for {names_of(tuple(self.needed_by[key]))}\n"
            yield templates_as_yaml(in_version(template, version))


def templates_for(
    objects: Iterable[Object], namespace: str, state: State, policies: PolicySet, always: bool = True
) -> Templates:
    """Collect the templates for the unfinished Pods, and the workloads, among objects.

    `namespace` is that of objects that name none. Without `always` only for those that a policy converts.
    Raises MalformedPod, QuantityError.
    """
    context = ReviewContext(policies, state.fleet(), state.knowledge, claimed=state.devices.claimed)
    templates = Templates()
    for document in objects:
        target = target_of_new_object(document)
        if target is None or (member(document, "status", dict, "") or {}).get("phase") in FINISHED:
            continue
        where = namespace_of(document, namespace)
        wanted = wanted_template(target.document, where, state.namespaces.labels(where), context, always)
        name = f"{document.get('kind', 'Pod')} {where}/{(document.get('metadata') or {}).get('name')}"
        if wanted.template is not None:
            key = (where, wanted.template["metadata"]["name"])
            templates.by_key[key] = wanted.template
            templates.needed_by.setdefault(key, []).append(name)
        elif wanted.reason:
            templates.without.setdefault(wanted.reason, []).append(name)
    return templates
