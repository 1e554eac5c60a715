# SPDX-License-Identifier: Apache-2.0
"""The cluster that a verb reads, and what a person is told when it does not answer or refuses."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from app.cluster.kubeconfig import ChosenContext, Load, choose_context, find_cluster
from app.telemetry.logs import now
from app.tls.pem import read_certificate
from app.values.errors import ApiError

UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
_REFUSED = re.compile(r'(\S+) (?:"[^"]*" )?is forbidden: User "([^"]*)" cannot (\S+) resource')
"""The API server's words (k8s.io/apiserver pkg/endpoints/handlers/responsewriters/errors.go)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The options that select a cluster, as kubectl does; the kubeconfig's `as` is honoured as well."""

    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Read the cluster of this file; by default that of kubectl.")
    ] = None
    context: Annotated[
        str | None, typer.Option("--context", help="Context of the kubeconfig; by default its current one.")
    ] = None

    @property
    def given(self) -> bool:
        """Whether an option selects the cluster."""
        return bool(self.kubeconfig or self.context)

    def load(self) -> Load:
        """Return what reads the configuration. Raises BadInput."""
        return find_cluster(self.kubeconfig, self.context)

    def chosen(self) -> ChosenContext:
        """Return the context that is used. Raises BadInput."""
        return choose_context(self.kubeconfig, self.context)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Have errors of the API server in this block name the server and its context, and say what to do.

        Raises ApiError.
        """
        try:
            yield
        except ApiError as error:
            raise ApiError(error.status, self._told(error)) from error

    def _told(self, error: ApiError) -> str:
        chosen = self.chosen()
        where = f"API server {chosen.server} ({chosen.where})"
        if error.status is None:
            remedy = "see that it runs, and that this address, its CA and a proxy are right: kubectl cluster-info"
            return f"{where} does not answer: {error}; {remedy}"
        if error.status == UNAUTHORIZED:
            remedy = self._expired_certificate() or "log in again, or fetch a new kubeconfig"
            return f"{where} does not accept the credentials of user {chosen.user or 'none'} (401): {remedy}"
        if error.status == FORBIDDEN:
            return f"{forbidden(error)}: ask your platform team for that right; {where}"
        if error.status == NOT_FOUND:
            return f"{where} answers {error}: is this the address of a cluster's API server?"
        return f"{where} answers {error}"

    def _expired_certificate(self) -> str:
        """Tell whether the client certificate has expired, which is the server's reason to say no more than 401."""
        file = self.load()().cert_file
        ends = read_certificate(Path(file).read_bytes()).not_valid_after_utc if file else None
        expired = ends is not None and ends < now()
        return f"its client certificate expired on {ends:%Y-%m-%d}: renew it" if expired else ""


def forbidden(error: ApiError) -> str:
    """Return what the user may not do, as the beginning of a sentence."""
    match = _REFUSED.search(str(error))
    return f"you ({match[2]}) may not {match[3]} {match[1]}" if match else f"you may not read that ({error})"
