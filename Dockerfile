# SPDX-License-Identifier: Apache-2.0
# Two stages: dependencies by hash and our own wheel are installed in the first, the second holds no build tool.
# Runs as a user without rights on a read-only root: docker run --read-only --cap-drop ALL --user 65532 IMAGE …
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/gpu-usher
COPY requirements.lock ./
RUN /opt/gpu-usher/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY requirements-dev.lock pyproject.toml README.md LICENSE ./
COPY app app
COPY policies policies
COPY tests/contract tests/contract
# The build backend comes from the same hash-pinned lock as in development, into an environment that stays behind.
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-dev.lock \
 && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
 && /opt/gpu-usher/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /dist/*.whl

FROM python:3.12-slim-bookworm
COPY --from=build /opt/gpu-usher /opt/gpu-usher
ENV PATH=/opt/gpu-usher/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["gpu-usher"]
CMD ["serve", "--demo", "--certs", "/tmp/certs"]
