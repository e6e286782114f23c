# syntax=docker/dockerfile:1
# An image with weir and nothing else: no shell, no package manager, not root.
#
#   docker build -t weir:0.1.0 .
#   docker run --rm --stop-timeout 100 -p 6443:6443 -v /etc/weir:/etc/weir:ro weir:0.1.0 serve --config /etc/weir/config.yaml
#
# The files in /etc/weir must be readable by the user 65532.
#
# A kubeconfig whose user has an `exec` plugin needs that program in the image: build one FROM this with it.

# The same Debian as below, so that what is linked here is found there.
FROM rust:1.95-bookworm AS builder
# What the build needs to see weir at work.
RUN apt-get update && \
    apt-get install -y --no-install-recommends llvm-19 nghttp2-client nginx-light wrk && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Without the playground, whose API server and certificates are for trying things out.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    deploy/build.sh --no-default-features --features otlp,shared-limits,tools && \
    install -m 0755 target/guided/weir /weir

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=builder /weir /weir
# Clients. The health address is 6481 by convention of the examples; the admin address is for the machine itself.
EXPOSE 6443
USER nonroot
ENTRYPOINT ["/weir"]
CMD ["serve"]
