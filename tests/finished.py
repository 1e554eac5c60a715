# SPDX-License-Identifier: Apache-2.0
"""Computations that are done in steps, run here without a pause."""

from collections.abc import Mapping
from typing import Any

from app.api import admission_routes, extender_routes, preemption
from app.api.admission_routes import Reviewed
from app.api.extender_routes import ExtenderAnswer
from app.cluster.core import Core
from app.knowledge.tables import Knowledge
from app.policy import document, load
from app.policy.compiled import CompiledPolicy, PolicySet
from app.values.computations import finish


def review(body: bytes, verb: str, core: Core) -> Reviewed:
    return finish(admission_routes.review(body, verb, core))


def filter_nodes(body: bytes, core: Core, other_pods: bool = False) -> ExtenderAnswer:
    return finish(extender_routes.filter_nodes(body, core, other_pods))


def prioritize(body: bytes, core: Core, other_pods: bool = False) -> ExtenderAnswer:
    return finish(extender_routes.prioritize(body, core, other_pods))


def preempt(body: bytes, core: Core, other_pods: bool = False) -> ExtenderAnswer:
    return finish(preemption.preempt(body, core, other_pods))


def read_documents(file: str, text: str) -> tuple[document.Document, ...]:
    return finish(document.read_documents(file, text))


def load_policies(
    texts: Mapping[str, str],
    knowledge: Knowledge,
    fallback: CompiledPolicy | None = None,
    objects: Mapping[str, Mapping[str, Any]] | None = None,
) -> PolicySet:
    return finish(load.load_policies(texts, knowledge, fallback, objects))
