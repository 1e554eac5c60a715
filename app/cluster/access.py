# SPDX-License-Identifier: Apache-2.0
"""Access to the API server: address, trust and credentials, found by the official `kubernetes` package.

It knows kubeconfig files with exec plugins and OIDC, and a pod's own service account; its models and its
informer are not used (docs/reference/measurements.md#decoding: 40 to 130 times the CPU, no back-off, no bookmarks).
"""

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.request import proxy_bypass

from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from app.values.errors import BadInput

Load = Callable[[], Configuration]
REMEDY = "wants a cluster to follow: --kubeconfig FILE, or --demo, or --snapshot FILE"


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server now. `proxy`: None for a direct connection."""

    url: str
    context: ssl.SSLContext | None
    server_name: str | None
    proxy: str | None


def find_cluster(kubeconfig: Path | None, context: str | None) -> Load:
    """Choose where access comes from: the file given, else our pod's service account, else the user's kubeconfig.

    Raises BadInput where there is none.
    """
    in_pod = kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ

    def load() -> Configuration:
        configuration = Configuration()
        try:
            if in_pod:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                file = str(kubeconfig) if kubeconfig else None
                load_kube_config(file, context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError, ValueError) as error:
            raise BadInput(f"{kubeconfig or 'kubeconfig'}: {str(error).rstrip('.')}: {REMEDY}") from error
        return configuration

    load()
    return load


def access(configuration: Configuration) -> Access:
    """Read where the API server is and whom to trust.

    Raises BadInput for certificates that cannot be read.
    """
    try:
        trust = _trust(configuration) if configuration.host.startswith("https:") else None
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{configuration.host}: certificates of the kubeconfig: {error}") from error
    host = configuration.host.partition("://")[2].partition("/")[0]
    proxy = configuration.proxy if configuration.proxy and not proxy_bypass(host) else None
    return Access(configuration.host.rstrip("/"), trust, configuration.tls_server_name or None, proxy)


def _trust(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:  # the kubeconfig's own insecure-skip-tls-verify
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def credentials(configuration: Configuration) -> dict[str, str]:
    """Give the headers that say who we are; a service account's token file is read again by the minute (CACHE-09).

    May run an exec plugin: not for the event loop. Raises BadInput.
    """
    try:
        bearer = configuration.auth_settings().get("BearerToken")
    except (ConfigException, OSError) as error:
        raise BadInput(f"credentials: {error}") from error
    return {bearer["key"]: bearer["value"]} if bearer and bearer["value"] else {}
