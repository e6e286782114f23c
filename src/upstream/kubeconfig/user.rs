//! The user of a kubeconfig: who weir is.

use std::path::Path;

use crate::document::Fields;
use crate::upstream::credentials::ClientCertificate;
use crate::upstream::credentials::Source;
use crate::upstream::credentials::Token;
use crate::upstream::credentials::bearer::bearer;
use crate::upstream::credentials::exec::Plugin;
use crate::upstream::credentials::exec_credential::ApiVersion;
use crate::upstream::credentials::exec_credential::ClusterInfo;
use crate::upstream::kubeconfig::fields::is_given;
use crate::upstream::kubeconfig::fields::path;
use crate::upstream::kubeconfig::fields::pem;
use crate::upstream::kubeconfig::fields::required;
use crate::upstream::kubeconfig::fields::secret;
use crate::upstream::kubeconfig::fields::secret_item;
use crate::upstream::kubeconfig::fields::text;

/// Every field by which a user can say who it is.
const CREDENTIALS: [&str; 10] = [
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

/// Reads a user; a plugin may be told about `cluster`.
pub(super) fn read(fields: &mut Fields<'_>, dir: &Path, cluster: Option<&ClusterInfo>) -> Source {
    refuse_what_is_not_supported(fields);
    if !CREDENTIALS.iter().any(|name| is_given(fields, name)) {
        fields.warning("", "no credential: weir's own calls will be anonymous");
    }
    let certificate = client_certificate(fields, dir);
    let token = token(fields, dir);
    // Read even if it will not be used, for its faults.
    let plugin = fields
        .object("exec", |fields| plugin(fields, dir, cluster))
        .flatten();
    match plugin {
        // As in client-go, a plugin is not asked for what is given already.
        Some(plugin) if certificate.is_none() && token.is_none() => Source::Plugin(plugin),
        Some(_) | None => Source::Given { certificate, token },
    }
}

fn refuse_what_is_not_supported(fields: &mut Fields<'_>) {
    for name in ["username", "password"] {
        if is_given(fields, name) {
            fields.error(
                name,
                "kube-apiserver has no basic authentication since Kubernetes 1.19; use a token, a \
                 client certificate or exec",
            );
        }
    }
    if is_given(fields, "auth-provider") {
        fields.error(
            "auth-provider",
            "removed from Kubernetes in 1.26; use exec with the provider's plugin",
        );
    }
    for name in ["as", "as-uid", "as-groups", "as-user-extra"] {
        if is_given(fields, name) {
            fields.error(
                name,
                "weir does not impersonate, and would otherwise have other rights than this says; \
                 give it a user of its own",
            );
        }
    }
}

fn client_certificate(fields: &mut Fields<'_>, dir: &Path) -> Option<ClientCertificate> {
    let certificate = pem(fields, dir, "client-certificate-data", "client-certificate");
    let key = pem(fields, dir, "client-key-data", "client-key");
    for (there, name, data) in [
        (certificate.is_some(), "client-key", "client-key-data"),
        (
            key.is_some(),
            "client-certificate",
            "client-certificate-data",
        ),
    ] {
        if there && !is_given(fields, name) && !is_given(fields, data) {
            fields.error(
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

fn token(fields: &mut Fields<'_>, dir: &Path) -> Option<Token> {
    let given = secret(fields, "token").and_then(|token| {
        bearer(token)
            .map_err(|why| fields.error("token", why.to_string()))
            .ok()
    });
    match path(fields, dir, "tokenFile") {
        // As in client-go, the file counts once it has been read.
        Some(path) => Some(Token::File {
            path,
            until_read: given,
        }),
        None => given.map(Token::Given),
    }
}

fn plugin(fields: &mut Fields<'_>, dir: &Path, cluster: Option<&ClusterInfo>) -> Option<Plugin> {
    fields.require(&["apiVersion"]);
    let api_version = fields.parsed("apiVersion", |version| {
        [ApiVersion::V1, ApiVersion::V1Beta1]
            .into_iter()
            .find(|known| known.as_str() == version)
            .ok_or(
                "expected client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1",
            )
    });
    check_interactive_mode(fields, api_version);
    let command = required(fields, "command");
    let args = fields.list("args", secret_item).unwrap_or_default();
    let env = fields.objects("env", variable).unwrap_or_default();
    let told = fields.boolean("provideClusterInfo").unwrap_or(false);
    let install_hint = text(fields, "installHint");
    let command = command?;
    Some(Plugin {
        api_version: api_version?,
        // A bare name is looked for in PATH.
        command: if command.contains('/') {
            dir.join(command)
        } else {
            command.into()
        },
        args,
        env: env.into_iter().flatten().collect(),
        install_hint,
        cluster: cluster.filter(|_| told).cloned(),
    })
}

fn check_interactive_mode(fields: &mut Fields<'_>, version: Option<ApiVersion>) {
    let message = match (text(fields, "interactiveMode").as_deref(), version) {
        (Some("Never" | "IfAvailable"), _) => return,
        (Some("Always"), _) => {
            "the plugin wants a terminal, and weir has none; use one that logs in by itself"
        }
        (Some(_), _) => "expected Never, IfAvailable or Always",
        (None, Some(ApiVersion::V1)) if !is_given(fields, "interactiveMode") => {
            "required in client.authentication.k8s.io/v1, but not given; Never is right for weir"
        }
        (None, _) => return,
    };
    fields.error("interactiveMode", message);
}

fn variable(fields: &mut Fields<'_>) -> Option<(String, String)> {
    let name = required(fields, "name");
    let value = secret(fields, "value").unwrap_or_default();
    for (field, text, what) in [
        ("name", name.as_deref(), "name"),
        ("value", Some(value), "value"),
    ] {
        let forbidden = |c| c == '\0' || (c == '=' && field == "name");
        if text.is_some_and(|text| text.contains(forbidden)) {
            fields.error(
                field,
                format!("no environment variable can have this {what}"),
            );
        }
    }
    Some((name?, value.to_owned()))
}
