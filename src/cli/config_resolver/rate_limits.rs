//! Rate limits: the configuration files of EventRateLimit, and `clientLimits` and `policies` of the
//! `--config` file.

use std::path::{Path, PathBuf};

use crate::cli::config_resolver::certificates::CertificateUse;
use crate::cli::config_resolver::flag_resolver::{FlagFile, FlagResolver};
use crate::cli::flags::SharedLimitArgs;
use crate::cli::flags::origin::{CLIENT_LIMITS, POLICIES};
use crate::cli::flags::{EventGroups, LimitArgs};
use crate::flowcontrol::controller::Enforcement;
use crate::upstream::tls::parse_roots;
use weir_kubernetes::document;
use weir_kubernetes::document::Node;
use weir_limits::rate;
use weir_limits::rate::clients;
use weir_limits::rate::events::buckets::LimitedEventGroups;
use weir_limits::rate::events::config::{EventLimitConfig, PluginConfigSource};
use weir_limits::rate::events::{config, enforcer};
use weir_limits::rate::policies::config::parse_policies;
use weir_limits::shared_limits::key::SharedKey;
use weir_limits::shared_limits::server::{NO_CLIENT, SharedLimitsConfig, SharedServer};

const ADMISSION: &str = "admission-control-config-file";
const EVENTS: &str = "event-rate-limit-config";

const SHARED_LIMITS: &str = "shared-limits";
const SHARED_KEY: &str = "shared-key-file";
const PASSWORD: &str = "shared-limits-password-file";
const SHARED_CA: &str = "shared-limits-ca-file";
const SHARED_CERT: &str = "shared-limits-cert-file";
const SHARED_CERT_KEY: &str = "shared-limits-key-file";

const NEEDS_SHARED_KEY: &str = "users and namespaces are in the server as keyed hashes only. \
    `openssl rand -hex 32` makes a key; every replica needs the same";

impl FlagResolver {
    pub(super) fn resolve_rate_limits(
        &mut self,
        limits: &LimitArgs,
        file: Option<&Path>,
    ) -> Option<rate::RateLimitsConfig> {
        let events = match (
            &limits.admission_control_config_file,
            &limits.event_rate_limit_config,
        ) {
            (None, None) => Some(None),
            (Some(file), None) => self.read_admission_config(file).map(Some),
            (None, Some(file)) => self.read_event_limits(EVENTS, file).map(Some),
            (Some(_), Some(_)) => {
                let error =
                    format!("not together with --{ADMISSION}: each names the limits of events");
                self.add(EVENTS, error);
                None
            }
        };
        let clients = self.read_rules(file, CLIENT_LIMITS, clients::config::parse_rules);
        let policies = self.read_rules(file, POLICIES, parse_policies);
        let enforcer_config = |events| enforcer::EventRateLimitConfig {
            limits: events,
            groups: limits.event_rate_limit_groups.into(),
            retry_after: limits.event_rate_limit_retry_after,
            dry_run: limits.event_rate_limit_enforcement == Enforcement::DryRun,
        };
        Some(rate::RateLimitsConfig {
            events: events?.map(enforcer_config),
            clients: clients?,
            policies: policies?,
        })
    }

    /// `None` after errors were added; `Some(None)` if rates are not shared.
    pub(super) fn resolve_shared_limits(
        &mut self,
        args: SharedLimitArgs,
    ) -> Option<Option<SharedLimitsConfig>> {
        let Some(url) = &args.shared_limits else {
            self.check_unshared(&args);
            return Some(None);
        };
        if cfg!(not(feature = "shared-limits")) {
            self.add(SHARED_LIMITS, NO_CLIENT);
            return None;
        }
        let server = self.check(SHARED_LIMITS, SharedServer::parse(url));
        let has_password = match &args.shared_limits_password_file {
            Some(file) => self.read_file(PASSWORD, file).is_some(),
            None => true,
        };
        let certificates = self.check_shared_certificates(&args);
        let key = match &args.shared_key_file {
            Some(file) => {
                let content = self.read_file(SHARED_KEY, file);
                content.and_then(|content| {
                    self.check_file(SHARED_KEY, file, SharedKey::from_file(&content))
                })
            }
            None => {
                self.add(
                    SHARED_LIMITS,
                    format!("needs --{SHARED_KEY}: {NEEDS_SHARED_KEY}"),
                );
                None
            }
        };
        let (server, certificate) = (server?, certificates?);
        let has_certificates = args.shared_limits_ca_file.is_some() || certificate.is_some();
        if !server.uses_tls() && has_certificates {
            self.add(
                SHARED_LIMITS,
                "a CA or a certificate is for rediss://, which is with TLS",
            );
        }
        has_password.then_some(Some(SharedLimitsConfig {
            server,
            user: args.shared_limits_user,
            password_file: args.shared_limits_password_file,
            ca_file: args.shared_limits_ca_file,
            certificate,
            key: key?,
            replicas: args.shared_limits_replicas,
        }))
    }

    /// Adds an error for each flag that has no effect without `--shared-limits`.
    fn check_unshared(&mut self, args: &SharedLimitArgs) {
        let given = [
            ("shared-limits-user", args.shared_limits_user.is_some()),
            (PASSWORD, args.shared_limits_password_file.is_some()),
            (SHARED_CA, args.shared_limits_ca_file.is_some()),
            (SHARED_CERT, args.shared_limits_cert_file.is_some()),
            (SHARED_CERT_KEY, args.shared_limits_key_file.is_some()),
        ];
        for (flag, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            self.add(flag, format!("only together with --{SHARED_LIMITS}"));
        }
    }

    /// Checks the files that connections use. Returns those of the client certificate, if there is
    /// one. `None` after errors were added.
    fn check_shared_certificates(
        &mut self,
        args: &SharedLimitArgs,
    ) -> Option<Option<(PathBuf, PathBuf)>> {
        let is_ca_good = match &args.shared_limits_ca_file {
            Some(file) => self
                .read_root_certificates(SHARED_CA, file, parse_roots)
                .is_some(),
            None => true,
        };
        let (certificate, key) = match (&args.shared_limits_cert_file, &args.shared_limits_key_file)
        {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) => return is_ca_good.then_some(None),
            (Some(_), None) => {
                self.add(
                    SHARED_CERT,
                    format!("only together with --{SHARED_CERT_KEY}"),
                );
                return None;
            }
            (None, Some(_)) => {
                self.add(
                    SHARED_CERT_KEY,
                    format!("only together with --{SHARED_CERT}"),
                );
                return None;
            }
        };
        let file = |flag, path| FlagFile { flag, path };
        self.read_certified_key(
            file(SHARED_CERT, certificate),
            file(SHARED_CERT_KEY, key),
            CertificateUse::Client,
        )?;
        is_ca_good.then(|| Some((certificate.clone(), key.clone())))
    }

    fn read_named_text(&mut self, flag: &str, file: &Path) -> Option<(String, String)> {
        Some((file.display().to_string(), self.read_text(flag, file)?))
    }

    pub(super) fn read_event_limits(
        &mut self,
        flag: &str,
        file: &Path,
    ) -> Option<Vec<EventLimitConfig>> {
        let (file, text) = self.read_named_text(flag, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let limits = config::parse_configuration(&file, &text, &mut diagnostics);
        self.merge(flag, &diagnostics).then_some(limits)?
    }

    pub(super) fn read_admission_config(&mut self, file: &Path) -> Option<Vec<EventLimitConfig>> {
        let (name, text) = self.read_named_text(ADMISSION, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let source = config::parse_admission_configuration(&name, &text, &mut diagnostics);
        let inline = match &source {
            Some(PluginConfigSource::Inline(node, path)) => {
                config::parse_limits(node, path, &mut diagnostics)
            }
            Some(PluginConfigSource::Path(_)) | None => None,
        };
        if !self.merge(ADMISSION, &diagnostics) {
            return None;
        }
        match source? {
            PluginConfigSource::Inline(..) => inline,
            // Relative to the file that names it, as in kube-apiserver.
            PluginConfigSource::Path(path) => {
                let folder = file.parent().unwrap_or_else(|| Path::new(""));
                self.read_event_limits(ADMISSION, &folder.join(path))
            }
        }
    }

    /// The rules of this key in the `--config` file. `command_line` has read the file for its flags
    /// and has reported the errors of the file as a whole.
    fn read_rules<T>(
        &mut self,
        file: Option<&Path>,
        key: &str,
        parse: impl FnOnce(&Node, &str, &mut document::Diagnostics) -> Vec<T>,
    ) -> Option<Vec<T>> {
        let Some(file) = file else {
            return Some(Vec::new());
        };
        let (name, text) = self.read_named_text("config", file)?;
        let mut diagnostics = document::Diagnostics::default();
        let documents = document::parse_all(&name, &text, &mut diagnostics);
        let value = documents.first().and_then(|first| first.field(key));
        let Some(value) = value.filter(|value| !Node::is_null(value)) else {
            return Some(Vec::new());
        };
        let rules = parse(value, key, &mut diagnostics);
        self.merge("config", &diagnostics).then_some(rules)
    }
}

impl From<EventGroups> for LimitedEventGroups {
    fn from(groups: EventGroups) -> Self {
        match groups {
            EventGroups::All => Self::All,
            EventGroups::Core => Self::Core,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::cli::commands::{Cli, Command};

    fn resolve(flags: &[&str], config: Option<&Path>) -> (Option<rate::RateLimitsConfig>, String) {
        let line = ["weir", "serve"].iter().chain(flags);
        let Command::Serve(args) = Cli::parse_from(line).command else {
            panic!("not serve")
        };
        let mut resolver = FlagResolver::default();
        let rates = resolver.resolve_rate_limits(&args.proxy.limits, config);
        (rates, resolver.findings.to_string())
    }

    const LIMITS: &str = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
                          limits: [{type: Server, qps: 5, burst: 7}]\n";

    #[test]
    fn the_plugin_s_file_is_relative_to_the_file_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let admission = folder.path().join("admission.yaml");
        fs::write(folder.path().join("events.yaml"), LIMITS).unwrap();
        let names = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n\
                     plugins: [{name: EventRateLimit, path: events.yaml}]\n";
        fs::write(&admission, names).unwrap();
        let flag = format!("--admission-control-config-file={}", admission.display());
        let (rates, errors) = resolve(&[&flag, "--event-rate-limit-groups=core"], None);
        assert_eq!(errors, "");
        let events = rates.unwrap().events.unwrap();
        assert_eq!((events.limits.len(), events.limits[0].burst), (1, 7));
        assert_eq!(
            (events.groups, events.retry_after),
            (LimitedEventGroups::Core, true)
        );
    }

    #[test]
    fn an_error_names_its_flag_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("events.yaml");
        fs::write(&file, LIMITS.replace("qps: 5", "qps: -5")).unwrap();
        let flag = format!("--event-rate-limit-config={}", file.display());
        let (rates, errors) = resolve(&[&flag], None);
        let location = format!(
            "--event-rate-limit-config: {}:3:30: limits[0].qps",
            file.display()
        );
        assert!(rates.is_none() && errors.starts_with(&location), "{errors}");
        let (rates, errors) = resolve(&[&flag, "--admission-control-config-file=a"], None);
        assert!(
            rates.is_none() && errors.contains("not together with"),
            "{errors}"
        );
    }

    #[test]
    fn client_limits_are_read_from_the_config_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let text = "securePort: 1\nclientLimits:\n- name: all\n  rules:\n  - subjects: [{kind: Group, group: {name: '*'}}]\n    \
                    nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n";
        fs::write(&file, text).unwrap();
        let (rates, errors) = resolve(&[], Some(&file));
        assert_eq!(errors, "");
        assert_eq!(rates.unwrap().clients[0].name, "all");
        fs::write(&file, text.replace("name: all", "nmae: all")).unwrap();
        let (rates, errors) = resolve(&[], Some(&file));
        assert!(
            rates.is_none() && errors.contains("clientLimits[0].nmae: unknown field"),
            "{errors}"
        );
    }
}

#[cfg(test)]
mod shared_limits_tests {
    use super::*;

    fn resolve(args: SharedLimitArgs) -> (Option<Option<SharedLimitsConfig>>, Vec<String>) {
        let mut resolver = FlagResolver::default();
        let config = resolver.resolve_shared_limits(args);
        let lines = resolver
            .findings
            .iter()
            .map(|finding| finding.report_line());
        (config, lines.collect())
    }

    fn args(url: Option<&str>) -> SharedLimitArgs {
        SharedLimitArgs {
            shared_limits: url.map(str::to_owned),
            shared_limits_user: None,
            shared_limits_password_file: None,
            shared_limits_ca_file: None,
            shared_limits_cert_file: None,
            shared_limits_key_file: None,
            shared_limits_replicas: 3,
            shared_key_file: None,
        }
    }

    #[test]
    fn shared_limits_need_a_key_of_32_bytes() {
        let (config, lines) = resolve(args(Some("redis://r")));
        assert!(config.is_none() && lines.len() == 1, "{lines:?}");
        assert!(
            lines[0].contains("--shared-limits: needs --shared-key-file"),
            "{lines:?}"
        );
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let with_key = || SharedLimitArgs {
            shared_key_file: Some(key.clone()),
            ..args(Some("redis://r"))
        };
        std::fs::write(&key, "too short").unwrap();
        let (config, lines) = resolve(with_key());
        assert!(
            config.is_none() && lines[0].contains("has 9 bytes"),
            "{lines:?}"
        );
        std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
        let (config, lines) = resolve(with_key());
        assert!(config.unwrap().is_some() && lines.is_empty(), "{lines:?}");
    }

    #[test]
    fn all_errors_of_shared_limits_are_found_at_once() {
        let missing = || Some(PathBuf::from("/not/there"));
        let (config, lines) = resolve(SharedLimitArgs {
            shared_limits_password_file: missing(),
            shared_limits_ca_file: missing(),
            shared_limits_cert_file: missing(),
            shared_key_file: missing(),
            ..args(Some("http://r"))
        });
        assert!(config.is_none());
        for (line, flag) in lines.iter().zip([
            "--shared-limits: ",
            "--shared-limits-password-file: ",
            "--shared-limits-ca-file: ",
            "--shared-limits-cert-file: only together with",
            "--shared-key-file: ",
        ]) {
            assert!(line.contains(flag), "{lines:?}");
        }
        assert_eq!(lines.len(), 5, "{lines:?}");
        let (config, lines) = resolve(SharedLimitArgs {
            shared_limits_user: Some("u".to_owned()),
            ..args(None)
        });
        assert!(config.unwrap().is_none());
        assert!(
            lines[0].contains("only together with --shared-limits"),
            "{lines:?}"
        );
    }
}
