//! The user of a kubeconfig: weir's credential.

use std::path::Path;

use crate::upstream::credentials::exec_credential::{ClusterInfo, ExecApiVersion};
use crate::upstream::credentials::exec_plugin::ExecPlugin;
use crate::upstream::credentials::{BearerToken, ClientCertificate, CredentialSource};
use crate::upstream::kubeconfig::fields::{
    is_set, optional_string, read_pem, required_string, resolve_path, secret_item, secret_string,
};
use weir_kubernetes::document::MappingDecoder;
use weir_tokens::bearer::bearer_header;

/// Every field that can hold a credential.
const CREDENTIAL_FIELDS: [&str; 10] = [
    "auth-provider",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "exec",
    "password",
    "token",
    "tokenFile",
    "username",
];

/// Decodes a user; a plugin's input may describe `cluster`.
pub(super) fn read(
    fields: &mut MappingDecoder<'_>,
    dir: &Path,
    cluster: Option<&ClusterInfo>,
) -> CredentialSource {
    reject_unsupported(fields);
    if !CREDENTIAL_FIELDS.iter().any(|name| is_set(fields, name)) {
        fields.report_warning("", "no credential: weir's own calls will be anonymous");
    }
    let certificate = read_client_certificate(fields, dir);
    let token = read_token(fields, dir);
    // Decoded even if it is not used, for its diagnostics.
    let plugin = fields
        .object("exec", |fields| read_plugin(fields, dir, cluster))
        .flatten();
    match plugin {
        // As in client-go, a plugin does not run if a credential is given.
        Some(plugin) if certificate.is_none() && token.is_none() => {
            CredentialSource::Plugin(plugin)
        }
        Some(_) | None => CredentialSource::Configured { certificate, token },
    }
}

fn reject_unsupported(fields: &mut MappingDecoder<'_>) {
    for name in ["username", "password"] {
        if is_set(fields, name) {
            fields.report_error(
                name,
                "kube-apiserver has no basic authentication since Kubernetes 1.19; use a token, a \
                 client certificate or exec",
            );
        }
    }
    if is_set(fields, "auth-provider") {
        fields.report_error(
            "auth-provider",
            "removed from Kubernetes in 1.26; use exec with the provider's plugin",
        );
    }
    for name in ["as", "as-uid", "as-groups", "as-user-extra"] {
        if is_set(fields, name) {
            fields.report_error(
                name,
                "weir does not impersonate, and would have other permissions than this entry states; \
                 give it a user of its own",
            );
        }
    }
}

fn read_client_certificate(
    fields: &mut MappingDecoder<'_>,
    dir: &Path,
) -> Option<ClientCertificate> {
    let certificate = read_pem(fields, dir, "client-certificate-data", "client-certificate");
    let key = read_pem(fields, dir, "client-key-data", "client-key");
    for (present, name, data) in [
        (certificate.is_some(), "client-key", "client-key-data"),
        (
            key.is_some(),
            "client-certificate",
            "client-certificate-data",
        ),
    ] {
        if present && !is_set(fields, name) && !is_set(fields, data) {
            fields.report_error(
                name,
                format!("this or {data} is required with the other half of the pair"),
            );
        }
    }
    Some(ClientCertificate {
        certificate: certificate?,
        key: key?,
    })
}

fn read_token(fields: &mut MappingDecoder<'_>, dir: &Path) -> Option<BearerToken> {
    let inline = secret_string(fields, "token").and_then(|token| {
        bearer_header(token)
            .map_err(|why| fields.report_error("token", why.to_string()))
            .ok()
    });
    match resolve_path(fields, dir, "tokenFile") {
        // As in client-go, the file takes precedence once it has been read.
        Some(path) => Some(BearerToken::File {
            path,
            fallback: inline,
        }),
        None => inline.map(BearerToken::Inline),
    }
}

fn read_plugin(
    fields: &mut MappingDecoder<'_>,
    dir: &Path,
    cluster: Option<&ClusterInfo>,
) -> Option<ExecPlugin> {
    fields.require(&["apiVersion"]);
    let api_version = fields.parse("apiVersion", |version| {
        [ExecApiVersion::V1, ExecApiVersion::V1Beta1]
            .into_iter()
            .find(|candidate| candidate.as_str() == version)
            .ok_or(
                "expected client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1",
            )
    });
    check_interactive_mode(fields, api_version);
    let command = required_string(fields, "command");
    let args = fields.list("args", secret_item).unwrap_or_default();
    let env = fields
        .objects("env", read_environment_variable)
        .unwrap_or_default();
    let provide_cluster_info = fields.boolean("provideClusterInfo").unwrap_or(false);
    let install_hint = optional_string(fields, "installHint");
    let command = command?;
    Some(ExecPlugin {
        api_version: api_version?,
        // A bare name is searched in PATH.
        command: if command.contains('/') {
            dir.join(command)
        } else {
            command.into()
        },
        args,
        env: env.into_iter().flatten().collect(),
        install_hint,
        cluster: cluster.filter(|_| provide_cluster_info).cloned(),
    })
}

fn check_interactive_mode(fields: &mut MappingDecoder<'_>, version: Option<ExecApiVersion>) {
    let message = match (
        optional_string(fields, "interactiveMode").as_deref(),
        version,
    ) {
        (Some("Never" | "IfAvailable"), _) => return,
        (Some("Always"), _) => {
            "the plugin needs a terminal, and weir has none; use one that logs in without it"
        }
        (Some(_), _) => "expected Never, IfAvailable or Always",
        (None, Some(ExecApiVersion::V1)) if !is_set(fields, "interactiveMode") => {
            "required in client.authentication.k8s.io/v1, but not given; Never is right for weir"
        }
        (None, _) => return,
    };
    fields.report_error("interactiveMode", message);
}

fn read_environment_variable(fields: &mut MappingDecoder<'_>) -> Option<(String, String)> {
    let name = required_string(fields, "name");
    let value = secret_string(fields, "value").unwrap_or_default();
    for (field, text, what) in [
        ("name", name.as_deref(), "name"),
        ("value", Some(value), "value"),
    ] {
        let forbidden = |c| c == '\0' || (c == '=' && field == "name");
        if text.is_some_and(|text| text.contains(forbidden)) {
            fields.report_error(
                field,
                format!("no environment variable can have this {what}"),
            );
        }
    }
    Some((name?, value.to_owned()))
}
