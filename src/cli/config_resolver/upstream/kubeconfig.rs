//! Where the API server and weir's own credentials come from: `--kubeconfig`, `KUBECONFIG`, or the
//! service account of the Pod that weir is in; and the proxy on the way there.

use std::io;
use std::path::{Path, PathBuf};

use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::flags::UpstreamArgs;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::kubeconfig;
use crate::upstream::kubeconfig::{Kubeconfig, KubeconfigFile};
use weir_kubernetes::document;

pub(super) const KUBECONFIG: &str = "kubeconfig";

/// What names weir's own credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KubeconfigSource {
    /// `--kubeconfig`.
    File(PathBuf),
    /// The files of `KUBECONFIG`.
    Merged(Vec<PathBuf>),
    /// The Pod's service account.
    ServiceAccount,
}

impl UpstreamArgs {
    /// Whether weir may have credentials of its own. Without an API server, both are given
    /// elsewhere: by other flags, `KUBECONFIG` or the Pod that weir is in.
    pub(crate) const fn may_have_credentials(&self) -> bool {
        self.kubeconfig.is_some() || self.upstream.is_empty()
    }
}

impl FlagResolver {
    /// What names weir's own credentials: `--kubeconfig`, and where that is empty, `KUBECONFIG` and
    /// then the Pod. `--upstream` without `--kubeconfig` needs none.
    pub(crate) fn kubeconfig_source(&self, args: &UpstreamArgs) -> Option<KubeconfigSource> {
        match &args.kubeconfig {
            Some(file) if !file.as_os_str().is_empty() => {
                return Some(KubeconfigSource::File(file.clone()));
            }
            None if !args.upstream.is_empty() => return None,
            Some(_) | None => {}
        }
        let files = self.environment().kubeconfig_files();
        if !files.is_empty() {
            return Some(KubeconfigSource::Merged(files));
        }
        let pod = self.environment().pod();
        pod.map(|_| KubeconfigSource::ServiceAccount)
    }

    /// What a source says, with its files read.
    pub(super) fn read_kubeconfig(
        &mut self,
        args: &UpstreamArgs,
        source: &KubeconfigSource,
    ) -> Option<Kubeconfig> {
        let files = match source {
            KubeconfigSource::ServiceAccount => return self.read_service_account(args),
            KubeconfigSource::File(file) => vec![self.read_kubeconfig_file(file)?],
            KubeconfigSource::Merged(files) => self.read_merged_files(files)?,
        };
        let mut diagnostics = document::Diagnostics::default();
        let parsed = kubeconfig::parse(&files, args.context.as_deref(), &mut diagnostics);
        self.merge(KUBECONFIG, &diagnostics);
        parsed
    }

    fn read_kubeconfig_file(&mut self, file: &Path) -> Option<KubeconfigFile> {
        let text = self.read_text(KUBECONFIG, file)?;
        Some(KubeconfigFile {
            path: file.to_owned(),
            text,
        })
    }

    /// As for kubectl, files of `KUBECONFIG` may be missing.
    fn read_merged_files(&mut self, files: &[PathBuf]) -> Option<Vec<KubeconfigFile>> {
        let is_missing = |file: &PathBuf| {
            let content = self.files().read(file);
            content.is_err_and(|why| why.kind() == io::ErrorKind::NotFound)
        };
        let (missing, present): (Vec<_>, Vec<_>) = files.iter().partition(|file| is_missing(file));
        if present.is_empty() {
            let missing: Vec<_> = missing
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            self.add(
                KUBECONFIG,
                format!("no file of KUBECONFIG is there: {}", missing.join(", ")),
            );
            return None;
        }
        let files: Vec<_> = present
            .into_iter()
            .map(|file| self.read_kubeconfig_file(file))
            .collect();
        files.into_iter().collect()
    }

    fn read_service_account(&mut self, args: &UpstreamArgs) -> Option<Kubeconfig> {
        if args.context.is_some() {
            self.add("context", "only together with a kubeconfig");
        }
        let environment = self.environment().clone();
        let pod = environment.pod()?;
        let account = kubeconfig::of_service_account(pod.host, pod.port, pod.service_account);
        let account = account.map_err(|why| {
            format!("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are no address: {why}")
        });
        self.check(KUBECONFIG, account)
    }

    /// Gives each server without a proxy the one of `HTTPS_PROXY` and `NO_PROXY`.
    pub(super) fn add_environment_proxies(
        &mut self,
        flag: &str,
        servers: Vec<ServerAddress>,
    ) -> Option<Vec<ServerAddress>> {
        let environment = self.environment().proxy();
        let servers: Vec<_> = servers
            .into_iter()
            .map(|server| {
                if server.proxy.is_some() {
                    return Some(server);
                }
                let proxy = environment.proxy_for(&server.authority);
                let proxy = self.check(flag, proxy.map_err(|why| format!("HTTPS_PROXY: {why}")))?;
                Some(ServerAddress { proxy, ..server })
            })
            .collect();
        servers.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::cli::flags::environment::Environment;
    use crate::cli::flags::input_files::InputFiles;
    use crate::upstream::credentials::{BearerToken, CredentialSource};

    const IN_A_POD: [(&str, &str); 2] = [
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("KUBERNETES_SERVICE_PORT", "443"),
    ];

    fn args(upstream: &[&str], kubeconfig: Option<&str>) -> UpstreamArgs {
        UpstreamArgs {
            upstream: upstream.iter().map(|url| (*url).to_owned()).collect(),
            kubeconfig: kubeconfig.map(PathBuf::from),
            ..UpstreamArgs::default()
        }
    }

    fn resolver<const N: usize>(
        variables: [(&'static str, &str); N],
        service_account: &Path,
    ) -> (FlagResolver, Arc<InputFiles>) {
        let variables = variables.map(|(name, value)| (name, value.into()));
        let files = Arc::<InputFiles>::default();
        let environment = Environment::of(variables, service_account);
        let resolver = FlagResolver::new(Default::default(), Arc::clone(&files), environment);
        (resolver, files)
    }

    #[test]
    fn flags_come_before_the_environment_and_kubeconfig_before_the_pod() {
        let [host, port] = IN_A_POD;
        let (pod, _) = resolver([host, port], Path::new("/run/account"));
        let both = [host, port, ("KUBECONFIG", "/a:/b")];
        let (both, _) = resolver(both, Path::new("/run/account"));
        let (nowhere, _) = resolver([], Path::new(""));
        let url = "https://127.0.0.1:6443";
        let file = Some(KubeconfigSource::File("/f".into()));
        let merged = Some(KubeconfigSource::Merged(vec!["/a".into(), "/b".into()]));
        let account = Some(KubeconfigSource::ServiceAccount);
        for (resolver, args, expected) in [
            (&both, args(&[], Some("/f")), &file),
            (&both, args(&[], Some("")), &merged),
            (&both, args(&[], None), &merged),
            (&both, args(&[url], None), &None),
            (&pod, args(&[], Some("")), &account),
            (&pod, args(&[], None), &account),
            (&pod, args(&[url], None), &None),
            (&nowhere, args(&[], Some("")), &None),
            (&nowhere, args(&[], None), &None),
        ] {
            assert_eq!(resolver.kubeconfig_source(&args), *expected, "{args:?}");
        }
    }

    #[test]
    fn a_changed_token_of_the_service_account_is_a_changed_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let (mut pod, files) = resolver(IN_A_POD, dir.path());
        let args = args(&[], None);
        let source = pod.kubeconfig_source(&args).unwrap();
        let config = pod.read_kubeconfig(&args, &source).unwrap();
        assert_eq!(config.address.authority, "10.96.0.1:443");
        let token = dir.path().join("token");
        assert_eq!(config.source.files().collect::<Vec<_>>(), [&*token]);
        assert!(matches!(
            &config.source,
            CredentialSource::Configured { token: Some(BearerToken::File { path, .. }), .. }
                if *path == token
        ));
        assert!(pod.findings.iter().next().is_none());
        drop(files);
    }

    #[test]
    fn a_context_belongs_to_a_kubeconfig() {
        let (mut pod, _) = resolver(IN_A_POD, Path::new("/run/account"));
        let args = UpstreamArgs {
            context: Some("prod".to_owned()),
            ..UpstreamArgs::default()
        };
        let source = pod.kubeconfig_source(&args).unwrap();
        pod.read_kubeconfig(&args, &source);
        let findings: Vec<_> = pod.findings.iter().map(ToString::to_string).collect();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].contains("only together with a kubeconfig"),
            "{findings:?}"
        );
    }

    #[test]
    fn files_of_kubeconfig_may_be_missing_but_not_all_and_are_noticed_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let list = [path("absent"), path("present")].join(":");
        fs::write(
            path("present"),
            "current-context: a\ncontexts:\n- {name: a, context: {cluster: k, user: u}}\n\
             clusters:\n- {name: k, cluster: {server: 'https://k'}}\nusers:\n- {name: u, user: {token: t}}\n",
        )
        .unwrap();
        let (mut resolver_of_both, files) = resolver([("KUBECONFIG", &*list)], Path::new(""));
        let args = args(&[], None);
        let source = resolver_of_both.kubeconfig_source(&args).unwrap();
        let config = resolver_of_both.read_kubeconfig(&args, &source).unwrap();
        assert_eq!(config.address.authority, "k");
        let digests = files.digests();
        assert!(digests.are_current());
        fs::write(path("absent"), "current-context: b\n").unwrap();
        assert!(!digests.are_current(), "the file is there now");

        let absent = path("nowhere");
        let (mut of_none, _) = resolver([("KUBECONFIG", &*absent)], Path::new(""));
        assert_eq!(
            of_none.read_kubeconfig(&args, &of_none.kubeconfig_source(&args).unwrap()),
            None
        );
        let findings: Vec<_> = of_none.findings.iter().map(ToString::to_string).collect();
        assert!(
            findings[0].contains("no file of KUBECONFIG is there"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_proxy_of_the_environment_is_for_servers_without_one() {
        let server = |authority: &str, proxy| ServerAddress {
            proxy,
            ..ServerAddress::new(
                authority.parse().unwrap(),
                crate::upstream::connection::address::parse_server_name("k").unwrap(),
            )
        };
        let own = crate::upstream::connection::address::parse_proxy("http://own").unwrap();
        let servers = vec![
            server("k:6443", None),
            server("k:6443", Some(own)),
            server("10.0.0.1:6443", None),
        ];
        let variables = [("HTTPS_PROXY", "http://other"), ("NO_PROXY", "10.0.0.0/8")];
        let (mut with_proxy, _) = resolver(variables, Path::new(""));
        let servers = with_proxy
            .add_environment_proxies("upstream", servers)
            .unwrap();
        let proxies: Vec<_> = servers
            .iter()
            .map(|server| server.proxy.as_ref().map(|proxy| proxy.authority.as_str()))
            .collect();
        assert_eq!(proxies, [Some("other:80"), Some("own:80"), None]);
        let (mut unusable, _) = resolver([("HTTPS_PROXY", "socks5://p")], Path::new(""));
        let servers = vec![server("k:6443", None)];
        assert_eq!(unusable.add_environment_proxies("upstream", servers), None);
        assert!(unusable.findings.prevent_start());
    }
}
