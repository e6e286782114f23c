//! `AuthenticationConfiguration` (`apiserver.config.k8s.io`): the issuers whose tokens weir verifies by itself. Pure.
//!
//! kube-apiserver's own file can be given, as far as it maps claims; what it computes by expressions (CEL) weir does not, and
//! says so: an issuer that is left out here is not lost, since its tokens are reviewed by the API server. Two fields are weir's
//! own: `issuer.jwksURL` and `issuer.jwksFile` say where the keys are, in the place of discovery.

use std::path::PathBuf;

use crate::document::Content;
use crate::document::Faults;
use crate::document::Fields;
use crate::document::Node;
use crate::document::Place;
use crate::document::Strictness;
use crate::identity::jwt::ClaimMapping;
use crate::identity::jwt::Issuer;
use crate::identity::jwt::RequiredClaim;

const VERSIONS: [&str; 3] = [
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
const KIND: &str = "AuthenticationConfiguration";
const BY_EXPRESSION: &str = "weir maps claims and computes no expressions; leave this issuer out, and the API server is \
                             asked whose its tokens are";

/// An issuer as it was configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredIssuer {
    /// What its claims make of a user.
    pub issuer: Issuer,
    /// Where its keys are.
    pub keys: KeysAt,
    /// Who vouches for where they are (PEM); the system's CAs where it is missing.
    pub certificate_authority: Option<String>,
    /// Where it stands in the file.
    pub place: Place,
}

/// Where an issuer's keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeysAt {
    /// In this file.
    File(PathBuf),
    /// At this URL.
    Url(String),
    /// Where the discovery document at this URL says.
    Discovery(String),
}

/// The issuers of a file's documents.
pub fn read(documents: &[Node], faults: &mut Faults) -> Vec<ConfiguredIssuer> {
    let mut issuers = Vec::new();
    for document in documents.iter().filter(|document| !document.is_null()) {
        let read = document.decode(faults, "", Strictness::Strict, |fields| {
            fields.require(&["apiVersion", "kind"]);
            configuration(fields)
        });
        issuers.extend(read.into_iter().flatten().flatten());
    }
    once_each(&issuers, faults);
    issuers
}

/// The issuers of a section of another file, which stands at `field` there and may leave out what it is.
pub fn section(node: &Node, field: &str, faults: &mut Faults) -> Vec<ConfiguredIssuer> {
    let read = node.decode(faults, field, Strictness::Strict, configuration);
    let issuers = read.into_iter().flatten().flatten().collect::<Vec<_>>();
    once_each(&issuers, faults);
    issuers
}

fn once_each(issuers: &[ConfiguredIssuer], faults: &mut Faults) {
    let mut known: Vec<&str> = Vec::new();
    for ConfiguredIssuer { issuer, place, .. } in issuers {
        if known.contains(&issuer.url.as_str()) {
            let message = format!("the issuer {} stands here twice", issuer.url);
            faults.error(place, "jwt.issuer.url", message);
        }
        known.push(&issuer.url);
    }
}

fn configuration(fields: &mut Fields<'_>) -> Vec<Option<ConfiguredIssuer>> {
    let version = |text: &str| {
        if VERSIONS.contains(&text) {
            Ok(())
        } else {
            Err(format!("expected {}, got {text:?}", VERSIONS.join(" or ")))
        }
    };
    fields.parsed("apiVersion", version);
    fields.parsed("kind", |text| {
        if text == KIND {
            Ok(())
        } else {
            Err(format!("expected {KIND}, got {text:?}"))
        }
    });
    fields.known(&["anonymous"]); // the API server's to decide
    fields.objects("jwt", authenticator).unwrap_or_default()
}

fn authenticator(fields: &mut Fields<'_>) -> Option<ConfiguredIssuer> {
    let place = fields.place("").clone();
    fields.require(&["issuer", "claimMappings"]);
    if not_empty(fields, "userValidationRules") {
        fields.error("userValidationRules", BY_EXPRESSION);
    }
    let issuer = fields.object("issuer", issuer).flatten();
    let mappings = fields.object("claimMappings", mappings).flatten();
    let required = fields
        .objects("claimValidationRules", required)
        .unwrap_or_default();
    let (url, audiences, keys, certificate_authority) = issuer?;
    let (username, groups, uid) = mappings?;
    Some(ConfiguredIssuer {
        issuer: Issuer {
            url,
            audiences,
            username,
            groups,
            uid,
            required: required.into_iter().flatten().collect(),
        },
        keys,
        certificate_authority,
        place,
    })
}

type Whence = (String, Vec<String>, KeysAt, Option<String>);

fn issuer(fields: &mut Fields<'_>) -> Option<Whence> {
    fields.require(&["url", "audiences"]);
    let url = fields.parsed("url", https);
    let discovery = fields.parsed("discoveryURL", https);
    let audiences = fields.strings("audiences").unwrap_or_default();
    if fields.node("audiences").is_some() && audiences.iter().all(String::is_empty) {
        fields.error(
            "audiences",
            "one at least is needed: whom its tokens are meant for",
        );
    }
    fields.parsed("audienceMatchPolicy", |text| match text {
        "" | "MatchAny" => Ok(()),
        other => Err(format!("expected MatchAny, got {other:?}")),
    });
    if fields.node("egressSelectorType").is_some() {
        fields.error(
            "egressSelectorType",
            "weir has no egress selectors: it connects by itself",
        );
    }
    let certificate_authority = fields
        .string("certificateAuthority")
        .filter(|t| !t.is_empty());
    let jwks_url = fields.parsed("jwksURL", https);
    let jwks_file = fields.string("jwksFile").map(PathBuf::from);
    if jwks_url.is_some() && jwks_file.is_some() {
        fields.error(
            "jwksFile",
            "not together with jwksURL: the keys are at one of them",
        );
    }
    let url = url?;
    let keys = match (jwks_file, jwks_url) {
        (Some(file), _) => KeysAt::File(file),
        (None, Some(url)) => KeysAt::Url(url),
        (None, None) => KeysAt::Discovery(discovery.unwrap_or_else(|| {
            format!(
                "{}/.well-known/openid-configuration",
                url.trim_end_matches('/')
            )
        })),
    };
    Some((url, audiences, keys, certificate_authority))
}

type Mappings = (ClaimMapping, Option<ClaimMapping>, Option<String>);

fn mappings(fields: &mut Fields<'_>) -> Option<Mappings> {
    fields.require(&["username"]);
    let username = fields.object("username", mapping);
    let groups = fields.object("groups", mapping);
    let uid = fields.object("uid", |fields| {
        no_expression(fields);
        fields.string("claim").filter(|claim| !claim.is_empty())
    });
    if not_empty(fields, "extra") {
        fields.error("extra", BY_EXPRESSION);
    }
    Some((username.flatten()?, groups.flatten(), uid.flatten()))
}

fn mapping(fields: &mut Fields<'_>) -> Option<ClaimMapping> {
    no_expression(fields);
    let claim = fields.string("claim").filter(|claim| !claim.is_empty());
    let prefix = fields.string("prefix");
    if claim.is_none() {
        if fields.node("expression").is_none() {
            fields.error("claim", "required, but not given");
        }
    } else if prefix.is_none() {
        fields.error(
            "prefix",
            "required with a claim, if only as \"\": what stands before the claim's value",
        );
    }
    Some(ClaimMapping {
        claim: claim?,
        prefix: prefix.unwrap_or_default(),
    })
}

fn required(fields: &mut Fields<'_>) -> Option<RequiredClaim> {
    no_expression(fields);
    fields.known(&["message"]);
    let claim = fields.string("claim").filter(|claim| !claim.is_empty());
    let value = fields.string("requiredValue").unwrap_or_default();
    if claim.is_none() && fields.node("expression").is_none() {
        fields.error("claim", "required, but not given");
    }
    Some(RequiredClaim {
        claim: claim?,
        value,
    })
}

fn no_expression(fields: &mut Fields<'_>) {
    if fields
        .string("expression")
        .is_some_and(|text| !text.is_empty())
    {
        fields.error("expression", BY_EXPRESSION);
    }
}

fn not_empty(fields: &mut Fields<'_>, name: &'static str) -> bool {
    fields
        .node(name)
        .is_some_and(|node| !matches!(&node.content, Content::Sequence(items) if items.is_empty()))
}

fn https(text: &str) -> Result<String, &'static str> {
    match text.strip_prefix("https://") {
        Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
        _ => Err("expected https://HOST[:PORT][/PATH]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;

    fn parse(text: &str) -> (Vec<ConfiguredIssuer>, String) {
        let mut faults = Faults::default();
        let nodes = document::parse_all("auth.yaml", text, &mut faults);
        let issuers = read(&nodes, &mut faults);
        (issuers, faults.to_string())
    }

    const GOOD: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: https://login.example/tenant
    audiences: [kubernetes, other]
    audienceMatchPolicy: MatchAny
  claimValidationRules:
  - claim: hd
    requiredValue: example.com
  claimMappings:
    username: {claim: email, prefix: ''}
    groups: {claim: roles, prefix: 'oidc:'}
    uid: {claim: sub}
- issuer: {url: https://b.example, audiences: [b], jwksURL: https://b.example/keys}
  claimMappings: {username: {claim: sub, prefix: 'b:'}}
";

    #[test]
    fn kube_apiserver_s_own_file_is_read() {
        let (issuers, faults) = parse(GOOD);
        assert_eq!(faults, "");
        let [first, second] = &issuers[..] else {
            panic!("{issuers:?}")
        };
        assert_eq!(first.issuer.username.claim, "email");
        assert_eq!(first.issuer.groups.as_ref().unwrap().prefix, "oidc:");
        assert_eq!(first.issuer.required[0].value, "example.com");
        assert_eq!(
            first.keys,
            KeysAt::Discovery(
                "https://login.example/tenant/.well-known/openid-configuration".into()
            )
        );
        assert_eq!(second.keys, KeysAt::Url("https://b.example/keys".into()));
    }

    #[test]
    fn whatever_weir_would_not_do_is_told_with_its_place() {
        let text = GOOD
            .replace("claim: email, prefix: ''", "expression: claims.email")
            .replace("https://b.example,", "http://b.example,")
            .replace("prefix: 'b:'", "prefx: 'b:'");
        let (_, faults) = parse(&text);
        for expected in [
            "jwt[0].claimMappings.username.expression: weir maps claims",
            "jwt[1].issuer.url: expected https://",
            "jwt[1].claimMappings.username.prefix: required with a claim",
            "jwt[1].claimMappings.username.prefx: unknown field",
        ] {
            assert!(faults.contains(expected), "{expected}: {faults}");
        }
    }

    #[test]
    fn a_section_of_another_file_need_not_say_what_it_is() {
        let jwt = GOOD.split_once("jwt:").unwrap().1.replace('\n', "\n  ");
        let read = |text: &str| {
            let mut faults = Faults::default();
            let nodes = document::parse_all("weir.yaml", text, &mut faults);
            let given = nodes[0].field("authentication").unwrap();
            let issuers = section(given, "authentication", &mut faults);
            (issuers, faults.to_string())
        };
        let text = format!("authentication:\n  jwt:{jwt}");
        let (issuers, faults) = read(&text);
        assert_eq!((issuers.len(), faults.as_str()), (2, ""));
        let (_, faults) = read(&text.replace("prefix: 'b:'", "prefx: 'b:'"));
        assert!(
            faults.contains("authentication.jwt[1].claimMappings.username.prefx: unknown field"),
            "{faults}"
        );
        let (_, faults) = read("authentication: {kind: Pod, jwt: []}");
        assert!(
            faults.contains("authentication.kind: expected Auth"),
            "{faults}"
        );
    }

    #[test]
    fn an_issuer_that_stands_there_twice_is_an_error() {
        let text = GOOD.replace("https://b.example,", "https://login.example/tenant,");
        assert!(parse(&text).1.contains("stands here twice"));
    }
}
