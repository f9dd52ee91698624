# mhsd in a container: `docker build -t mhsd .`, `docker run --rm -v mhsd-state:/var/lib/mhsd mhsd`.
# Every option of mhsd is an environment variable (MHSD_HOST, MHSD_TOKEN_FILE, ...); see "Docker" in README.md.

FROM python:3.13-slim AS build
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY mhsd mhsd
COPY spec spec
COPY drivers drivers
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && python -m venv /opt/mhsd \
    && /opt/mhsd/bin/pip install --no-cache-dir --constraint constraints.txt /dist/*.whl

FROM python:3.13-slim
LABEL org.opencontainers.image.title="mhsd" \
      org.opencontainers.image.description="Serves laboratory instruments over MHS/1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 7400 --user-group --no-create-home --home-dir /var/lib/mhsd --shell /usr/sbin/nologin mhsd \
    && install -d -m 0700 -o mhsd -g mhsd /var/lib/mhsd /run/mhsd
COPY --from=build /opt/mhsd /opt/mhsd
ENV PATH=/opt/mhsd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MHSD_STATE_DIR=/var/lib/mhsd
USER 7400
WORKDIR /
VOLUME /var/lib/mhsd
EXPOSE 7400
# SIGTERM brings running operations to the safe state first, in up to twice MHSD_STOP_GRACE_S (10): `docker stop -t 45`.
STOPSIGNAL SIGTERM
# Asks the local socket in /run/mhsd, which needs neither token nor certificate.
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s --retries=3 CMD ["mhsctl", "status", "--json"]
ENTRYPOINT ["mhsd"]
