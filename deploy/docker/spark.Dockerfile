# An image for Spark jobs: Java, PySpark and pidlease, for the driver and for executors. From the
# root of a checkout:
#
#   docker build -f deploy/docker/spark.Dockerfile -t pidlease-spark .
#
# BASE is any image of Linux with glibc and a Python from 3.11 on, with venv. If it has no Java, it
# needs apt-get: Debian's default is 17 or 21.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
# For a package index of your own: --build-arg PIP_INDEX_URL=...
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python3 -m venv /build && python3 -m venv --without-pip /opt/pidlease
COPY requirements/build.txt requirements/spark.txt requirements/
# PySpark has no wheels.
RUN /build/bin/pip install --require-hashes --only-binary :all: -r requirements/build.txt \
 && /build/bin/pip --python /opt/pidlease/bin/python install --require-hashes \
      --only-binary :all: --no-binary pyspark -r requirements/spark.txt
COPY . .
RUN /build/bin/hatchling build -t wheel -d /dist \
 && /build/bin/pip --python /opt/pidlease/bin/python install --no-deps /dist/*.whl

FROM ${BASE}
# (the JRE's packages want a folder for manual pages, which slim images do not have)
RUN if ! command -v java; then mkdir -p /usr/share/man/man1 && apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/*; fi
# Hadoop's classes need a user with a name.
RUN groupadd --gid 10001 pidlease \
 && useradd --uid 10001 --gid 10001 --create-home pidlease
COPY --from=build /opt/pidlease /opt/pidlease
ENV PATH=/opt/pidlease/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/opt/pidlease/bin/python
USER 10001:10001
WORKDIR /home/pidlease
CMD ["pidlease", "spark", "--help"]
