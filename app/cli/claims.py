# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher claims controller`: makes the ResourceClaimTemplates that pods need, in the namespaces that let it."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from app.admission.claim_template import TEMPLATE_KIND, in_version
from app.cli.claim_templates import templates_for
from app.cli.cluster import Cluster
from app.cli.help import verb_group
from app.cli.probes import serve_probes
from app.cli.records import command
from app.cli.source import POLICY_KINDS, Objects, Policies, policies_in, read_live, state_of
from app.kube.api_kinds import DRA, FLEET
from app.telemetry.logs import event, start_logging
from app.tls.kube_objects import CONFLICT, KubeClient
from app.values.errors import ApiError, UsherError

TURN_SECONDS = 30.0
"""Between turns: the first pod of a workload waits for no template, and the second seldom comes sooner. A guess."""
STUCK_SECONDS = 600.0
"""Without a finished turn for so long the loop counts as stuck: 50,000 pods take about a minute to read."""
MOST_CREATED = 100
"""Templates that one turn makes, so that a mistake in a policy does not fill etcd at once. A guess."""
FORBIDDEN = 403

claims = verb_group("Keep the templates by which pods claim GPUs.")


class TemplateKeeper:
    """Makes the templates that admission looks for and does not find. It changes and deletes none.

    Several may run at once: a template has the name of its content, and who comes second is told that it exists.
    """

    def __init__(
        self, read: Callable[[], Objects], kube: KubeClient, policies: Path | None, turn_seconds: float = TURN_SECONDS
    ) -> None:
        self._read = read
        self._kube = kube
        self._policies = policies
        self._turn_seconds = turn_seconds
        self._turn_ended = time.monotonic()
        self._problem = "no turn yet"

    def run(self, stop: threading.Event) -> None:
        """Run turns until `stop` is set."""
        while not stop.is_set():
            try:
                self.turn()
                self._problem = ""
            except UsherError as error:
                self._problem = str(error)
                event("templates not kept", logging.WARNING, error=self._problem)
            self._turn_ended = time.monotonic()
            stop.wait(self._turn_seconds)

    def turn(self) -> int:
        """Make the templates that are missing now, and return how many were made.

        Raises ApiError, MalformedPod, QuantityError, PolicyError.
        """
        objects = self._read()
        state = state_of(objects)
        rules = policies_in(objects, self._policies, state)
        templates = templates_for(objects, "default", state, rules, always=False).by_key
        missing = [template for _, template in sorted(templates.items()) if not state.devices.has_template(template)]
        version = state.devices.claim_templates.served_version
        return sum(self._create(in_version(template, version), version) for template in missing[:MOST_CREATED])

    def _create(self, template: dict[str, Any], version: str) -> bool:
        """Make one template; one that exists with other content, or in a namespace that does not let us, is told."""
        where, name = template["metadata"]["namespace"], template["metadata"]["name"]
        path = f"{TEMPLATE_KIND.group_path}/{version}/namespaces/{where}/{TEMPLATE_KIND.plural}"
        try:
            self._kube.create(path, template)
        except ApiError as error:
            if error.status not in (CONFLICT, FORBIDDEN):
                raise
            event("template not made", logging.WARNING, namespace=where, template=name, error=str(error))
            return False
        event("template made", namespace=where, template=name)
        return True

    def alive(self) -> tuple[bool, str]:
        """Tell whether turns end, even with errors."""
        silent = time.monotonic() - self._turn_ended
        return silent < STUCK_SECONDS, "" if silent < STUCK_SECONDS else f"no turn has ended for {silent:.0f} s"

    def ready(self) -> tuple[bool, str]:
        """Tell whether the last turn succeeded, and the problem if not."""
        return not self._problem, self._problem


@command(claims)
def controller(
    *,
    cluster: Cluster,
    policies: Policies = None,
    turn_seconds: Annotated[float, typer.Option(help="Seconds between two looks at the cluster.")] = TURN_SECONDS,
    probe_port: Annotated[int | None, typer.Option(help="Port for /livez and /readyz; none by default.")] = None,
) -> None:
    """Make the ResourceClaimTemplates that pods need where a policy has admission.convertToClaims.

    It makes templates in the namespaces where its account may, and changes and deletes nothing. The first pods of a
    workload are admitted as they are, and those that are created after its template claim.
    """
    kube = KubeClient(cluster.load())

    def read() -> Objects:
        return read_live(cluster, FLEET, (*DRA, *POLICY_KINDS))

    keeper = TemplateKeeper(read, kube, policies, turn_seconds)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    writer = start_logging(not sys.stderr.isatty())
    try:
        with serve_probes(probe_port, {"/livez": keeper.alive, "/readyz": keeper.ready}):
            keeper.run(stop)
    finally:
        kube.close()
        writer.finish()
