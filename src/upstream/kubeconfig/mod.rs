//! Parses a kubeconfig: the API server's address, its roots, and weir's credential. Pure: text in,
//! data and diagnostics out.
//!
//! Follows client-go 1.36 (`tools/clientcmd`: `loader.go`, `validation.go`, `client_config.go`):
//! several files are merged, unknown fields are ignored, entries that the chosen context does not
//! name are not checked, and paths are relative to their file. In a Pod the service account stands in
//! for a kubeconfig (`rest.InClusterConfig`). What weir will not do is an error and not ignored:
//! unverified TLS, impersonation, a path prefix, and credentials that Kubernetes has removed. No
//! diagnostic quotes a secret. Deliberately not here: reading files and the environment.
//!
//! A file, the merged files of `KUBECONFIG` and a service account become the same value, so the
//! rest of weir does not know where a credential comes from. All of their files are watched.

mod fields;
mod user;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use rustls_pki_types::ServerName;
use serde_json::Value as Json;

use crate::upstream::connection::address;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::credentials::exec_credential::ClusterInfo;
use crate::upstream::credentials::{BearerToken, CredentialSource};
use crate::upstream::kubeconfig::fields::{
    entry_name, is_set, optional_string, read_pem, required_string,
};
use crate::upstream::tls::Pem;
use weir_kubernetes::document;
use weir_kubernetes::document::{
    Content, Diagnostics, MappingDecoder, Node, ResolvedScalar, SourceLocation, Strictness,
};

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
    pub(crate) address: ServerAddress,
    /// Its `tls-server-name`, if it has one.
    pub(crate) tls_server_name: Option<ServerName<'static>>,
    /// The roots for its certificate; the system's, if absent.
    pub(crate) ca: Option<Pem>,
    /// weir's credential.
    pub(crate) source: CredentialSource,
    /// The file that has or names the credential.
    pub(crate) user_file: PathBuf,
}

/// A file of a kubeconfig, and its content.
#[derive(Clone, Debug)]
pub(crate) struct KubeconfigFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Parses `files` and resolves the context of that name, or the current one. As in kubectl, the first
/// file that has the current context or an entry of a name wins; an entry is taken as a whole. `None`
/// if `diagnostics` gets errors; warnings can accompany a result.
#[must_use]
pub(crate) fn parse(
    files: &[KubeconfigFile],
    context: Option<&str>,
    diagnostics: &mut Diagnostics,
) -> Option<Kubeconfig> {
    let mut own_diagnostics = Diagnostics::default();
    let documents: Vec<_> = files
        .iter()
        .filter_map(|file| Some((file, parse_file(file, &mut own_diagnostics)?)))
        .collect();
    let sources: Vec<_> = documents
        .iter()
        .map(|(file, root)| Source {
            file: &file.path,
            root,
        })
        .collect();
    if let ([], [first, ..], true) = (&*sources, files, own_diagnostics.is_empty()) {
        let location = SourceLocation::whole_file(&first.path.display().to_string());
        own_diagnostics.report_error(&location, "", "there is no kubeconfig in it");
    }
    let reader = KubeconfigReader {
        sources: &sources,
        diagnostics: &mut own_diagnostics,
    };
    let read = reader.read_config(context);
    let usable = !own_diagnostics.has_errors();
    diagnostics.extend(own_diagnostics);
    read.filter(|_| usable)
}

/// The first document of a file, if it has one and that is a mapping.
fn parse_file(file: &KubeconfigFile, diagnostics: &mut Diagnostics) -> Option<Node> {
    let name = file.path.display().to_string();
    let mut documents = document::parse_all(&name, &file.text, diagnostics).into_iter();
    let first = documents.next();
    for ignored in documents {
        diagnostics.report_warning(&ignored.location, "", "only the first document is read");
    }
    // What is no mapping is reported here, once.
    first.filter(|root| {
        root.decode(diagnostics, "", Strictness::Lenient, |_| ())
            .is_some()
    })
}

/// The API server at `host` and `port` (`KUBERNETES_SERVICE_HOST` and `_PORT`), with the token and the
/// CA of the service account in `dir`, where the kubelet replaces the token before it expires.
///
/// # Errors
/// Host and port are no address.
pub(crate) fn of_service_account(host: &str, port: &str, dir: &Path) -> Result<Kubeconfig, String> {
    let url = if host.contains(':') {
        format!("https://[{host}]:{port}") // IPv6
    } else {
        format!("https://{host}:{port}")
    };
    let (authority, name) = address::parse_server(&url)?;
    let token = dir.join("token");
    Ok(Kubeconfig {
        context: String::new(),
        address: ServerAddress::new(authority, name),
        ca: Some(Pem::File(dir.join("ca.crt"))),
        user_file: token.clone(),
        tls_server_name: None,
        source: CredentialSource::Configured {
            certificate: None,
            token: Some(BearerToken::File {
                path: token,
                fallback: None,
            }),
        },
    })
}

/// The document of one file.
#[derive(Clone, Copy)]
struct Source<'r> {
    file: &'r Path,
    root: &'r Node,
}

impl<'r> Source<'r> {
    /// The directory that paths are relative to.
    fn dir(self) -> &'r Path {
        self.file.parent().unwrap_or_else(|| Path::new(""))
    }
}

struct KubeconfigReader<'r> {
    /// The files that have a document.
    sources: &'r [Source<'r>],
    diagnostics: &'r mut Diagnostics,
}

/// An entry of one of the lists `clusters`, `contexts` and `users`.
struct NamedEntry<'n> {
    name: &'n str,
    /// The list and the index of the entry.
    path: String,
    item: &'n Node,
    source: Source<'n>,
}

/// The parsed `cluster` of an entry.
struct ClusterConfig {
    address: ServerAddress,
    tls_server_name: Option<ServerName<'static>>,
    ca: Option<Pem>,
    info: ClusterInfo,
}

impl<'r> KubeconfigReader<'r> {
    fn read_config(mut self, context: Option<&str>) -> Option<Kubeconfig> {
        let [first, ..] = self.sources else {
            return None;
        };
        let current = self.current_context();
        let contexts = self.entries("contexts");
        let clusters = self.entries("clusters");
        let users = self.entries("users");
        let (wanted, at, field) = match (context, current) {
            (Some(name), _) => (name.to_owned(), first.root.locate("contexts"), "contexts"),
            (None, Some((source, name))) => {
                let at = source.root.locate("current-context");
                (name, at, "current-context")
            }
            (None, None) => {
                let message = format!("not given, so name a context; {}", list_names(&contexts));
                let at = first.root.locate("current-context");
                self.diagnostics
                    .report_error(at, "current-context", message);
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
        let user = user?;
        let dir = user.source.dir();
        let source = self.read_mapping(user, "user", |fields| user::read(fields, dir, info))?;
        let ClusterConfig {
            address,
            tls_server_name,
            ca,
            ..
        } = cluster?;
        Some(Kubeconfig {
            context: wanted,
            address,
            tls_server_name,
            ca,
            source,
            user_file: user.source.file.to_owned(),
        })
    }

    /// The current context, and the file that has it. Adds an error for each file that is something
    /// else.
    fn current_context(&mut self) -> Option<(Source<'r>, String)> {
        let mut first = None;
        for source in self.sources {
            let named = source
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
                });
            first = first.or_else(|| Some((*source, named.flatten()?)));
        }
        first
    }

    /// The entries of a list in all files. The first one of a name hides those of later files.
    fn entries(&mut self, list: &str) -> Vec<NamedEntry<'r>> {
        let mut entries = Vec::new();
        for source in self.sources {
            let earlier = entries.len();
            let own = self.entries_of(*source, list);
            for entry in own {
                let mut before = entries.iter().take(earlier);
                if before.all(|other: &NamedEntry<'_>| other.name != entry.name) {
                    entries.push(entry);
                }
            }
        }
        entries
    }

    fn entries_of(&mut self, source: Source<'r>, list: &str) -> Vec<NamedEntry<'r>> {
        let Some(node) = source.root.field(list).filter(|node| !node.is_null()) else {
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
            entries.push(NamedEntry {
                name,
                path,
                item,
                source,
            });
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
        let dir = entry.source.dir();
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
        proxy,
        ..ServerAddress::new(authority, expected_name.clone().unwrap_or(host))
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
        tls_server_name: expected_name,
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
