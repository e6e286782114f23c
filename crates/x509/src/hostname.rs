//! Whether a certificate is valid for a host, like Go's `Certificate.VerifyHostname`. Pure.

use std::net::IpAddr;

use crate::certificate::Certificate;

impl Certificate {
    /// Whether the certificate is valid for an IP address.
    pub fn is_for_address(&self, address: IpAddr) -> bool {
        let names = self.extensions.alternative_names.as_ref();
        let wanted = address.to_canonical();
        names.is_some_and(|names| names.addresses.contains(&wanted))
    }

    /// Whether the certificate is valid for a host name. The common name does not count.
    pub fn is_for_name(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let valid = is_host_name(host.strip_suffix('.').unwrap_or(&host), false);
        self.dns_names().iter().any(|pattern| {
            if valid && is_host_name(pattern, true) {
                matches(pattern, &host)
            } else {
                !matches!(&*host, "" | ".") && pattern.eq_ignore_ascii_case(&host)
            }
        })
    }
}

fn matches(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let (pattern, host) = match (pattern.strip_prefix("*."), host.split_once('.')) {
        (Some(rest), Some((_, host))) => (rest, host),
        _ => (pattern, host),
    };
    pattern.eq_ignore_ascii_case(host)
}

/// Go's `validHostname`: letters, digits, hyphens and underscores. A pattern may begin with `*`; one
/// of nothing else is not valid since Go 1.25.
fn is_host_name(name: &str, is_pattern: bool) -> bool {
    let in_label = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let labels = match name.strip_prefix("*.") {
        Some(rest) if is_pattern => rest,
        _ => name,
    };
    labels
        .split('.')
        .all(|label| !label.is_empty() && !label.starts_with('-') && label.bytes().all(in_label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_stands_for_one_label() {
        for (pattern, host, expected) in [
            ("a.example.com", "a.example.com", true),
            ("A.example.com", "a.example.com.", true),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", false),
            ("*.example.com", "example.com", false),
        ] {
            assert_eq!(matches(pattern, host), expected, "{pattern} {host}");
        }
        assert!(is_host_name("*.a", true) && !is_host_name("*.a", false));
        assert!(!is_host_name("*", true) && !is_host_name("*.", true));
        assert!(
            !is_host_name("a..b", true) && !is_host_name("-a", true) && is_host_name("_a", true)
        );
    }
}
