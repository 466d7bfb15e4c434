# syntax=docker/dockerfile:1
#
# weir as an image:
#   docker build --build-arg WEIR_COMMIT=$(git rev-parse --short=12 HEAD) -t weir .
#   docker run -p 8080:8080 -p 8081:8081 -v ./examples/quickstart:/etc/weir/policies:ro weir
#
# Built with glibc and run on distroless/cc: glibc needs nothing but the three libraries that this base has. The C compiler
# of the build image compiles the allocator (mimalloc). No protoc is needed; build.rs compiles proto/ itself.

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /src
COPY . .
# The commit that `weir --version` names: .git is not part of the build context.
ARG WEIR_COMMIT=
# Registry and target directory are kept between builds by BuildKit, so that dependencies compile once. The binary is
# copied out, since what a cache mount holds is not part of the image.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    WEIR_COMMIT="$WEIR_COMMIT" cargo build --release --locked --bin weir \
    && cp target/release/weir /usr/local/bin/weir \
    && weir --version \
    && mkdir -p /links/bin \
    && for name in ratelimit ratelimit_config_check ratelimit_client; do \
           ln -s /usr/local/bin/weir "/links/bin/$name" || exit 1; \
       done

FROM gcr.io/distroless/cc-debian12:nonroot
ARG WEIR_COMMIT=
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="A rate limit service for Envoy and for the owners of services" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="$WEIR_COMMIT"
COPY --from=build /usr/local/bin/weir /usr/local/bin/weir
# The programs of envoyproxy/ratelimit's image, each where its deployments look for it (docs/migrating.md).
COPY --from=build /links/bin/ /bin/
# By number, so that Kubernetes can tell that it is not root.
USER 65532:65532
# HTTP, gRPC, admin, and the metrics of /bin/ratelimit. The admin listener is bound to the container's loopback unless WEIR__LISTEN__ADMIN says otherwise.
EXPOSE 8080 8081 6070 9090
# There is no HEALTHCHECK: it would need a shell or an HTTP client in the image. Probe /healthz and /readyz on 8080, or
# grpc.health.v1 on 8081, from outside.
ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["serve", "--policies", "/etc/weir/policies"]
