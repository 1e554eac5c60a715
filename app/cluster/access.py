# SPDX-License-Identifier: Apache-2.0
"""How to reach the API server: address, TLS and credentials, read by the official `kubernetes` package.

The package reads kubeconfig files with exec plugins and OIDC, and a pod's service account. Its models and its informer
are not used (docs/reference/measurements.md#decoding: 40 to 130 times the CPU, no back-off, no bookmarks).
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.request import proxy_bypass

from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from app.cluster.kubeconfig import Headers, choose_context
from app.values.errors import BadInput

Load = Callable[[], Configuration]


class ClusterConfiguration(Configuration):
    """A configuration with the headers by which its user acts as another, which the package does not know."""

    impersonation: Headers = ()


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server now. `proxy` is None for a direct connection."""

    url: str
    context: ssl.SSLContext | None
    server_name: str | None
    proxy: str | None


def find_cluster(kubeconfig: Path | None, context: str | None) -> Load:
    """Choose the configuration: the given file, that of KUBECONFIG, the pod's service account, or ~/.kube/config.

    KUBECONFIG may name several files, as for kubectl; they are merged. Raises BadInput if there is none.
    """

    def load() -> Configuration:
        configuration = ClusterConfiguration()
        chosen = choose_context(kubeconfig, context)
        try:
            if not chosen.files:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                load_kube_config(chosen.files, chosen.name, configuration, persist_config=False)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # The package checks no types of what a file says, so that a wrong one fails somewhere in it.
            raise BadInput(f"{chosen.where}: {str(error).rstrip('.')}") from error
        configuration.impersonation = chosen.impersonation
        return configuration

    read_access(load())
    return load


def read_access(configuration: Configuration) -> Access:
    """Read the API server's address and build the TLS context.

    Raises BadInput for certificates that cannot be read.
    """
    try:
        context = _ssl_context(configuration) if configuration.host.startswith("https:") else None
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{configuration.host}: a certificate or key of the kubeconfig cannot be used: {error}"
        ) from error
    host = configuration.host.partition("://")[2].partition("/")[0]
    proxy = configuration.proxy if configuration.proxy and not proxy_bypass(host) else None
    return Access(configuration.host.rstrip("/"), context, configuration.tls_server_name or None, proxy)


def _ssl_context(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:  # insecure-skip-tls-verify of the kubeconfig
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def credentials(configuration: Configuration) -> Headers:
    """Return the headers that authenticate us, and those by which we act as another (`as` of the kubeconfig).

    A service account's token file is read again each minute. This may run an exec plugin, so it must not run
    on the event loop. Raises BadInput.
    """
    try:
        bearer = configuration.auth_settings().get("BearerToken")
    except (ConfigException, OSError) as error:
        raise BadInput(f"credentials: {error}") from error
    headers = ((bearer["key"], bearer["value"]),) if bearer and bearer["value"] else ()
    if not all(value.isascii() and value.isprintable() for _, value in headers):
        raise BadInput("credentials: the token has characters that no HTTP header can hold, such as a line break")
    return headers + (configuration.impersonation if isinstance(configuration, ClusterConfiguration) else ())
