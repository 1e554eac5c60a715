# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher plan claim-templates` prints the ResourceClaimTemplates that pods need; `claims-controller` makes them.

The controller creates the templates in the namespaces that let it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app import __version__
from app.admission.claim_template import TEMPLATE_KIND, in_version
from app.admission.preview import templates_of_new_object, wanted_template
from app.admission.reviewed_pod import ReviewContext
from app.cli.mutate import namespace_of, read_file
from app.cli.options import ClusterOptions, GovernedFleet
from app.cli.output import names_of
from app.cli.probes import run_controller
from app.cli.source import POLICY_KINDS, Objects, govern, home_of, load_of, policies_in, read, read_live, state_of
from app.cluster.apiserver import ApiServer
from app.explain.explanation import templates_as_yaml
from app.kube.api_kinds import DRA, FLEET
from app.kube.pod_object import FINISHED
from app.policy.compiled import PolicySet
from app.telemetry.logs import event
from app.values.errors import CONFLICT, FORBIDDEN, ApiError, UsherError
from app.values.json_members import JSONObject, member
from app.world.state import State
from app.world.world import world_of


@dataclass
class Templates:
    """Templates by namespace and name, with the objects that need them; and the objects that have no equivalent."""

    by_key: dict[tuple[str, str], JSONObject] = field(default_factory=dict)
    needed_by: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    without: dict[str, list[str]] = field(default_factory=dict)

    def text(self, version: str) -> str:
        """Write the templates as YAML in a version of resource.k8s.io."""
        return "\n".join(self._head()) + "\n" + "".join(self._documents(version))

    def _head(self) -> Iterator[str]:
        yield f"# Made by `gpu-usher plan claim-templates` of gpu-usher {__version__}; templates: {len(self.by_key)}."
        if self.without:
            yield "# These stay as they are:"
        for reason, names in sorted(self.without.items()):
            yield f"# - {names_of(tuple(names))}: {reason}"

    def _documents(self, version: str) -> Iterator[str]:
        for key, template in sorted(self.by_key.items()):
            yield f"---\n# for {names_of(tuple(self.needed_by[key]))}\n"
            yield templates_as_yaml(in_version(template, version))


def templates_for(
    objects: Iterable[JSONObject], namespace: str, state: State, policies: PolicySet, always: bool = True
) -> Templates:
    """Collect the templates for the unfinished Pods, and the workloads, among objects.

    `namespace` is that of objects that name none. Without `always` only for those that a policy converts.
    Raises MalformedPod, QuantityError.
    """
    context = ReviewContext(world_of(state, policies))
    templates = Templates()
    for document in objects:
        if (member(document, "status", dict, "") or {}).get("phase") in FINISHED:
            continue
        for target in templates_of_new_object(document, state.knowledge.workloads):
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


TURN_SECONDS = 30.0
"""Between turns: the first pod of a workload waits for no template, and the second seldom comes sooner. A guess."""
STUCK_SECONDS = 600.0
"""Without a finished turn for so long the loop counts as stuck: 50,000 pods take about a minute to read."""
MOST_CREATED = 100
"""Templates that one turn makes, so that a mistake in a policy does not fill etcd at once. A guess."""


class TemplateKeeper:
    """Makes the templates that admission looks for and does not find. It changes and deletes none.

    Several may run at once: a template has the name of its content, and the second to create it gets 409 AlreadyExists,
    which is fine.
    """

    stuck_seconds = STUCK_SECONDS

    def __init__(
        self, read: Callable[[], Objects], server: ApiServer, policies: Path | None, turn_seconds: float = TURN_SECONDS
    ) -> None:
        self._read = read
        self._server = server
        self._policies = policies
        self._turn_seconds = turn_seconds

    async def try_turn(self) -> tuple[str, float]:
        """Take a turn; return its problem and the seconds to the next."""
        try:
            await self._turn()
        except UsherError as error:
            event("templates not maintained", logging.WARNING, error=str(error))
            return str(error), self._turn_seconds
        return "", self._turn_seconds

    async def _turn(self) -> None:
        """Make the templates that are missing now.

        Raises ApiError, MalformedPod, QuantityError, PolicyError.
        """
        objects = await asyncio.to_thread(self._read)
        state = state_of(objects)
        rules = policies_in(objects, self._policies, state)
        templates = templates_for(objects, "default", state, rules, always=False).by_key
        missing = [template for _, template in sorted(templates.items()) if not state.devices.has_template(template)]
        version = state.devices.dra.served_version
        for template in missing[:MOST_CREATED]:
            await self._create(in_version(template, version), version)

    async def _create(self, template: dict[str, Any], version: str) -> None:
        """Make one template; one that exists with other content, or in a namespace where we have no right, is
        logged."""
        where, name = template["metadata"]["namespace"], template["metadata"]["name"]
        path = f"{TEMPLATE_KIND.group_path}/{version}/namespaces/{where}/{TEMPLATE_KIND.plural}"
        try:
            await self._server.create(path, template)
        except ApiError as error:
            if error.status not in (CONFLICT, FORBIDDEN):
                raise
            event("template not created", logging.WARNING, namespace=where, template=name, error=str(error))
            return
        event("template created", namespace=where, template=name)


def controller(*, cluster: ClusterOptions, policies: Path | None, turn_seconds: float, probe_port: int | None) -> None:
    server = ApiServer(load_of(cluster))

    def read() -> Objects:
        return read_live(cluster, FLEET, (*DRA, *POLICY_KINDS))

    run_controller(TemplateKeeper(read, server, policies, turn_seconds), server, probe_port)


def claim_templates(*, files: list[str] | None, fleet: GovernedFleet, namespace: str | None) -> None:
    where = home_of(fleet, namespace, default=not files)
    objects = read(fleet, needs_nodes=False) if fleet.given or not files else []
    _, state, rules = govern(fleet, objects)
    asking = [document for file in files or () for document in read_file(file)] if files else objects
    templates = templates_for(asking, where, state, rules)
    print(templates.text(state.devices.dra.served_version), end="")
