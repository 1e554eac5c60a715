# SPDX-License-Identifier: Apache-2.0
"""How to reach the API server: the context of kubeconfig files as kubectl chooses it, address, TLS and credentials.

The official `kubernetes` package reads the credentials: exec plugins, OIDC, and a pod's service account. It skips files
that are missing, ignores `as` (impersonation) and takes the last current-context of several files where kubectl takes
the first (client-go tools/clientcmd/loader.go), so that these are read here. Its models and its informer are not used
(docs/reference/measurements.md#decoding: 40 to 130 times the CPU, no back-off, no bookmarks).
"""

import base64
import os
import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from urllib.request import proxy_bypass

import yaml

from app.policy.document import yaml_problem
from app.values.errors import BadInput, did_you_mean
from app.values.json_members import JSONObject

if TYPE_CHECKING:
    from kubernetes.client import Configuration

NO_CLUSTER = "wants a cluster to follow: --kubeconfig FILE, or --demo, or --snapshot FILE"
DEFAULT_FILE = "~/.kube/config"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What the kubelet mounts into pods (kubernetes.io/docs/tasks/run-application/access-api-from-pod)."""
DATA = ("certificate-authority-data", "client-certificate-data", "client-key-data")
HEADER_KEY = "!#$&'*+-.^_`|~"
"""Characters that an extra's key keeps in a header; others are percent-encoded (client-go transport/round_trippers.go,
headerKeyEscape; letters are lowered)."""
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ChosenContext:
    """The context that commands use.

    `files` are joined as in KUBECONFIG. `where` names context and file in messages. `namespace` is the context's, or
    "default". `impersonation` are the headers by which the user acts as another.
    """

    files: str
    name: str
    where: str
    server: str
    user: str
    namespace: str
    impersonation: Headers = ()


def choose_context(kubeconfig: Path | None, context: str | None) -> ChosenContext:
    """Choose a context: of the given file, of those of KUBECONFIG, or of ~/.kube/config.

    In a pod without any of them it is the pod's service account. Raises BadInput.
    """
    named = kubeconfig or context or os.environ.get("KUBECONFIG")
    if not named and "KUBERNETES_SERVICE_HOST" in os.environ:
        namespace = SERVICE_ACCOUNT / "namespace"
        inside = namespace.read_text("utf-8").strip() if namespace.is_file() else ""
        server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
        return ChosenContext("", "", "the pod's service account", server, "the service account", inside or "default")
    given = str(kubeconfig or "") or os.environ.get("KUBECONFIG") or DEFAULT_FILE
    paths = [given] if kubeconfig else list(filter(None, given.split(os.pathsep)))
    documents = [(path, _document(path)) for path in paths if len(paths) == 1 or Path(path).expanduser().exists()]
    if not documents:
        raise BadInput(f"KUBECONFIG={given}: none of these files exists; {NO_CLUSTER}")
    return _Files(given, documents).choose(context)


def _document(path: str) -> JSONObject:
    """Read one file.

    Raises BadInput.
    """
    text = ""
    try:
        text = Path(path).expanduser().read_text("utf-8")
        document = yaml.load(text, yaml.CSafeLoader)
    except OSError as error:
        raise BadInput(f"kubeconfig {path}: {error.strerror}; {NO_CLUSTER}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"kubeconfig {yaml_problem(path, error, text)}") from error
    if document is None:
        raise BadInput(f"kubeconfig {path}: the file is empty; write one with your cloud's or cluster's own command")
    kind = document.get("kind", "Config") if isinstance(document, dict) else type(document).__name__
    if kind != "Config" or not isinstance(document, dict):
        raise BadInput(f"kubeconfig {path}: is a {kind}, wants a kubeconfig (kind: Config)")
    return document


class _Files:
    """The contexts, clusters and users of files, of which the first that has a name decides, as for kubectl."""

    def __init__(self, files: str, documents: Sequence[tuple[str, JSONObject]]) -> None:
        self._files = files
        self._documents = documents

    def choose(self, context: str | None) -> ChosenContext:
        """Return the context of a name; None stands for the current one. Raises BadInput."""
        currents = (document.get("current-context") for _, document in self._documents)
        name = context or next((current for current in currents if isinstance(current, str) and current), "")
        contexts = self._named("contexts", "context")
        if not name:
            raise BadInput(
                f"kubeconfig {self._files}: has no current-context: give --context NAME, of {_names(contexts)}"
            )
        chosen = self._entry(contexts, name, "context", "kubectl config get-contexts lists them")
        where = f"context {name} of {self._files}"
        cluster_name = chosen.get("cluster")
        if not cluster_name:
            raise BadInput(f"{where}: names no cluster: kubectl config set-context {name} --cluster NAME")
        cluster = self._entry(self._named("clusters", "cluster"), str(cluster_name), f"{where}: cluster", "add it")
        user_name = str(chosen.get("user") or "")
        user = self._entry(self._named("users", "user"), user_name, f"{where}: user", "add it") if user_name else {}
        server = _checked_url(cluster.get("server"), f"{where}: cluster {cluster_name}: server", "127.0.0.1:6443")
        self._check_data(where, {**cluster, **user})
        _check_plugin(user.get("exec"), f"{where}: user {user_name}", Path(self._documents[0][0]).parent)
        namespace = chosen.get("namespace")
        namespace = namespace if isinstance(namespace, str) and namespace else "default"
        headers = tuple(_impersonation(user, f"{where}: user {user_name}"))
        return ChosenContext(self._files, name, where, server, user_name, namespace, headers)

    def _named(self, section: str, key: str) -> dict[str, JSONObject]:
        """Return the entries of a section by name. Raises BadInput."""
        entries: dict[str, JSONObject] = {}
        for file, document in self._documents:
            items = document.get(section) or []
            if not isinstance(items, list) or not all(isinstance(item, dict) and item.get("name") for item in items):
                raise BadInput(f"kubeconfig {file}: {section}: wants a list of entries with a name")
            for item in items:
                value = item.get(key) or {}
                if not isinstance(value, dict):
                    raise BadInput(f"kubeconfig {file}: {key} {item['name']}: wants its fields, got {value!r:.40}")
                entries.setdefault(str(item["name"]), value)
        return entries

    def _entry(self, entries: Mapping[str, JSONObject], name: str, what: str, remedy: str) -> JSONObject:
        if name not in entries:
            hint = did_you_mean(name, entries) or f": it has {_names(entries)}; {remedy}"
            raise BadInput(f"{what} {name[:80]} is not in kubeconfig {self._files}{hint}")
        return entries[name]

    def _check_data(self, where: str, fields: JSONObject) -> None:
        for key in DATA:
            try:
                base64.b64decode("".join((fields.get(key) or "").split()), validate=True)
            except (ValueError, AttributeError) as error:
                raise BadInput(f"{where}: {key} is not base64: {error}") from error


def _names(entries: Mapping[str, JSONObject]) -> str:
    return ", ".join(sorted(entries)[:8]) or "none"


def _checked_url(url: object, what: str, example: str) -> str:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        usable = False
    if not usable:
        raise BadInput(f"{what} is {url!r:.80}, wants a URL such as https://{example}")
    return str(url).rstrip("/")


def _check_plugin(plugin: Any, where: str, folder: Path) -> None:
    """Check that the program of a credential plugin exists; the `kubernetes` package would only log that it does not.

    Raises BadInput.
    """
    if plugin is None:
        return
    command = plugin.get("command") if isinstance(plugin, dict) else None
    if not isinstance(command, str) or not command:
        raise BadInput(f"{where}: exec names no command")
    if not shutil.which(str(folder / command) if "/" in command else command):
        hint = plugin.get("installHint")
        more = f": {' '.join(hint.split())[:200]}" if isinstance(hint, str) else ""
        raise BadInput(f"{where}: the credential plugin {command} is not on PATH: install it{more}")


def _impersonation(user: JSONObject, where: str) -> Iterator[tuple[str, str]]:
    """Yield the headers of `as`, `as-uid`, `as-groups` and `as-user-extra`.

    Raises BadInput; without `as` the others mean nothing (client-go rest/transport.go).
    """
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    fields: list[tuple[str, Any]] = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    if not isinstance(groups, list) or not isinstance(extra, dict):
        raise BadInput(f"{where}: wants as-groups as a list and as-user-extra as lists by key")
    fields += [("Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        name = f"Impersonate-Extra-{quote(str(key).lower(), HEADER_KEY)}"
        fields += [(name, value) for value in (values if isinstance(values, list) else [values])]
    headers = [(name, value) for name, value in fields if value not in (None, "")]
    if headers and headers[0][0] != "Impersonate-User":
        raise BadInput(f"{where}: as-uid, as-groups or as-user-extra without as: name the user to act as")
    for name, value in headers:
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise BadInput(f"{where}: {name} is {value!r:.80}, wants a text that an HTTP header can hold")
    yield from headers


Load = Callable[[], "Configuration"]
"""Reads the configuration. The package takes 0.3 s of CPU to import, so that it is when a cluster is asked."""
IMPERSONATION = "gpu_usher_impersonation"
"""The attribute of a configuration with the headers by which its user acts as another, which the package has not."""


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

    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

    def load() -> Configuration:
        configuration = Configuration()
        chosen = choose_context(kubeconfig, context)
        try:
            if not chosen.files:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                load_kube_config(chosen.files, chosen.name, configuration, persist_config=False)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # The package checks no types of what a file says, so that a wrong one fails somewhere in it.
            raise BadInput(f"{chosen.where}: {str(error).rstrip('.')}") from error
        setattr(configuration, IMPERSONATION, chosen.impersonation)
        return configuration

    read_access(load())
    return load


def service_at(url: str) -> Load:
    """Return the configuration of a running service, which is called without credentials and without a proxy.

    Raises BadInput.
    """
    from kubernetes.client import Configuration

    configuration = Configuration(host=_checked_url(url, "--url", "127.0.0.1:8081"))
    configuration.proxy = None
    return lambda: configuration


def read_access(configuration: "Configuration") -> Access:
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


def _ssl_context(configuration: "Configuration") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:  # insecure-skip-tls-verify of the kubeconfig
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def credentials(configuration: "Configuration") -> Headers:
    """Return the headers that authenticate us, and those by which we act as another (`as` of the kubeconfig).

    A service account's token file is read again each minute. This may run an exec plugin, so it must not run
    on the event loop. Raises BadInput.
    """
    from kubernetes.config import ConfigException

    try:
        bearer = configuration.auth_settings().get("BearerToken")
    except (ConfigException, OSError) as error:
        raise BadInput(f"credentials: {error}") from error
    headers = ((bearer["key"], bearer["value"]),) if bearer and bearer["value"] else ()
    if not all(value.isascii() and value.isprintable() for _, value in headers):
        raise BadInput("credentials: the token has characters that no HTTP header can hold, such as a line break")
    impersonation: Headers = getattr(configuration, IMPERSONATION, ())
    return headers + impersonation
