//! Request heads to which Go's HTTP server responds before any handler sees the request. Pure.
//!
//! Follows `net/http` (Go 1.26): `readRequest` and `transferReader.parseTransferEncoding` for the
//! errors, `conn.serve` for the code. An HTTP/1.1 connection ends with the response, since the
//! start of the next request is uncertain. Two checks are stricter here: `Expect` is compared as a
//! whole, and `Host` is also checked on HTTP/2.

use http::{HeaderMap, HeaderValue, StatusCode, Version, header, request};

/// What is wrong with a request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidHead {
    /// `Expect` is not `100-continue` (HTTP/1 only).
    Expectation,
    /// The head is longer than the HTTP library accepts, or has too many fields.
    TooLong,
    /// `Host` or `:authority` has a character that is invalid in a host.
    MalformedHost,
    /// HTTP/1.1 without `Host`.
    MissingHost,
    /// More than one `Host`.
    RepeatedHost,
    /// The HTTP library cannot parse the head; the text is the library's.
    Syntax(String),
    /// The target is longer than the HTTP library accepts.
    TargetTooLong,
    /// `Transfer-Encoding` is not a single `chunked`.
    TransferEncoding,
}

impl InvalidHead {
    /// Classifies the HTTP library's parse error.
    #[must_use]
    pub(crate) fn from_parse_error(error: String) -> Self {
        match error.as_str() {
            "invalid transfer-encoding parsed" => Self::TransferEncoding,
            "message head is too large" => Self::TooLong,
            "URI too long" => Self::TargetTooLong,
            _ => Self::Syntax(error),
        }
    }

    /// The status code of the response.
    #[must_use]
    pub(crate) const fn code(&self) -> StatusCode {
        match self {
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::MalformedHost | Self::MissingHost | Self::RepeatedHost | Self::Syntax(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::TransferEncoding => StatusCode::NOT_IMPLEMENTED,
        }
    }

    /// `reason` of the Status. Kubernetes has no reason of its own for most of these codes.
    #[must_use]
    pub(crate) const fn reason(&self) -> &'static str {
        if matches!(self, Self::TransferEncoding) {
            return "NotImplemented";
        }
        "BadRequest"
    }

    /// The message, with Go's text where it has one.
    #[must_use]
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Expectation => "Expect may only be 100-continue".to_owned(),
            Self::TooLong => "the request's head is too long or has too many fields".to_owned(),
            Self::MalformedHost => "malformed Host header".to_owned(),
            Self::MissingHost => "missing required Host header".to_owned(),
            Self::RepeatedHost => "too many Host headers".to_owned(),
            Self::Syntax(error) => format!("the request's head is not HTTP/1.1: {error}"),
            Self::TargetTooLong => "the request's target is longer than 65534 bytes".to_owned(),
            Self::TransferEncoding => "Unsupported transfer encoding".to_owned(),
        }
    }

    /// The value of the metric's label.
    pub(crate) const fn cause(&self) -> &'static str {
        match self {
            Self::Expectation => "expect",
            Self::TooLong => "headers",
            Self::MalformedHost | Self::MissingHost | Self::RepeatedHost => "host",
            Self::Syntax(_) => "syntax",
            Self::TargetTooLong => "target",
            Self::TransferEncoding => "transfer-encoding",
        }
    }
}

/// Checks how a request is framed and addressed, in Go's order.
pub(crate) fn check(head: &request::Parts) -> Result<(), InvalidHead> {
    let headers = &head.headers;
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(InvalidHead::RepeatedHost);
    }
    if head.version >= Version::HTTP_2 {
        let authority = head.uri.authority().map(|authority| authority.as_str());
        let is_valid = |host: Option<&[u8]>| host.is_none_or(is_valid_host);
        let are_valid =
            is_valid(authority.map(str::as_bytes)) && is_valid(host.map(HeaderValue::as_bytes));
        return are_valid.then_some(()).ok_or(InvalidHead::MalformedHost);
    }
    if !is_absent_or_chunked(headers) {
        return Err(InvalidHead::TransferEncoding);
    }
    match host {
        Some(host) if !is_valid_host(host.as_bytes()) => return Err(InvalidHead::MalformedHost),
        None if head.version >= Version::HTTP_11 => return Err(InvalidHead::MissingHost),
        _ => {}
    }
    if !is_absent_or_continue(headers) {
        return Err(InvalidHead::Expectation);
    }
    Ok(())
}

/// Whether `Transfer-Encoding` is absent, or a single `chunked`.
fn is_absent_or_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    codings
        .next()
        .is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

/// Whether `Expect` is absent, empty or `100-continue`.
fn is_absent_or_continue(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::EXPECT)
        .iter()
        .all(|expect| expect.is_empty() || expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// `httpguts.ValidHostHeader`: no grammar, only the characters that a host and a port may have.
fn is_valid_host(text: &[u8]) -> bool {
    text.iter().all(|byte| match byte {
        b'!' | b'$'..=b'.' | b':' | b';' | b'=' | b'[' | b']' | b'_' | b'~' => true,
        _ => byte.is_ascii_alphanumeric(),
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    type HeaderPairs<'a> = &'a [(&'a str, &'a str)];

    fn check_head(version: Version, uri: &str, fields: HeaderPairs<'_>) -> Result<(), InvalidHead> {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn heads_are_checked_as_go_checks_them() {
        use InvalidHead::{
            Expectation, MalformedHost, MissingHost, RepeatedHost, TransferEncoding,
        };
        let cases: [(HeaderPairs<'_>, Result<(), InvalidHead>); 17] = [
            (&[("host", "a.b:6443")], Ok(())),
            (&[("host", "[fe80::1%25eth0]:1")], Ok(())),
            (&[("host", "")], Ok(())),
            (&[], Err(MissingHost)),
            (&[("host", "a"), ("host", "a")], Err(RepeatedHost)),
            (&[("host", "a b")], Err(MalformedHost)),
            (&[("host", "a/b")], Err(MalformedHost)),
            (&[("host", "a@b")], Err(MalformedHost)),
            (&[("host", "a"), ("transfer-encoding", "Chunked")], Ok(())),
            (
                &[("host", "a"), ("transfer-encoding", "gzip, chunked")],
                Err(TransferEncoding),
            ),
            (
                &[("host", "a"), ("transfer-encoding", "chunked, chunked")],
                Err(TransferEncoding),
            ),
            (
                &[
                    ("host", "a"),
                    ("transfer-encoding", "chunked"),
                    ("transfer-encoding", "chunked"),
                ],
                Err(TransferEncoding),
            ),
            (
                &[("host", "a"), ("transfer-encoding", "")],
                Err(TransferEncoding),
            ),
            (&[("host", "a"), ("expect", "100-Continue")], Ok(())),
            (&[("host", "a"), ("expect", "")], Ok(())),
            (&[("host", "a"), ("expect", "foo")], Err(Expectation)),
            (
                &[("host", "a"), ("expect", "100-continue, foo")],
                Err(Expectation),
            ),
        ];
        for (fields, expected) in cases {
            assert_eq!(
                check_head(Version::HTTP_11, "/", fields),
                expected,
                "{fields:?}"
            );
        }
    }

    #[test]
    fn http_1_0_needs_no_host_and_http2_uses_its_authority() {
        let malformed = Err(InvalidHead::MalformedHost);
        assert_eq!(check_head(Version::HTTP_10, "/", &[]), Ok(()));
        let checked_1_0 = check_head(Version::HTTP_10, "/", &[("host", "a b")]);
        assert_eq!(checked_1_0, malformed);
        let cases: [(&str, HeaderPairs<'_>, Result<(), InvalidHead>); 5] = [
            ("/", &[], Ok(())),
            ("https://a:1/", &[], Ok(())),
            ("https://a@b/", &[], malformed.clone()),
            ("https://a/", &[("host", "a b")], malformed),
            ("https://a/", &[("expect", "foo")], Ok(())),
        ];
        for (uri, fields, expected) in cases {
            assert_eq!(check_head(Version::HTTP_2, uri, fields), expected, "{uri}");
        }
    }
}
