# SPDX-License-Identifier: Apache-2.0
# Two stages: dependencies by hash and our own wheel are installed in the first, the second holds no build tool.
# Runs as a user without rights on a read-only root: docker run --read-only --cap-drop ALL --tmpfs /tmp IMAGE …
# Both architectures: docker buildx build --platform linux/amd64,linux/arm64 . (every dependency has a wheel for both).
# A release pins the base by digest, and the date of the files: --build-arg PYTHON=python:3.12-slim-bookworm@sha256:…
# --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct). No index is named: the one of the builder's pip counts.
ARG PYTHON=python:3.12-slim-bookworm

FROM ${PYTHON} AS build
# The date of the commit, for the files of the wheel: the same sources give the same wheel.
ARG SOURCE_DATE_EPOCH=0
# What the image holds: --build-arg LOCK=requirements-tracing.lock adds what `serve --tracing` needs.
ARG LOCK=requirements.lock
WORKDIR /src
RUN python -m venv --without-pip /opt/gpu-usher && python -m venv /opt/build
# Only wheels: nothing of others is run while we build. pip and the build backend stay behind with /opt/build.
COPY requirements.lock requirements-tracing.lock requirements-dev.lock ./
RUN /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.lock \
 && /opt/build/bin/pip --python /opt/gpu-usher/bin/python install --no-cache-dir --disable-pip-version-check --require-hashes --only-binary :all: -r ${LOCK}
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY policies policies
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir /dist . \
 && /opt/build/bin/pip --python /opt/gpu-usher/bin/python install --no-cache-dir --disable-pip-version-check --no-deps --no-index --find-links /dist gpu-usher

FROM ${PYTHON}
COPY --from=build /opt/gpu-usher /opt/gpu-usher
ENV PATH=/opt/gpu-usher/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# By number: runAsNonRoot cannot check a name.
USER 65532:65532
EXPOSE 8443 8080
# Probes are the kubelet's (deploy/base/deployment.yaml).
HEALTHCHECK NONE
ENTRYPOINT ["gpu-usher"]
CMD ["serve", "--demo", "--certs", "/tmp/certs"]
