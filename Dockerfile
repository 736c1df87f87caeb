# One image for all Python services: `docker run IMAGE broker --help`. The target `spark` adds Spark and its jobs.
# Nothing in here needs BuildKit.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /app/venv
COPY requirements/services.txt requirements/
RUN /app/venv/bin/pip install --require-hashes -r requirements/services.txt
COPY client client
RUN /app/venv/bin/pip install --no-index --no-deps --no-build-isolation ./client

FROM ${PYTHON_IMAGE} AS services
ENV PATH=/app/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ARROW_DEFAULT_MEMORY_POOL=system \
    MALLOC_ARENA_MAX=2
WORKDIR /app
# A new volume gets the owner of the folder that it is mounted on. Java requires a name for its user.
RUN echo 'myqueue:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'myqueue:x:10001:' >> /etc/group \
    && mkdir /data \
    && chown 10001:10001 /data
COPY --from=build /app/venv venv
COPY service service
COPY db db
COPY broker broker
COPY read_manager read_manager
COPY write_manager write_manager
RUN python -m compileall -q service db broker read_manager write_manager
USER 10001:10001
ENTRYPOINT ["python", "-m"]
CMD ["write_manager", "--help"]
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-m", "service.healthcheck"]

FROM build AS build-spark
COPY requirements/spark.txt requirements/
RUN /app/venv/bin/pip install --require-hashes -r requirements/spark.txt

FROM services AS spark
USER root
COPY --from=build-spark /app/venv venv
COPY spark spark
RUN python -m compileall -q spark \
    && python -c 'import pathlib, spark.runtime; spark.runtime.worker_python(pathlib.Path("/app"))'
# A driver names the Python of its executors. This one is in every container of a Spark cluster: spark/runtime.py says
# what it is for, spark/worker_daemon.py what the daemon is for.
ENV PYSPARK_PYTHON=/app/python \
    PYSPARK_SUBMIT_ARGS="--conf spark.python.daemon.module=spark.worker_daemon pyspark-shell"
USER 10001:10001
CMD ["spark", "scheduler"]
HEALTHCHECK NONE

# What is built when no target is named.
FROM services
