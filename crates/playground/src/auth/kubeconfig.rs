//! The kubeconfig for `kubectl`: one context for each user and kind of credential.
//!
//! `admin`, `alice` and `bob` use client certificates; `admin-token`, `alice-token` and `bob-token`
//! use bearer tokens. All credentials are embedded, so that the file can be moved.

use crate::auth::pki::{Certificates, write_private};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// The name of the only cluster.
const CLUSTER: &str = "weir-playground";

/// Returns the kubeconfig for a server at `server` (`https://127.0.0.1:6443`) whose certificate the
/// playground's CA signed. The current context is `admin`.
pub fn render(server: &str, certificates: &Certificates) -> String {
    let ca = BASE64_STANDARD.encode(&certificates.ca);
    let mut contexts = String::new();
    let mut users = String::new();
    for user in &certificates.users {
        let name = user.name;
        for context in [name.to_owned(), format!("{name}-token")] {
            push_fmt(
                &mut contexts,
                format_args!(
                    "- name: {context}\n  context:\n    cluster: {CLUSTER}\n    user: {context}\n"
                ),
            );
        }
        let certificate = BASE64_STANDARD.encode(&user.client_certificate.certificate);
        let key = BASE64_STANDARD.encode(&user.client_certificate.key);
        push_fmt(
            &mut users,
            format_args!(
                "- name: {name}\n  user:\n    client-certificate-data: {certificate}\n    \
                 client-key-data: {key}\n- name: {name}-token\n  user:\n    token: \"{}\"\n",
                user.token
            ),
        );
    }
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: {CLUSTER}\n  cluster:\n    \
         server: \"{server}\"\n    certificate-authority-data: {ca}\ncontexts:\n{contexts}\
         current-context: admin\npreferences: {{}}\nusers:\n{users}"
    )
}

fn push_fmt(text: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(piece);
}

/// Writes the text of [`render`] to `path`, readable by its owner only.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, server: &str, certificates: &Certificates) -> io::Result<()> {
    write_private(path, &render(server, certificates))
}

#[cfg(test)]
mod tests {
    use super::render;
    use crate::auth::pki::Certificates;
    use crate::objects::yaml;

    #[test]
    fn the_kubeconfig_has_six_contexts_and_is_yaml() {
        let certificates = Certificates::generate().unwrap();
        let config = yaml::parse(&render("https://127.0.0.1:6443", &certificates)).unwrap();
        let names: Vec<_> = config["contexts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|context| context["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "admin",
                "admin-token",
                "alice",
                "alice-token",
                "bob",
                "bob-token"
            ]
        );
        assert_eq!(
            config["users"][3]["user"]["token"],
            certificates.users[1].token
        );
        assert_eq!(
            config["clusters"][0]["cluster"]["server"],
            "https://127.0.0.1:6443"
        );
    }
}
