//! Parses a kubeconfig: the API server's address, its roots, and weir's credential. Pure: text in,
//! data and diagnostics out.
//!
//! Follows client-go 1.36 (`tools/clientcmd`: `validation.go`, `client_config.go`): unknown fields
//! are ignored, entries that the chosen context does not name are not checked, and paths are
//! relative to the file. What weir will not do is an error and not ignored: unverified TLS,
//! impersonation, a path prefix, and credentials that Kubernetes has removed. No diagnostic quotes
//! a secret. Deliberately not here: reading other files, `KUBECONFIG` with several files, and the
//! `HTTPS_PROXY` variables.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `fields` |
//! | 1 | `user` |

mod fields;
mod user;

use std::fmt::Write;
use std::path::Path;

use serde_json::Value as Json;

use crate::document;
use crate::document::Content;
use crate::document::Diagnostics;
use crate::document::MappingDecoder;
use crate::document::Node;
use crate::document::ResolvedScalar;
use crate::document::SourceLocation;
use crate::document::Strictness;
use crate::upstream::connection::address;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::credentials::CredentialSource;
use crate::upstream::credentials::exec_credential::ClusterInfo;
use crate::upstream::kubeconfig::fields::entry_name;
use crate::upstream::kubeconfig::fields::is_set;
use crate::upstream::kubeconfig::fields::optional_string;
use crate::upstream::kubeconfig::fields::read_pem;
use crate::upstream::kubeconfig::fields::required_string;
use crate::upstream::tls::Pem;

/// The extension of a cluster that is passed to plugins (`clientcmd/api/v1`).
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Most names that a diagnostic lists.
const MAX_LISTED_NAMES: usize = 20;

/// A context of a kubeconfig, resolved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kubeconfig {
    /// The context's name.
    pub(crate) context: String,
    /// The API server.
    pub address: ServerAddress,
    /// The roots for its certificate; the system's, if absent.
    pub(crate) ca: Option<Pem>,
    /// weir's credential.
    pub source: CredentialSource,
}

/// Parses `text`, the content of `file`, and resolves the context of that name, or the current one.
/// `None` if `diagnostics` gets errors; warnings can accompany a result.
#[must_use]
pub fn parse(
    file: &Path,
    text: &str,
    context: Option<&str>,
    diagnostics: &mut Diagnostics,
) -> Option<Kubeconfig> {
    let name = file.display().to_string();
    let mut file_diagnostics = Diagnostics::default();
    let roots = document::parse_all(&name, text, &mut file_diagnostics);
    let read = match roots.as_slice() {
        [] if file_diagnostics.is_empty() => {
            file_diagnostics.report_error(
                &SourceLocation::whole_file(&name),
                "",
                "there is no kubeconfig in it",
            );
            None
        }
        [] => None,
        [root, rest @ ..] => {
            for ignored in rest {
                file_diagnostics.report_warning(
                    &ignored.location,
                    "",
                    "only the first document is read",
                );
            }
            let dir = file.parent().unwrap_or_else(|| Path::new(""));
            KubeconfigReader {
                root,
                dir,
                diagnostics: &mut file_diagnostics,
            }
            .read_config(context)
        }
    };
    let usable = !file_diagnostics.has_errors();
    diagnostics.extend(file_diagnostics);
    read.filter(|_| usable)
}

struct KubeconfigReader<'r> {
    root: &'r Node,
    dir: &'r Path,
    diagnostics: &'r mut Diagnostics,
}

/// An entry of one of the lists `clusters`, `contexts` and `users`.
struct NamedEntry<'n> {
    name: &'n str,
    /// The list and the index of the entry.
    path: String,
    item: &'n Node,
}

/// The parsed `cluster` of an entry.
struct ClusterConfig {
    address: ServerAddress,
    ca: Option<Pem>,
    info: ClusterInfo,
}

impl<'r> KubeconfigReader<'r> {
    fn read_config(&mut self, context: Option<&str>) -> Option<Kubeconfig> {
        let current = self
            .root
            .decode(self.diagnostics, "", Strictness::Lenient, |fields| {
                for (name, expected) in [("apiVersion", "v1"), ("kind", "Config")] {
                    if optional_string(fields, name).is_some_and(|value| value != expected) {
                        fields.report_error(
                            name,
                            format!("expected {expected}: this is not a kubeconfig"),
                        );
                    }
                }
                optional_string(fields, "current-context")
            })?;
        let contexts = self.entries("contexts");
        let clusters = self.entries("clusters");
        let users = self.entries("users");
        let (wanted, at, field) = match (context, current) {
            (Some(name), _) => (name.to_owned(), self.root.locate("contexts"), "contexts"),
            (None, Some(name)) => (name, self.root.locate("current-context"), "current-context"),
            (None, None) => {
                let message = format!("not given, so name a context; {}", list_names(&contexts));
                self.diagnostics.report_error(
                    self.root.locate("current-context"),
                    "current-context",
                    message,
                );
                return None;
            }
        };
        let chosen = self.find_entry(&contexts, "context", &wanted, at, field)?;
        let (cluster, user) = self.read_mapping(chosen, "context", |fields| {
            (
                read_reference(fields, "cluster", &clusters),
                read_reference(fields, "user", &users),
            )
        })?;
        let cluster = self.find_referenced(chosen, "cluster", cluster, &clusters);
        let user = self.find_referenced(chosen, "user", user, &users);
        let cluster = cluster.and_then(|entry| self.read_cluster(entry));
        let info = cluster.as_ref().map(|cluster| &cluster.info);
        let dir = self.dir;
        let source = self.read_mapping(user?, "user", |fields| user::read(fields, dir, info))?;
        let ClusterConfig {
            address: target,
            ca,
            ..
        } = cluster?;
        Some(Kubeconfig {
            context: wanted,
            address: target,
            ca,
            source,
        })
    }

    fn entries(&mut self, list: &str) -> Vec<NamedEntry<'r>> {
        let Some(node) = self.root.field(list).filter(|node| !node.is_null()) else {
            return Vec::new();
        };
        let Content::Sequence(items) = &node.content else {
            let _: Option<()> = node
                .decoder(self.diagnostics, list, Strictness::Lenient)
                .report_expected("a list");
            return Vec::new();
        };
        let mut entries: Vec<NamedEntry<'r>> = Vec::new();
        for (n, item) in items.iter().enumerate() {
            let path = format!("{list}[{n}]");
            item.decode(self.diagnostics, &path, Strictness::Lenient, |fields| {
                fields.require(&["name"]);
                fields.string("name");
            });
            let Some(name) = entry_name(item) else {
                continue;
            };
            if entries.iter().any(|entry| entry.name == name) {
                let message = format!("there are two of the name {name:?}");
                self.diagnostics.report_error(
                    item.locate("name"),
                    &format!("{path}.name"),
                    message,
                );
            }
            entries.push(NamedEntry { name, path, item });
        }
        entries
    }

    fn find_entry<'e>(
        &mut self,
        entries: &'e [NamedEntry<'r>],
        what: &str,
        name: &str,
        location: &SourceLocation,
        field: &str,
    ) -> Option<&'e NamedEntry<'r>> {
        let entry = entries.iter().find(|entry| entry.name == name);
        if entry.is_none() {
            let message = format!("there is no {what} {name:?}; {}", list_names(entries));
            self.diagnostics.report_error(location, field, message);
        }
        entry
    }

    /// Finds the entry that the context names in its field `what`.
    fn find_referenced<'e>(
        &mut self,
        context: &NamedEntry<'_>,
        what: &str,
        name: Option<String>,
        entries: &'e [NamedEntry<'r>],
    ) -> Option<&'e NamedEntry<'r>> {
        let location = context.item.locate(&format!("context.{what}"));
        let field = format!("{}.context.{what}", context.path);
        self.find_entry(entries, what, &name?, location, &field)
    }

    /// Decodes the mapping in an entry's field `name`.
    fn read_mapping<T>(
        &mut self,
        entry: &NamedEntry<'_>,
        name: &'static str,
        read: impl FnOnce(&mut MappingDecoder<'_>) -> T,
    ) -> Option<T> {
        entry.item.decode(
            self.diagnostics,
            &entry.path,
            Strictness::Lenient,
            |fields| {
                fields.require(&[name]);
                fields.object(name, read)
            },
        )?
    }

    fn read_cluster(&mut self, entry: &NamedEntry<'_>) -> Option<ClusterConfig> {
        let dir = self.dir;
        self.read_mapping(entry, "cluster", |fields| parse_cluster(fields, dir))
            .flatten()
    }
}

fn parse_cluster(fields: &mut MappingDecoder<'_>, dir: &Path) -> Option<ClusterConfig> {
    if fields.boolean("insecure-skip-tls-verify") == Some(true) {
        fields.report_error(
            "insecure-skip-tls-verify",
            "refused: anybody on the way could answer in the API server's location and collect every \
             client's token; give its CA as certificate-authority-data, and tls-server-name if its \
             certificate has another name",
        );
    }
    let ca = read_pem(
        fields,
        dir,
        "certificate-authority-data",
        "certificate-authority",
    );
    let proxy_url = optional_string(fields, "proxy-url");
    let proxy = proxy_url.as_deref().and_then(|url| {
        address::parse_proxy(url)
            .map_err(|error| fields.report_error("proxy-url", error))
            .ok()
    });
    let tls_server_name = optional_string(fields, "tls-server-name");
    let expected_name = tls_server_name.as_deref().and_then(|name| {
        address::parse_server_name(name)
            .map_err(|error| fields.report_error("tls-server-name", error))
            .ok()
    });
    let disable_compression = fields.boolean("disable-compression").unwrap_or(false);
    let config = read_exec_extension(fields);
    let server = required_string(fields, "server")?;
    let (authority, host) = address::parse_server(&server)
        .map_err(|error| fields.report_error("server", error))
        .ok()?;
    let target = ServerAddress {
        authority,
        server_name: expected_name.unwrap_or(host),
        proxy,
        socket: None,
    };
    let info = ClusterInfo {
        server,
        tls_server_name,
        ca: ca.clone(),
        proxy_url,
        disable_compression,
        config,
    };
    Some(ClusterConfig {
        address: target,
        ca,
        info,
    })
}

/// The name that a context gives. If it gives none, the error lists the existing names.
fn read_reference(
    fields: &mut MappingDecoder<'_>,
    what: &'static str,
    entries: &[NamedEntry<'_>],
) -> Option<String> {
    if !is_set(fields, what) {
        fields.report_error(
            what,
            format!("required, but not given; {}", list_names(entries)),
        );
    }
    optional_string(fields, what)
}

fn list_names(entries: &[NamedEntry<'_>]) -> String {
    if entries.is_empty() {
        return "there are none".to_owned();
    }
    let mut list = "there are: ".to_owned();
    for (n, entry) in entries.iter().take(MAX_LISTED_NAMES).enumerate() {
        list.push_str(if n > 0 { ", " } else { "" });
        list.push_str(entry.name);
    }
    if let Some(more @ 1..) = entries.len().checked_sub(MAX_LISTED_NAMES) {
        // Writing to a string cannot fail.
        let _ = write!(list, " and {more} more");
    }
    list
}

/// The content of the cluster's exec extension, or null.
fn read_exec_extension(fields: &mut MappingDecoder<'_>) -> Json {
    let Some(extensions) = fields.node("extensions") else {
        return Json::Null;
    };
    let Content::Sequence(items) = &extensions.content else {
        return Json::Null;
    };
    items
        .iter()
        .find(|item| entry_name(item) == Some(EXEC_EXTENSION))
        .and_then(|item| item.field("extension"))
        .map_or(Json::Null, to_json)
}

fn to_json(node: &Node) -> Json {
    match &node.content {
        Content::Mapping(entries) => entries
            .iter()
            .map(|entry| (entry.name.clone(), to_json(&entry.value)))
            .collect(),
        Content::Sequence(items) => items.iter().map(to_json).collect(),
        Content::Scalar(scalar) => match scalar.value {
            ResolvedScalar::Bool(value) => value.into(),
            ResolvedScalar::Float(value) => value.into(),
            ResolvedScalar::Integer(value) => i64::try_from(value)
                .map(Json::from)
                .or_else(|_| u64::try_from(value).map(Json::from))
                .unwrap_or(Json::Null),
            ResolvedScalar::Null => Json::Null,
            ResolvedScalar::String => scalar.text.clone().into(),
        },
    }
}

#[cfg(test)]
mod tests;
