//! The API server, and the credentials of weir's own calls.
//!
//! `~/.kube/config` is never used by itself, as kubectl does: a service that takes a person's
//! credentials by accident is worse than one that does not start.

pub(super) mod kubeconfig;
mod own_credentials;
mod replicas;

use std::sync::Arc;

use rustls::sign::CertifiedKey;

use crate::cli::config_resolver::certificates::CertificateUse;
use crate::cli::config_resolver::flag_resolver::{FlagFile, FlagResolver};
use crate::cli::config_resolver::upstream::kubeconfig::{KUBECONFIG, KubeconfigSource};
use crate::cli::flags::{LimitArgs, UpstreamArgs};
use crate::upstream;
use crate::upstream::connection::address;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::credentials::CredentialSource;
use crate::upstream::forward::server_probes::PROBE_INTERVAL;
use crate::upstream::kubeconfig::Kubeconfig;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::tls::{Pem, parse_upstream_roots};
use weir_x509::CertificatePool;

impl FlagResolver {
    /// The API server, and the credentials of weir's own calls.
    pub(super) fn resolve_upstream(
        &mut self,
        args: &UpstreamArgs,
        limits: &LimitArgs,
        connection_budget: usize,
    ) -> Option<(upstream::UpstreamConfig, CredentialSource)> {
        let front_proxy = self.read_front_proxy_key(args);
        let source = self.kubeconfig_source(args);
        if args.upstream_endpoint_slices && source.is_none() {
            self.add(
                "upstream-endpoint-slices",
                "only together with --kubeconfig, whose user reads the EndpointSlices",
            );
        }
        let flag = if args.upstream.is_empty() {
            KUBECONFIG
        } else {
            "upstream"
        };
        let target = match (&*args.upstream, &source) {
            (urls @ [_, ..], None) => self.upstream_from_urls(args, urls),
            (urls, Some(source)) => self.upstream_from_kubeconfig(args, source, urls),
            ([], None) => {
                self.add(
                    "upstream",
                    "needed: the API server, as https://HOST:PORT; or a --kubeconfig (KUBECONFIG is not set either, and weir is in no Pod)",
                );
                None
            }
        };
        let id = self.check("upstream", InstanceId::generate());
        let (servers, roots, credentials) = target?;
        let servers = self.add_environment_proxies(flag, servers)?;
        if args.upstream_endpoint_slices && servers.iter().any(|server| server.proxy.is_some()) {
            self.add(
                "upstream-endpoint-slices",
                "not together with a proxy (HTTPS_PROXY, or proxy-url in the kubeconfig): the listed addresses are connected to directly",
            );
        }
        let max_http2_connections = usize::try_from(limits.upstream_max_connections).unwrap_or(1);
        Some((
            upstream::UpstreamConfig {
                servers,
                endpoint_slices: args.upstream_endpoint_slices,
                roots,
                front_proxy: front_proxy?,
                max_http2_connections,
                protocol: args.upstream_protocol,
                max_connections: connection_budget,
                instance_id: id?,
                probe_interval: Some(PROBE_INTERVAL),
            },
            credentials,
        ))
    }

    /// `Some(None)` without the flags, `None` after an error.
    #[expect(
        clippy::option_option,
        reason = "the outer one is for errors, as everywhere here"
    )]
    fn read_front_proxy_key(&mut self, args: &UpstreamArgs) -> Option<Option<Arc<CertifiedKey>>> {
        const CERTIFICATE: &str = "proxy-client-cert-file";
        const KEY: &str = "proxy-client-key-file";
        match (&args.proxy_client_cert_file, &args.proxy_client_key_file) {
            (None, None) => Some(None),
            (Some(certificate), Some(key)) => self
                .read_certified_key(
                    FlagFile {
                        flag: CERTIFICATE,
                        path: certificate,
                    },
                    FlagFile {
                        flag: KEY,
                        path: key,
                    },
                    CertificateUse::Client,
                )
                .map(Some),
            (Some(_), None) => {
                self.add(KEY, format!("needed: the key of --{CERTIFICATE}"));
                None
            }
            (None, Some(_)) => {
                self.add(CERTIFICATE, format!("needed: the certificate of --{KEY}"));
                None
            }
        }
    }

    fn upstream_from_urls(
        &mut self,
        args: &UpstreamArgs,
        urls: &[String],
    ) -> Option<(Vec<ServerAddress>, CertificatePool, CredentialSource)> {
        if args.context.is_some() {
            self.add("context", "only together with --kubeconfig");
        }
        let servers = self.parse_servers(urls);
        let roots = match &args.upstream_ca_file {
            Some(file) => {
                self.read_root_certificates("upstream-ca-file", file, parse_upstream_roots)
            }
            None => self.check("upstream-ca-file", upstream::tls::load_system_roots()),
        };
        let credentials = CredentialSource::Configured {
            certificate: None,
            token: None,
        };
        Some((servers?, roots?, credentials))
    }

    /// Parses each URL. `None` after an error.
    fn parse_servers(&mut self, urls: &[String]) -> Option<Vec<ServerAddress>> {
        let parsed: Vec<_> = urls
            .iter()
            .map(|url| {
                let (authority, name) = self.check("upstream", address::parse_server(url))?;
                Some(ServerAddress::new(authority, name))
            })
            .collect();
        parsed.into_iter().collect()
    }

    /// The API servers at `urls`, or the one of the kubeconfig if there are none. Everything else is
    /// the kubeconfig's: the CA, `tls-server-name`, `proxy-url`, and the user.
    pub(super) fn upstream_from_kubeconfig(
        &mut self,
        args: &UpstreamArgs,
        source: &KubeconfigSource,
        urls: &[String],
    ) -> Option<(Vec<ServerAddress>, CertificatePool, CredentialSource)> {
        if args.upstream_ca_file.is_some() {
            self.add(
                "upstream-ca-file",
                "not together with --kubeconfig, which names the CA",
            );
        }
        let given = self.parse_servers(urls);
        let Kubeconfig {
            context: _,
            address,
            tls_server_name,
            ca,
            source,
            user_file,
        } = self.read_kubeconfig(args, source)?;
        // They are read when weir connects. A change of them is a change of the configuration.
        for file in source.files() {
            let _ = self.files().read(file);
        }
        let roots = match &ca {
            None => self.check(KUBECONFIG, upstream::tls::load_system_roots()),
            Some(Pem::Data {
                location,
                field,
                bytes,
            }) => self.parse_root_certificates(
                KUBECONFIG,
                (location, field),
                bytes,
                parse_upstream_roots,
            ),
            Some(Pem::File(file)) => {
                self.read_root_certificates(KUBECONFIG, file, parse_upstream_roots)
            }
        };
        self.inspect_credentials(&user_file, &source);
        let mut servers = given?;
        for server in &mut servers {
            server.proxy.clone_from(&address.proxy);
            if let Some(name) = &tls_server_name {
                server.server_name = name.clone();
            }
        }
        if servers.is_empty() {
            servers.push(address);
        }
        Some((servers, roots?, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tls::tests::ca_pem;

    #[test]
    fn a_root_of_the_api_server_that_cannot_be_parsed_is_left_out_with_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        let broken = "-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n";
        std::fs::write(&file, format!("{}{broken}", ca_pem())).unwrap();
        let args = UpstreamArgs {
            upstream_ca_file: Some(file),
            ..UpstreamArgs::default()
        };
        let mut resolver = FlagResolver::default();
        let resolved = resolver.upstream_from_urls(&args, &["https://k".to_owned()]);
        assert_eq!(resolved.map(|(_, roots, _)| roots.len()), Some(1));
        let findings = resolver.findings.iter();
        let lines: Vec<_> = findings.map(|finding| finding.report_line()).collect();
        let expected = "warning: --upstream-ca-file: certificate 2 is left out: ";
        assert!(
            matches!(&*lines, [only] if only.contains(expected)),
            "{lines:?}"
        );
    }
}
