"""The proxies that are compared: their configurations and commands, all before one origin.

Each gets `workers` threads, TLS on both sides, and verifies the origin's certificate.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess

# As in client.go: one user's share of weir's bounds is not what is measured.
USERS = 20
# More than any case opens, and few enough for 20,000 descriptors (two for each).
MAX_CONNECTIONS = 8000


@dataclasses.dataclass(frozen=True)
class Peer:
    """A proxy that can be started. `command` is empty for the origin itself."""

    name: str
    port: int
    command: tuple[str, ...]


def certificates(folder: pathlib.Path) -> None:
    """Makes ca.crt, tls.crt, tls.key and both.pem, with names for localhost."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, stderr=subprocess.DEVNULL)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    openssl("req", *key, "-subj", "/CN=localhost", "-keyout", "tls.key", "-out", "tls.csr")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(*"x509 -req -days 2 -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial".split(),
            "-extfile", "names", "-out", "tls.crt")
    (folder / "both.pem").write_text((folder / "tls.crt").read_text() + (folder / "tls.key").read_text())
    tokens = [f"benchmark-{n},bench-{n},{n}" for n in range(USERS)]
    (folder / "tokens.csv").write_text("\n".join(tokens) + "\n")


def nginx(folder: pathlib.Path, port: int, origin: int, workers: int) -> Peer:
    path = folder / f"nginx-{workers}.conf"
    path.write_text(f"""
worker_processes {workers}; daemon off; pid {folder}/nginx-{workers}.pid; error_log {folder}/nginx.log;
worker_rlimit_nofile 65536;
events {{ worker_connections {2 * MAX_CONNECTIONS}; }}
http {{
    access_log off; keepalive_requests 1000000000; http2_max_concurrent_streams 1000;
    client_body_temp_path {folder}/n1; proxy_temp_path {folder}/n2; fastcgi_temp_path {folder}/n3;
    uwsgi_temp_path {folder}/n4; scgi_temp_path {folder}/n5;
    upstream origin {{ server 127.0.0.1:{origin}; keepalive 1024; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} ssl http2 backlog=4096;
        ssl_certificate {folder}/tls.crt; ssl_certificate_key {folder}/tls.key; ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:TLS:8m;
        location / {{
            proxy_pass https://origin; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_ssl_verify on; proxy_ssl_trusted_certificate {folder}/ca.crt; proxy_ssl_name localhost;
            proxy_ssl_server_name on; proxy_ssl_protocols TLSv1.3; proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
""")
    return Peer("nginx->h1", port, ("nginx", "-c", str(path)))


def haproxy(folder: pathlib.Path, port: int, origin: int, workers: int, alpn: str) -> Peer:
    short = {"http/1.1": "h1", "h2": "h2"}[alpn]
    path = folder / f"haproxy-{short}-{workers}.cfg"
    path.write_text(f"""
global
    nbthread {workers}
    maxconn {MAX_CONNECTIONS}
    tune.h2.max-concurrent-streams 1000
defaults
    mode http
    timeout client 1h
    timeout server 1h
    timeout connect 10s
    http-reuse always
frontend in
    bind 127.0.0.1:{port} ssl crt {folder}/both.pem alpn h2,http/1.1 backlog 4096
    default_backend origin
backend origin
    server origin 127.0.0.1:{origin} ssl verify required ca-file {folder}/ca.crt verifyhost localhost sni str(localhost) alpn {alpn}
""")
    return Peer(f"haproxy->{short}", port, ("haproxy", "-db", "-f", str(path)))


def envoy(program: str, folder: pathlib.Path, port: int, origin: int, workers: int, protocol: str) -> Peer:
    short, options = {
        "http1": ("h1", "explicit_http_config: {http_protocol_options: {}}"),
        "http2": ("h2", "explicit_http_config: {http2_protocol_options: {}}"),
    }[protocol]
    path = folder / f"envoy-{short}-{workers}.yaml"
    kinds = "type.googleapis.com/envoy.extensions"
    path.write_text(f"""
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          "@type": {kinds}.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_certificates:
            - {{certificate_chain: {{filename: {folder}/tls.crt}}, private_key: {{filename: {folder}/tls.key}}}}
      filters:
      - name: http
        typed_config:
          "@type": {kinds}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          stream_idle_timeout: 0s
          http2_protocol_options: {{max_concurrent_streams: 1000}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: origin, timeout: 0s}}}}]
          http_filters:
          - name: router
            typed_config: {{"@type": {kinds}.filters.http.router.v3.Router}}
  clusters:
  - name: origin
    type: STATIC
    load_assignment:
      cluster_name: origin
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {origin}}}}}}}
    circuit_breakers: # as good as none
      thresholds: [{{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {kinds}.upstreams.http.v3.HttpProtocolOptions
        {options}
    transport_socket:
      name: tls
      typed_config:
        "@type": {kinds}.transport_sockets.tls.v3.UpstreamTlsContext
        sni: localhost
        common_tls_context:
          validation_context:
            trusted_ca: {{filename: {folder}/ca.crt}}
            match_typed_subject_alt_names: [{{san_type: DNS, matcher: {{exact: localhost}}}}]
""")
    command = (program, "-c", str(path), "--concurrency", str(workers), "--log-level", "error", "--disable-hot-restart")
    return Peer(f"envoy->{short}", port, command)


def weir(program: str, name: str, folder: pathlib.Path, port: int, origin: int, workers: int, *flags: str) -> Peer:
    command = (
        program, "serve", "--upstream", f"https://localhost:{origin}", "--upstream-ca-file", f"{folder}/ca.crt",
        "--tls-cert-file", f"{folder}/tls.crt", "--tls-private-key-file", f"{folder}/tls.key",
        "--token-auth-file", f"{folder}/tokens.csv", "--bind-address", "127.0.0.1", "--secure-port", str(port),
        "--admin-address", "127.0.0.1:0", "--max-requests-inflight", "100000", "--workers", str(workers),
        "--http2-max-streams-per-connection", "1000", "--log-level", "error",
        "--max-connections", str(MAX_CONNECTIONS), "--max-connections-per-address", "0",
        # All clients share an address, as behind a load balancer.
        "--trusted-proxies", "127.0.0.1/32", *flags,
    )
    return Peer(name, port, command)


def all_peers(folder: pathlib.Path, origin: int, workers: int) -> list[Peer]:
    """The proxies that are installed. WEIR, BEFORE and ENVOY name programs."""
    here = pathlib.Path(__file__).resolve().parents[2]
    program = os.environ.get("WEIR", str(here / "target/dist/weir"))
    if not os.access(program, os.X_OK):
        raise SystemExit(f"{program}: cargo build --profile dist first, or set WEIR")
    peers = [Peer("direct", origin, ())]
    if shutil.which("nginx"):
        peers.append(nginx(folder, 19001, origin, workers))
    if shutil.which("haproxy"):
        peers.append(haproxy(folder, 19002, origin, workers, "http/1.1"))
        peers.append(haproxy(folder, 19003, origin, workers, "h2"))
    if found := os.environ.get("ENVOY") or shutil.which("envoy"):
        peers.append(envoy(found, folder, 19004, origin, workers, "http1"))
        peers.append(envoy(found, folder, 19005, origin, workers, "http2"))
    for name, short, port in (("weir->h1", "http1", 19006), ("weir->h2", "http2", 19007), ("weir->auto", "auto", 19008)):
        peers.append(weir(program, name, folder, port, origin, workers, "--upstream-protocol", short))
    if before := os.environ.get("BEFORE"):
        peers.append(weir(before, "weir-before", folder, 19009, origin, workers))
    return peers
