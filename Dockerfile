# weir as an image: a static binary, the names of envoyproxy/ratelimit's programs as links to it, licences, and nothing else.
#
#   docker build --build-arg WEIR_COMMIT=$(git rev-parse --short=12 HEAD) -t weir .
#   docker run --read-only --cap-drop ALL -p 8080:8080 -p 8081:8081 -v ./examples/quickstart:/etc/weir/policies:ro weir
#
# It builds for the platform that it runs on. scripts/image builds it without a registry: it compiles on the machine and puts
# the result in the place of the stage `compiled`.

# A release pins it: --build-arg RUST_IMAGE=rust:1.95.0-slim-bookworm@sha256:...
ARG RUST_IMAGE=rust:1.95.0-slim-bookworm
FROM ${RUST_IMAGE} AS compiled
# The C compiler for the allocator (mimalloc) and the cryptography (ring), and Python for scripts/licenses. No protoc: proto/generated has the
# code.
RUN apt-get update \
    && apt-get install -y --no-install-recommends musl-tools python3 \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /src
COPY . .
# The commit that `weir --version` shows: .git is not part of the build context.
ARG WEIR_COMMIT=
# BuildKit keeps registry and target directory between builds, so that dependencies compile once.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    WEIR_COMMIT="$WEIR_COMMIT" scripts/image root /image \
    && /image/bin/weir --version

FROM scratch
ARG WEIR_COMMIT=
ARG WEIR_VERSION=0.1.0
# The address of the repository.
ARG WEIR_SOURCE=
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="A rate limit service for Envoy and for the owners of services" \
      org.opencontainers.image.source="$WEIR_SOURCE" \
      org.opencontainers.image.version="$WEIR_VERSION" \
      org.opencontainers.image.revision="$WEIR_COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
# /bin has weir and the programs of envoyproxy/ratelimit's image, where its deployments look for them (docs/migrating.md).
# Time zones and Mozilla's certificates are in the binary.
COPY --from=compiled /image/ /
# By number, so that Kubernetes can tell that it is not root.
USER 65532:65532
# HTTP, gRPC, admin, and the metrics of /bin/ratelimit. The admin listener is bound to the container's loopback unless WEIR__LISTEN__ADMIN says otherwise.
EXPOSE 8080 8081 6070 9090
# There is no HEALTHCHECK: it would need a shell or an HTTP client in the image. Probe /healthz and /readyz on 8080, or
# grpc.health.v1 on 8081, from outside.
ENTRYPOINT ["/bin/weir"]
CMD ["serve", "--policies", "/etc/weir/policies"]
