//! One file that a flag may name, checked by itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::cli::config_resolver::findings::Findings;
use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::config_resolver::upstream::kubeconfig::KubeconfigSource;
use crate::cli::flags::UpstreamArgs;
use crate::cli::flags::environment::Environment;
use crate::cli::flags::input_files::InputFiles;

/// What a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// AdmissionConfiguration.
    Admission,
    /// An audit policy.
    AuditPolicy,
    /// AuthenticationConfiguration.
    Authentication,
    /// The configuration of EventRateLimit.
    EventRateLimit,
    /// A kubeconfig.
    Kubeconfig,
    /// TracingConfiguration.
    Tracing,
}

/// What is wrong with a file, and with the files that it names.
pub(crate) fn check(kind: FileKind, file: &Path, files: &Arc<InputFiles>) -> Findings {
    let mut resolver =
        FlagResolver::new(BTreeMap::new(), Arc::clone(files), Environment::default());
    match kind {
        FileKind::Admission => drop(resolver.read_admission_config(file)),
        FileKind::AuditPolicy => drop(resolver.read_audit_policy(file)),
        FileKind::Authentication => drop(resolver.issuers_from_authentication_config(file)),
        FileKind::EventRateLimit => {
            drop(resolver.read_event_limits("event-rate-limit-config", file));
        }
        FileKind::Kubeconfig => {
            let source = KubeconfigSource::File(file.to_owned());
            drop(resolver.upstream_from_kubeconfig(&UpstreamArgs::default(), &source, &[]));
        }
        FileKind::Tracing => drop(resolver.resolve_tracing(Some(file))),
    }
    resolver.findings
}
