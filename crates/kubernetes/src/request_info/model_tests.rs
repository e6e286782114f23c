//! Random requests, resolved by [`RequestInfo`] and by a slow model of Kubernetes' rules.
//!
//! The model is written from the Go sources (`NewRequestInfo`, `net/url`, `apimachinery/pkg/fields`
//! and `labels`) step by step, with copies of strings, and uses nothing of the code that it is
//! compared with. A byte is a `char` of the same number, so that Go's strings are plain strings.

#![cfg_attr(fuzzing, allow(unused, reason = "the tests themselves are not there"))]

use std::collections::HashMap;
use std::net::Ipv6Addr;

use fastrand::Rng;

use super::{RequestInfo, TargetError};

/// How many requests are compared.
const REQUESTS: usize = 50_000;

/// What a request is, with bytes as `char`s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Resolved {
    is_resource_request: bool,
    path: String,
    verb: String,
    api_prefix: String,
    api_group: String,
    api_version: String,
    namespace: String,
    resource: String,
    subresource: String,
    name: String,
    parts: Vec<String>,
    field_selector: String,
    label_selector: String,
    long_running: bool,
    read_only: bool,
    /// What the query requires of `spec.nodeName`.
    node: Option<String>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Resolved(Box<Resolved>),
    /// Go's server answers 400.
    Malformed,
    /// The message of the 500.
    Unresolvable(String),
}

fn chars(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(c).unwrap()).collect()
}

/// The code's answer.
fn found(method: &str, target: &[u8]) -> Outcome {
    let info = match RequestInfo::parse(method, target) {
        Ok(info) => info,
        Err(TargetError::Malformed(_)) => return Outcome::Malformed,
        Err(TargetError::Unresolvable(error)) => {
            return Outcome::Unresolvable(chars(&error.message()));
        }
    };
    assert_eq!(info.mutating(), !info.read_only());
    Outcome::Resolved(Box::new(Resolved {
        is_resource_request: info.is_resource_request(),
        path: chars(info.path()),
        verb: info.verb().as_str().to_owned(),
        api_prefix: chars(info.api_prefix()),
        api_group: chars(info.api_group()),
        api_version: chars(info.api_version()),
        namespace: chars(info.namespace()),
        resource: chars(info.resource()),
        subresource: chars(info.subresource()),
        name: chars(info.name()),
        parts: info.parts().map(chars).collect(),
        field_selector: chars(info.field_selector()),
        label_selector: chars(info.label_selector()),
        long_running: info.long_running(),
        read_only: info.read_only(),
        node: info
            .requires_exact_match("spec.nodeName")
            .map(|node| chars(&node)),
    }))
}

/// `net/http.ReadRequest`, then `NewRequestInfo`.
fn model(method: &str, target: &[u8]) -> Outcome {
    let Some(url) = Url::parse(method, &chars(target)) else {
        return Outcome::Malformed;
    };
    let query = parse_query(&url.raw_query);
    match new_request_info(method, &url.path, &query) {
        Some(mut resolved) => {
            resolved.long_running = is_long_running(&resolved);
            resolved.read_only = ["get", "list", "watch"].contains(&&*resolved.verb);
            resolved.node = decode_list_options(&query)
                .and_then(|options| options.exact.get("spec.nodeName").cloned());
            Outcome::Resolved(Box::new(resolved))
        }
        None => Outcome::Unresolvable(format!(
            "unable to determine kind and namespace from url, {}",
            url.string
        )),
    }
}

/// The parts of Go's `url.URL` that matter, and what it prints.
struct Url {
    path: String,
    raw_query: String,
    string: String,
}

impl Url {
    /// `url.ParseRequestURI` of what `ReadRequest` gives it.
    fn parse(method: &str, target: &str) -> Option<Self> {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if method.is_empty() || !method.chars().all(token) {
            return None;
        }
        if target.chars().any(|c| c <= ' ' || c == '\u{7f}') {
            return None;
        }
        let only_authority = method == "CONNECT" && !target.starts_with('/');
        let whole = match only_authority {
            true => format!("http://{target}"),
            false => target.to_owned(),
        };
        if whole.is_empty() {
            return None;
        }
        if whole == "*" {
            return Some(Self {
                path: whole.clone(),
                raw_query: String::new(),
                string: whole,
            });
        }
        let (scheme, rest) = get_scheme(&whole)?;
        let (rest, raw_query) = rest.split_once('?').unwrap_or((&rest, ""));
        let tail = whole.find('?').map_or("", |at| &whole[at..]).to_owned();
        if !rest.starts_with('/') {
            return (!scheme.is_empty()).then(|| Self {
                path: String::new(),
                raw_query: raw_query.to_owned(),
                string: String::new(), // of no interest: an opaque URL has no path
            });
        }
        let mut string = String::new();
        let mut raw_path = rest.to_owned();
        if !scheme.is_empty() && !only_authority {
            string = format!("{}:", scheme.to_ascii_lowercase());
        }
        if !scheme.is_empty() && rest.starts_with("//") {
            let after = &rest[2..];
            let end = after.find('/').unwrap_or(after.len());
            let (authority, path) = after.split_at(end);
            check_authority(&scheme.to_ascii_lowercase(), authority)?;
            string.push_str("//");
            string.push_str(authority);
            raw_path = path.to_owned();
        }
        let path = unescape(&raw_path, false)?;
        string.push_str(&escaped_path(&raw_path, &path));
        string.push_str(&tail);
        Some(Self {
            path,
            raw_query: raw_query.to_owned(),
            string,
        })
    }
}

/// `getScheme`.
fn get_scheme(whole: &str) -> Option<(String, String)> {
    for (at, c) in whole.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return None,
            ':' => return Some((whole[..at].to_owned(), whole[at + 1..].to_owned())),
            _ => break,
        }
    }
    Some((String::new(), whole.to_owned()))
}

/// `parseAuthority`.
fn check_authority(scheme: &str, authority: &str) -> Option<()> {
    let host = match authority.rsplit_once('@') {
        Some((user, host)) => {
            let valid = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            if !user.chars().all(valid) {
                return None;
            }
            for part in user.splitn(2, ':') {
                unescape(part, false)?;
            }
            host
        }
        None => authority,
    };
    let port = |text: &str| match text.strip_prefix(':') {
        Some(digits) => digits.chars().all(|c| c.is_ascii_digit()),
        None => text.is_empty(),
    };
    match host.rfind('[') {
        Some(0) => {
            let close = host.rfind(']')?;
            let (inside, zone) = match host[1..close].split_once("%25") {
                Some((address, zone)) => (address, Some(zone)),
                None => (&host[1..close], None),
            };
            let zone_is_fine = match zone {
                Some("") => false,
                Some(zone) => is_host_text(zone, |byte| {
                    byte == b'%' || byte == b' ' || is_host_char(char::from(byte))
                }),
                None => true,
            };
            (port(&host[close + 1..]) && zone_is_fine && inside.parse::<Ipv6Addr>().is_ok())
                .then_some(())
        }
        Some(_) => None,
        None => {
            // Since Go 1.26, the host of a web URL has no colon but the port's.
            let is_web = scheme == "http" || scheme == "https";
            let colon = if is_web {
                host.find(':')
            } else {
                host.rfind(':')
            };
            (colon.is_none_or(|at| port(&host[at..]))
                && is_host_text(host, |byte| byte == b'%' || byte >= 0x80))
            .then_some(())
        }
    }
}

fn is_host_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!$&'()*+,;=:[]<>\"-_.~".contains(c)
}

fn is_host_text(text: &str, escapable: impl Fn(u8) -> bool) -> bool {
    let mut at = 0;
    let all: Vec<char> = text.chars().collect();
    while at < all.len() {
        if all[at] == '%' {
            match hex(&all, at) {
                Some(byte) if escapable(byte) => at += 3,
                _ => return false,
            }
        } else if all[at] >= '\u{80}' || is_host_char(all[at]) {
            at += 1;
        } else {
            return false;
        }
    }
    true
}

fn hex(all: &[char], percent: usize) -> Option<u8> {
    let digit = |at: usize| all.get(at).and_then(|c| c.to_digit(16));
    let value = digit(percent + 1)? * 16 + digit(percent + 2)?;
    u8::try_from(value).ok()
}

/// `url.PathUnescape`, or `url.QueryUnescape` if a plus is a space.
fn unescape(text: &str, plus_is_space: bool) -> Option<String> {
    let all: Vec<char> = text.chars().collect();
    let mut unescaped = String::new();
    let mut at = 0;
    while at < all.len() {
        match all[at] {
            '%' => {
                unescaped.push(char::from(hex(&all, at)?));
                at += 2;
            }
            '+' if plus_is_space => unescaped.push(' '),
            other => unescaped.push(other),
        }
        at += 1;
    }
    Some(unescaped)
}

/// `URL.EscapedPath`.
fn escaped_path(raw: &str, path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~$&+,/:;=@".contains(c);
    if raw.chars().all(|c| plain(c) || "!'()*[]%".contains(c)) {
        return raw.to_owned();
    }
    path.chars()
        .map(|c| match plain(c) {
            true => c.to_string(),
            false => format!("%{:02X}", u32::from(c)),
        })
        .collect()
}

type Values = HashMap<String, Vec<String>>;

/// `url.ParseQuery`.
fn parse_query(raw: &str) -> Values {
    let mut values = Values::new();
    let pairs: Vec<&str> = raw.split('&').collect();
    if pairs.len() > 10_000 {
        return values;
    }
    for pair in pairs {
        if pair.contains(';') || pair.is_empty() {
            continue;
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (unescape(key, true), unescape(value, true)) {
            values.entry(key).or_default().push(value);
        }
    }
    values
}

fn first(query: &Values, key: &str) -> Option<String> {
    query.get(key).and_then(|values| values.first().cloned())
}

/// `NewRequestInfo`; `None` is its error.
fn new_request_info(method: &str, path: &str, query: &Values) -> Option<Resolved> {
    let mut info = Resolved {
        path: path.to_owned(),
        verb: method.to_ascii_lowercase(),
        ..Resolved::default()
    };
    let trimmed = path.trim_matches('/');
    let mut parts: Vec<String> = match trimmed {
        "" => Vec::new(),
        _ => trimmed.split('/').map(str::to_owned).collect(),
    };
    if parts.len() < 3 || !["api", "apis"].contains(&&*parts[0]) {
        return Some(info);
    }
    info.api_prefix = parts.remove(0);
    if info.api_prefix != "api" {
        if parts.len() < 3 {
            return Some(info);
        }
        info.api_group = parts.remove(0);
    }
    info.is_resource_request = true;
    info.api_version = parts.remove(0);
    let mut verb_in_path = false;
    if ["proxy", "watch"].contains(&&*parts[0]) {
        if parts.len() < 2 {
            return None;
        }
        info.verb = parts.remove(0);
        verb_in_path = true;
    } else {
        let verbs = [
            ("POST", "create"),
            ("GET", "get"),
            ("HEAD", "get"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
        ];
        let verb = verbs.iter().find(|(of, _)| *of == method);
        info.verb = verb.map_or("", |(_, verb)| *verb).to_owned();
    }
    if parts[0] == "namespaces" && parts.len() > 1 {
        info.namespace = parts[1].clone();
        if parts.len() > 2 && !["status", "finalize"].contains(&&*parts[2]) {
            parts.drain(..2);
        }
    }
    info.parts = parts.clone();
    if parts.len() >= 3 && info.verb != "proxy" {
        info.subresource = parts[2].clone();
    }
    if parts.len() >= 2 {
        info.name = parts[1].clone();
    }
    info.resource = parts[0].clone();
    if info.name.is_empty() && info.verb == "get" {
        let options = decode_list_options(query);
        let is_watch = match &options {
            Some(options) => options.watch,
            None => first(query, "watch")
                .is_some_and(|value| !["false", "0"].contains(&&*value.to_ascii_lowercase())),
        };
        info.verb = if is_watch { "watch" } else { "list" }.to_owned();
        let exact = options.and_then(|options| options.exact.get("metadata.name").cloned());
        if let Some(name) = exact
            && name != "."
            && name != ".."
            && !name.contains(['/', '%'])
        {
            info.name = name;
        }
    }
    if info.name.is_empty() && info.verb == "delete" {
        info.verb = "deletecollection".to_owned();
    }
    if !verb_in_path && ["list", "watch", "deletecollection"].contains(&&*info.verb) {
        info.field_selector = first(query, "fieldSelector").unwrap_or_default();
        info.label_selector = first(query, "labelSelector").unwrap_or_default();
    }
    Some(info)
}

/// `BasicLongRunningRequestCheck` with kube-apiserver's verbs and subresources.
fn is_long_running(info: &Resolved) -> bool {
    let subresources = ["attach", "exec", "proxy", "log", "portforward"];
    ["watch", "proxy"].contains(&&*info.verb)
        || info.is_resource_request && subresources.contains(&&*info.subresource)
        || !info.is_resource_request && info.path.starts_with("/debug/pprof/")
}

struct ListOptions {
    watch: bool,
    /// The value that the field selector requires of each field.
    exact: HashMap<String, String>,
}

/// The decoding of `metainternalversion.ListOptions`; `None` is an error.
fn decode_list_options(query: &Values) -> Option<ListOptions> {
    for number in ["limit", "timeoutSeconds"] {
        if let Some(value) = first(query, number) {
            parse_int(&value)?;
        }
    }
    if let Some(selector) = first(query, "labelSelector") {
        LabelParser::parse(&selector)?;
    }
    let exact = parse_field_selector(&first(query, "fieldSelector").unwrap_or_default())?;
    // strings.EqualFold: `ſ`, here as its two bytes, folds to `s`.
    let watch = first(query, "watch").is_some_and(|value| {
        let folded = value.replace("\u{c5}\u{bf}", "s").to_ascii_lowercase();
        value != "0" && folded != "false"
    });
    Some(ListOptions { watch, exact })
}

/// `strconv.ParseInt(text, 10, 64)`.
fn parse_int(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (if text.starts_with('-') { -1 } else { 1 }, digits),
        None => (1, text),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let mut value = 0_i128;
    for digit in digits.chars() {
        value = value * 10 + i128::from(digit.to_digit(10)?);
        if value > 1 << 70 {
            return None;
        }
    }
    i64::try_from(sign * value).ok()
}

/// `fields.ParseSelector`, and `RequiresExactMatch` of each field; `None` is an error.
fn parse_field_selector(selector: &str) -> Option<HashMap<String, String>> {
    let mut terms = vec![String::new()];
    let mut is_escaped = false;
    for c in selector.chars() {
        if c == ',' && !is_escaped {
            terms.push(String::new());
            continue;
        }
        is_escaped = c == '\\' && !is_escaped;
        terms.last_mut().unwrap().push(c);
    }
    terms.sort(); // the order of bytes, as in Go
    let mut exact = HashMap::new();
    for term in terms.iter().filter(|term| !term.is_empty()) {
        let (field, is_exact, value) = split_term(term)?;
        let value = unescape_value(&value)?;
        if is_exact {
            exact.entry(field).or_insert(value);
        }
    }
    Some(exact)
}

fn split_term(term: &str) -> Option<(String, bool, String)> {
    for (at, _) in term.char_indices() {
        for operator in ["!=", "==", "="] {
            if let Some(value) = term[at..].strip_prefix(operator) {
                return Some((term[..at].to_owned(), operator != "!=", value.to_owned()));
            }
        }
    }
    None
}

/// `fields.UnescapeValue`, which ranges over runes once there is something to unescape.
fn unescape_value(value: &str) -> Option<String> {
    if !value.contains(['\\', ',', '=']) {
        return Some(value.to_owned());
    }
    let mut unescaped = Vec::new();
    let mut is_escaped = false;
    for c in runes(&bytes(value)) {
        match c {
            '\\' | ',' | '=' if is_escaped => unescaped.push(c),
            _ if is_escaped => return None,
            '\\' => {
                is_escaped = true;
                continue;
            }
            ',' | '=' => return None,
            _ => unescaped.push(c),
        }
        is_escaped = false;
    }
    let text: String = unescaped.into_iter().collect();
    (!is_escaped).then(|| chars(text.as_bytes()))
}

/// The runes of Go's string: each byte that is not UTF-8 is U+FFFD.
fn runes(mut rest: &[u8]) -> Vec<char> {
    let mut runes = Vec::new();
    while !rest.is_empty() {
        let valid = (1..=4).find_map(|length| {
            let text = str::from_utf8(rest.get(..length)?).ok()?;
            Some((text.chars().next()?, length))
        });
        let (rune, length) = valid.unwrap_or((char::REPLACEMENT_CHARACTER, 1));
        runes.push(rune);
        rest = &rest[length..];
    }
    runes
}

/// `labels.Parse`. Tokens are strings; the end is the empty one, and words begin with a `w`.
struct LabelParser {
    tokens: Vec<String>,
}

impl LabelParser {
    fn parse(selector: &str) -> Option<()> {
        let mut tokens = Self::lex(selector);
        tokens.reverse();
        let mut parser = Self { tokens };
        if parser.next_token().is_empty() {
            return Some(());
        }
        loop {
            parser.requirement()?;
            match &*parser.take() {
                "" => return Some(()),
                "," if parser.next_token() == "!" || parser.next_token().starts_with('w') => {}
                _ => return None,
            }
        }
    }

    fn lex(selector: &str) -> Vec<String> {
        let all: Vec<char> = selector.chars().collect();
        let is_space = |c: char| " \t\r\n".contains(c);
        let is_symbol = |c: char| "=!(),><".contains(c);
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < all.len() {
            let c = all[at];
            if is_space(c) {
                at += 1;
                continue;
            }
            if c == '\0' {
                break;
            }
            let mut token = String::new();
            if is_symbol(c) {
                let two: String = all[at..].iter().take(2).collect();
                token = if ["==", "!="].contains(&&*two) {
                    two
                } else {
                    c.to_string()
                };
                at += token.len();
            } else {
                token.push('w');
                while at < all.len() && all[at] != '\0' && !is_space(all[at]) && !is_symbol(all[at])
                {
                    token.push(all[at]);
                    at += 1;
                }
            }
            if all.get(at) == Some(&'\0') {
                at += 1; // read, and not put back
            }
            tokens.push(token);
        }
        tokens
    }

    fn next_token(&self) -> &str {
        self.tokens.last().map_or("", String::as_str)
    }

    fn take(&mut self) -> String {
        self.tokens.pop().unwrap_or_default()
    }

    fn word(&mut self) -> Option<String> {
        self.take().strip_prefix('w').map(str::to_owned)
    }

    fn requirement(&mut self) -> Option<()> {
        let is_negated = self.next_token() == "!";
        if is_negated {
            self.take();
        }
        let key = self.word()?;
        is_qualified_name(&key).then_some(())?;
        if is_negated || ["", ","].contains(&self.next_token()) {
            return Some(());
        }
        let operator = self.take();
        let values = match &*operator {
            "win" | "wnotin" => self.values()?,
            "=" | "==" | "!=" | ">" | "<" => match self.next_token() {
                "" | "," => vec![String::new()],
                _ => vec![self.word()?],
            },
            _ => return None,
        };
        let is_number = |value: &String| parse_int(value).is_some();
        if [">", "<"].contains(&&*operator) && !values.iter().all(is_number) {
            return None;
        }
        let is_value = |value: &String| value.is_empty() || is_label_name(value);
        values.iter().all(is_value).then_some(())
    }

    /// `parseValues` with `parseIdentifiersList`.
    fn values(&mut self) -> Option<Vec<String>> {
        (self.take() == "(").then_some(())?;
        if self.next_token() == ")" {
            self.take();
            return Some(vec![String::new()]);
        }
        let mut values = Vec::new();
        loop {
            let token = self.take();
            if let Some(word) = token.strip_prefix('w') {
                values.push(word.to_owned());
                match self.next_token() {
                    "," => continue,
                    ")" => break,
                    _ => return None,
                }
            }
            (token == ",").then_some(())?;
            match self.next_token() {
                ")" => break,
                "," => drop(self.take()),
                _ => {}
            }
        }
        self.take();
        Some(values)
    }
}

/// `validation.IsQualifiedName`.
fn is_qualified_name(key: &str) -> bool {
    match key.split('/').collect::<Vec<_>>()[..] {
        [name] => is_label_name(name),
        [prefix, name] => {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            let label = |label: &str| {
                label.starts_with(inner)
                    && label.ends_with(inner)
                    && label.chars().all(|c| inner(c) || c == '-')
            };
            prefix.len() <= 253 && prefix.split('.').all(label) && is_label_name(name)
        }
        _ => false,
    }
}

fn is_label_name(name: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    name.chars().count() <= 63
        && name.starts_with(outer)
        && name.ends_with(outer)
        && name.chars().all(|c| outer(c) || "-_.".contains(c))
}

fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

#[rustfmt::skip]
const METHODS: &[&str] = &[
    "GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "HEAD", "DELETE", "DELETE", "POST", "PUT", "PATCH", "OPTIONS", "CONNECT", "TRACE",
    "get", "WATCH", "List", "PROXY", "M-SEARCH", "", "G T",
];

#[rustfmt::skip]
const SEGMENTS: &[&str] = &[
    "pods", "nodes", "n1", "web-0", "a", "status", "finalize", "namespaces", "watch", "proxy",
    "exec", "log", "attach", "portforward", "", "", ".", "..", "%2F", "%2f%2F", "a%2Fb", "%",
    "%zz", "%4", "%00", "%FF", "%C3%A9", "\u{e9}", "n%61mespaces", "%77atch", "api", "apis", "#",
    "a;b", "a=b", "a:b", "x,y", "<a>", "\"", "[", "|", "*", "(x)", "~", "+", "@", "API", "Watch",
];

#[rustfmt::skip]
const ROOTS: &[&str] = &[
    "/api/v1", "/api/v1", "/api/v1", "/apis/apps/v1", "/apis/events.k8s.io/v1", "/api", "/apis",
    "/apis/g", "//api/v1", "/api//v1", "/apis//v1", "/apis/g//", "/debug/pprof", "/debug/pprof/x",
    "/healthz", "", "/", "/API/v1", "/ap%69/v1", "/api/v1/namespaces/ns", "/api/v1/watch",
    "/apis/g/v/proxy", "/api/v1/watch/namespaces/ns", "/apis/g/v/namespaces/ns/r",
    "http://h/api/v1", "https://u:p@h:80/apis/g/v", "HTTP://[::1]:8/api/v1", "x:/api/v1", "x:api",
    "http://h:1:2/api/v1", "ldap://a:b:1/api/v1", "http:///api/v1", "h:443", "*", "1x:/api/v1",
    "http://[fe80::1%25en0]/api/v1", "http://[1.2.3.4]/", "http://h%20/api/v1", "//h/api/v1",
    "http://h%C3%A9/api/v1", "http://a@b@c/api/v1", ":", "http://[::1/api/v1",
];

#[rustfmt::skip]
const KEYS: &[&str] = &[
    "watch", "watch", "fieldSelector", "fieldSelector", "labelSelector", "limit", "timeoutSeconds",
    "w%61tch", "Watch", "resourceVersion", "", "%zz", "f+", "field%53elector", "continue",
];

#[rustfmt::skip]
const VALUES: &[&str] = &[
    "", "0", "1", "true", "false", "FALSE", "fal%C5%BFe", "no", "00", "5", "-5", "%2B5", "+5", "1e3",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "%zz", "a;b", "%00",
    "metadata.name%3Dfoo", "metadata.name=foo", "metadata.name==bar", "metadata.name!%3Dfoo",
];

/// Terms that are well-formed, and names of every kind.
#[rustfmt::skip]
const FIELD_TERMS: &[&str] = &[
    "metadata.name=foo", "metadata.name%3D%3Dbar", "metadata.name==a%5C,b", "metadata.name=%5C%5C",
    "metadata.name=", "metadata.name=.", "metadata.name=..", "metadata.name=a/b", "spec.nodeName=",
    "metadata.name=a%25b", "metadata.name=%FF%5C%3D%E2%82", "metadata.name=%C3%A9%5C,%F0%9F%98%80",
    "metadata.name!=foo", "spec.nodeName=n1", "spec.nodeName==n+2", "status.phase!=Running",
    "metadata.name=%FF", "=", "", "a!%3Db", "metadata%5C.name=a", "a%5C,b=c",
];

#[rustfmt::skip]
const FIELD_PIECES: &[&str] = &[
    "metadata.name", "metadata.name=", "metadata.name==", "metadata.name!=", "spec.nodeName=",
    "status.phase=", "a", "b", "..", ".", "%2F", "%25", ",", ",", "%2C", "=", "!", "%5C", "%5C,",
    "%5C%3D", "%5C%5C", "%FF", "%E2%82", "%C3%A9", "+", "%20", "x=1",
];

#[rustfmt::skip]
const LABEL_PIECES: &[&str] = &[
    "a", "app", "k8s.io/app", "A.b/c", "-x", "x-", "in", "notin", "+in+", "+notin+", "(", ")", ",",
    ",", "=", "==", "!=", "!", ">", "<", "1", "-1", "9223372036854775808", "+", "%09", "%00", "_",
    "a/b/c", "%C3%A9", "()", "(a,b)", "(,)", "a-b_c.d",
];

fn selector(random: &mut Rng, pieces: &[&str]) -> String {
    (0..random.usize(..7))
        .map(|_| pick(random, pieces))
        .collect()
}

fn field_selector(random: &mut Rng) -> String {
    if random.u8(..3) == 0 {
        return selector(random, FIELD_PIECES);
    }
    let terms: Vec<_> = (0..random.usize(1..4))
        .map(|_| pick(random, FIELD_TERMS))
        .collect();
    terms.join(pick(random, &[",", "%2C"]))
}

fn random_target(random: &mut Rng) -> Vec<u8> {
    // Half of the paths are as a client would write them.
    let plain = random.bool();
    let roots = if plain { &ROOTS[..5] } else { ROOTS };
    let mut target = pick(random, roots).to_owned();
    let most = if plain { 4 } else { 6 };
    for _ in 0..random.usize(..most).max(1) {
        let usual = if plain { 6 } else { SEGMENTS.len() };
        target.push('/');
        target.push_str(pick(random, &SEGMENTS[..usual]));
    }
    target.push_str(&"/".repeat(random.usize(..8).saturating_sub(5)));
    if random.u8(..4) > 0 {
        target.push('?');
        for _ in 0..random.usize(..5) {
            let key = pick(random, KEYS);
            let value = match key {
                "fieldSelector" | "field%53elector" if plain => {
                    pick(random, FIELD_TERMS).to_owned()
                }
                "fieldSelector" | "field%53elector" => field_selector(random),
                "labelSelector" if plain => pick(random, &["app", "a+in+(b,c)", "!x"]).to_owned(),
                "limit" | "timeoutSeconds" if plain => {
                    pick(random, &["5", "-5", "%2B5"]).to_owned()
                }
                "labelSelector" if random.u8(..4) > 0 => selector(random, LABEL_PIECES),
                _ => pick(random, VALUES).to_owned(),
            };
            let equals = if random.u8(..8) > 0 { "=" } else { "" };
            target.push_str(&format!("{key}{equals}{value}"));
            target.push_str(pick(random, &["&", "&", "&", "&&", ";", ""]));
        }
        match random.u16(..) {
            0..20 => target.push_str(&"&".repeat(random.usize(9_995..10_005))),
            20..200 => target.push_str(&format!(
                "labelSelector={}",
                "a".repeat(random.usize(60..66))
            )),
            _ => {}
        }
    }
    if random.u8(..100) == 0 {
        target.push_str(&"/long".repeat(random.usize(..500)));
    }
    let mut target = target.into_bytes();
    // A few changes of single bytes, most often none.
    let most = if plain { 7 } else { 9 };
    for _ in 0..random.usize(..most).saturating_sub(6) {
        let at = random.usize(..=target.len());
        let byte = match random.u8(..3) {
            0 => random.u8(..),
            _ => pick(random, b"/?%&=;:,+.\\!#@[]2F*\x80\xff "),
        };
        match random.u8(..3) {
            0 => target.insert(at, byte),
            1 if at < target.len() => target[at] = byte,
            _ => target.truncate(at.max(target.len() / 2)),
        }
    }
    target
}

/// The smallest part of `target` that still differs.
fn shrink(method: &str, mut target: Vec<u8>) -> Vec<u8> {
    let mut length = target.len();
    while length > 0 {
        let mut at = 0;
        while at + length <= target.len() {
            let mut shorter = target.clone();
            shorter.drain(at..at + length);
            if found(method, &shorter) == model(method, &shorter) {
                at += 1;
            } else {
                target = shorter;
            }
        }
        length /= 2;
    }
    target
}

/// Compares them for a method and a target, with a newline between them.
///
/// # Panics
/// They differ.
#[cfg(fuzzing)]
pub fn compare_bytes(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let (method, target) = (parts.next(), parts.next());
    if let (Some(Ok(method)), Some(target)) = (method.map(str::from_utf8), target) {
        compare(0, method, target.to_vec());
    }
}

/// Asserts that the code and the model agree, and returns what both say.
fn compare(seed: u64, method: &str, target: Vec<u8>) -> Outcome {
    let expected = model(method, &target);
    if found(method, &target) != expected {
        let smallest = shrink(method, target);
        assert_eq!(
            found(method, &smallest),
            model(method, &smallest),
            "seed {seed}: {method} {}",
            smallest.escape_ascii()
        );
    }
    expected
}

#[test]
fn random_requests_are_resolved_as_by_the_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut kinds = HashMap::<&str, usize>::new();
    for _ in 0..REQUESTS {
        let method = pick(&mut random, METHODS);
        let target = random_target(&mut random);
        let kind = match compare(seed, method, target) {
            Outcome::Malformed => "malformed",
            Outcome::Unresolvable(_) => "unresolvable",
            Outcome::Resolved(info) if info.node.is_some() => "node",
            Outcome::Resolved(info) if info.verb == "list" && !info.name.is_empty() => "named list",
            Outcome::Resolved(info) if info.is_resource_request => "resource",
            Outcome::Resolved(_) => "other",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    // Each branch of the rules must be reached, or little is proven.
    println!("{kinds:?}");
    let all_reached = kinds.values().all(|count| *count > REQUESTS / 1000);
    assert!(kinds.len() == 6 && all_reached, "{kinds:?}");
}

/// A label selector that is valid but for a few changes, most often none.
fn label_selector(random: &mut Rng) -> Vec<u8> {
    const NAMES: &[&str] = &["a", "app", "k8s.io/app", "in", "notin", "x_y.z-1", "9", "A"];
    let mut tokens = Vec::new();
    for n in 0..random.usize(..4) {
        if n > 0 {
            tokens.push(",");
        }
        if random.u8(..4) == 0 {
            tokens.push("!");
        }
        tokens.push(pick(random, NAMES));
        match random.u8(..4) {
            0 => tokens.extend([pick(random, &["=", "==", "!="]), pick(random, NAMES)]),
            1 => tokens.extend([pick(random, &["<", ">"]), pick(random, &["1", "-1", "a"])]),
            2 => {
                tokens.extend([" ", pick(random, &["in", "notin"]), " ", "("]);
                for _ in 0..random.u8(..5) {
                    tokens.push(pick(random, &[",", ",", "b", "c"]));
                }
                tokens.push(")");
            }
            _ => {}
        }
    }
    for _ in 0..random.usize(..4).saturating_sub(1) {
        let odd = &[
            "\0", "\0", " ", "\t", "\n", ",", "=", "!", "(", ")", "in", "<", "/", "-", "a",
        ];
        let at = random.usize(..=tokens.len());
        tokens.insert(at, pick(random, odd));
    }
    tokens.concat().into_bytes()
}

#[test]
fn random_selectors_are_read_as_by_the_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut named = 0;
    for _ in 0..REQUESTS / 2 {
        let mut target = b"/api/v1/pods?fieldSelector=metadata.name%3Dn".to_vec();
        if random.u8(..4) == 0 {
            let more = field_selector(&mut random);
            target.extend_from_slice(format!("%2C{more}").as_bytes());
        }
        target.extend_from_slice(b"&labelSelector=");
        for byte in label_selector(&mut random) {
            target.extend_from_slice(format!("%{byte:02x}").as_bytes());
        }
        let outcome = compare(seed, "GET", target);
        named += usize::from(matches!(outcome, Outcome::Resolved(info) if !info.name.is_empty()));
    }
    let either = REQUESTS / 10..REQUESTS * 2 / 5;
    assert!(either.contains(&named), "{named} are valid");
}
