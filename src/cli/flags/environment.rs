//! The variables of the environment that settings depend on, read once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::control::{RUN_FOLDER, SOCKET_NAME};
use crate::upstream::connection::environment_proxy::ProxyEnvironment;

/// Where the kubelet mounts the token and the CA of a Pod's service account.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The variables of a process, and where its service account would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    variables: BTreeMap<&'static str, OsString>,
    service_account: PathBuf,
}

/// A Pod's service account, and the API server's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodEnvironment<'e> {
    pub(crate) host: &'e str,
    pub(crate) port: &'e str,
    /// The folder with the token and the CA.
    pub(crate) service_account: &'e Path,
}

impl Environment {
    /// The variables of this process.
    pub(crate) fn of_process() -> Self {
        let names = [
            "HTTPS_PROXY",
            "KUBECONFIG",
            "KUBERNETES_SERVICE_HOST",
            "KUBERNETES_SERVICE_PORT",
            "NO_PROXY",
            "RUNTIME_DIRECTORY",
            "XDG_RUNTIME_DIR",
            "https_proxy",
            "no_proxy",
        ];
        let variables = names
            .into_iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        Self {
            variables: variables.collect(),
            service_account: SERVICE_ACCOUNT_DIR.into(),
        }
    }

    /// These variables, for tests.
    #[cfg(test)]
    pub(crate) fn of<const N: usize>(
        variables: [(&'static str, OsString); N],
        service_account: &Path,
    ) -> Self {
        Self {
            variables: variables.into(),
            service_account: service_account.to_owned(),
        }
    }

    /// The files of `KUBECONFIG`, each once; none if it is not set, or empty.
    pub(crate) fn kubeconfig_files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let list = self.variables.get("KUBECONFIG").into_iter();
        for file in list.flat_map(std::env::split_paths) {
            if !file.as_os_str().is_empty() && !files.contains(&file) {
                files.push(file);
            }
        }
        files
    }

    /// Where the control socket is by default; the first one is weir's own.
    pub(crate) fn control_sockets(&self) -> Vec<PathBuf> {
        let service = self.text("RUNTIME_DIRECTORY");
        let service = service.and_then(|folders| folders.split(':').next());
        let session = self.text("XDG_RUNTIME_DIR");
        let folders = [
            service.map(PathBuf::from),
            session.map(|folder| Path::new(folder).join("weir")),
            Some(PathBuf::from(RUN_FOLDER)),
        ];
        let folders = folders.into_iter().flatten();
        folders.map(|folder| folder.join(SOCKET_NAME)).collect()
    }

    /// The Pod that this process is in, if the kubelet's variables say that it is in one.
    pub(crate) fn pod(&self) -> Option<PodEnvironment<'_>> {
        Some(PodEnvironment {
            host: self.text("KUBERNETES_SERVICE_HOST")?,
            port: self.text("KUBERNETES_SERVICE_PORT")?,
            service_account: &self.service_account,
        })
    }

    /// The proxy, as Go reads it: by the name in capitals first.
    pub(crate) fn proxy(&self) -> ProxyEnvironment {
        let either = |capitals, small| self.text(capitals).or_else(|| self.text(small));
        ProxyEnvironment {
            https_proxy: either("HTTPS_PROXY", "https_proxy").map(str::to_owned),
            no_proxy: either("NO_PROXY", "no_proxy").map(str::to_owned),
        }
    }

    /// A variable that is set and not empty.
    fn text(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name)?.to_str()?;
        (!value.is_empty()).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_is_a_list_of_files_without_empty_ones_and_duplicates() {
        let files = |list: &str| {
            Environment::of([("KUBECONFIG", list.into())], Path::new("")).kubeconfig_files()
        };
        assert_eq!(files("/a::/b:/a:c"), ["/a", "/b", "c"].map(PathBuf::from));
        assert_eq!(files(""), Vec::<PathBuf>::new());
        assert!(Environment::default().kubeconfig_files().is_empty());
    }

    #[test]
    fn the_control_socket_is_in_the_folder_of_the_service_or_of_the_session_or_of_the_machine() {
        let sockets = |service: &str, session: &str| {
            let variables = [
                ("RUNTIME_DIRECTORY", service.into()),
                ("XDG_RUNTIME_DIR", session.into()),
            ];
            Environment::of(variables, Path::new("")).control_sockets()
        };
        let machine = "/run/weir/control.sock";
        assert_eq!(sockets("", ""), [Path::new(machine)]);
        assert_eq!(
            sockets("/run/a:/run/b", "/run/user/7"),
            [
                "/run/a/control.sock",
                "/run/user/7/weir/control.sock",
                machine
            ]
            .map(PathBuf::from)
        );
    }

    #[test]
    fn a_pod_has_both_variables() {
        let dir = Path::new("/run/account");
        let (host, port) = (
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1".into()),
            ("KUBERNETES_SERVICE_PORT", "443".into()),
        );
        let pod = Environment::of([host.clone(), port], dir);
        let expected = PodEnvironment {
            host: "10.96.0.1",
            port: "443",
            service_account: dir,
        };
        assert_eq!(pod.pod(), Some(expected));
        assert_eq!(Environment::of([host], dir).pod(), None);
    }

    #[test]
    fn a_proxy_s_name_in_capitals_wins() {
        let environment = Environment::of(
            [
                ("HTTPS_PROXY", "http://a".into()),
                ("https_proxy", "http://b".into()),
                ("NO_PROXY", "".into()),
                ("no_proxy", "10.0.0.0/8".into()),
            ],
            Path::new(""),
        );
        let expected = ProxyEnvironment {
            https_proxy: Some("http://a".to_owned()),
            no_proxy: Some("10.0.0.0/8".to_owned()),
        };
        assert_eq!(environment.proxy(), expected);
    }
}
