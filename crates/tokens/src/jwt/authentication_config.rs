//! Decodes `AuthenticationConfiguration` (`apiserver.config.k8s.io`): the issuers whose tokens weir
//! verifies. Pure.
//!
//! kube-apiserver's own file is accepted as far as it maps claims. Expressions (CEL) are not
//! supported and are reported as errors. An issuer can be left out of the file: the API server then
//! reviews its tokens. Two fields are weir's own: `issuer.jwksURL` and `issuer.jwksFile` locate the
//! keys without discovery.

use std::path::PathBuf;

use crate::jwt::issuer::{ClaimMapping, JwtIssuer, RequiredClaim};
use weir_kubernetes::document::{
    Content, Diagnostics, MappingDecoder, Node, SourceLocation, Strictness,
};

const VERSIONS: [&str; 3] = [
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
const KIND: &str = "AuthenticationConfiguration";
const EXPRESSIONS_UNSUPPORTED: &str = "weir maps claims and does not evaluate expressions; without this issuer here, the API server \
                             reviews its tokens";

/// An issuer and the location of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredIssuer {
    /// How claims map to a user.
    pub issuer: JwtIssuer,
    /// Where the keys are published.
    pub jwks_location: JwksLocation,
    /// The CA (PEM) for fetching the keys. `None` for the system's CAs.
    pub certificate_authority: Option<String>,
    /// The location of the issuer in the file.
    pub location: SourceLocation,
}

/// Where an issuer's keys are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksLocation {
    /// In this file.
    File(PathBuf),
    /// At this URL.
    Url(String),
    /// At the URL that the discovery document at this URL names.
    Discovery(String),
}

/// Decodes the issuers of a file's documents.
pub fn decode_documents(
    documents: &[Node],
    diagnostics: &mut Diagnostics,
) -> Vec<ConfiguredIssuer> {
    let mut issuers = Vec::new();
    for document in documents.iter().filter(|document| !document.is_null()) {
        let decoded = document.decode(diagnostics, "", Strictness::Strict, |fields| {
            fields.require(&["apiVersion", "kind"]);
            decode_configuration(fields)
        });
        issuers.extend(decoded.into_iter().flatten().flatten());
    }
    reject_duplicates(&issuers, diagnostics);
    issuers
}

/// Decodes the issuers of a section of another file, at the path `field`. `apiVersion` and `kind`
/// are optional there.
pub fn decode_section(
    node: &Node,
    field: &str,
    diagnostics: &mut Diagnostics,
) -> Vec<ConfiguredIssuer> {
    let decoded = node.decode(diagnostics, field, Strictness::Strict, decode_configuration);
    let issuers = decoded.into_iter().flatten().flatten().collect::<Vec<_>>();
    reject_duplicates(&issuers, diagnostics);
    issuers
}

fn reject_duplicates(issuers: &[ConfiguredIssuer], diagnostics: &mut Diagnostics) {
    let mut seen: Vec<&str> = Vec::new();
    for ConfiguredIssuer {
        issuer, location, ..
    } in issuers
    {
        if seen.contains(&issuer.url.as_str()) {
            let message = format!("the issuer {} stands here twice", issuer.url);
            diagnostics.report_error(location, "jwt.issuer.url", message);
        }
        seen.push(&issuer.url);
    }
}

fn decode_configuration(fields: &mut MappingDecoder<'_>) -> Vec<Option<ConfiguredIssuer>> {
    let version = |text: &str| {
        if VERSIONS.contains(&text) {
            Ok(())
        } else {
            Err(format!("expected {}, got {text:?}", VERSIONS.join(" or ")))
        }
    };
    fields.parse("apiVersion", version);
    fields.parse("kind", |text| {
        if text == KIND {
            Ok(())
        } else {
            Err(format!("expected {KIND}, got {text:?}"))
        }
    });
    fields.mark_known(&["anonymous"]); // applies to the API server only
    fields
        .objects("jwt", decode_authenticator)
        .unwrap_or_default()
}

fn decode_authenticator(fields: &mut MappingDecoder<'_>) -> Option<ConfiguredIssuer> {
    let location = fields.location("").clone();
    fields.require(&["issuer", "claimMappings"]);
    if is_not_empty(fields, "userValidationRules") {
        fields.report_error("userValidationRules", EXPRESSIONS_UNSUPPORTED);
    }
    let issuer = fields.object("issuer", decode_issuer).flatten();
    let mappings = fields
        .object("claimMappings", decode_claim_mappings)
        .flatten();
    let required_claims = fields
        .objects("claimValidationRules", decode_required_claim)
        .unwrap_or_default();
    let (url, audiences, jwks_location, certificate_authority) = issuer?;
    let (username, groups, uid) = mappings?;
    Some(ConfiguredIssuer {
        issuer: JwtIssuer {
            url,
            audiences,
            username,
            groups,
            uid,
            required_claims: required_claims.into_iter().flatten().collect(),
        },
        jwks_location,
        certificate_authority,
        location,
    })
}

type IssuerFields = (String, Vec<String>, JwksLocation, Option<String>);

fn decode_issuer(fields: &mut MappingDecoder<'_>) -> Option<IssuerFields> {
    fields.require(&["url", "audiences"]);
    let url = fields.parse("url", parse_https_url);
    let discovery = fields.parse("discoveryURL", parse_https_url);
    let audiences = fields.strings("audiences").unwrap_or_default();
    if fields.node("audiences").is_some() && audiences.iter().all(String::is_empty) {
        fields.report_error(
            "audiences",
            "at least one is needed: the audiences of its tokens",
        );
    }
    fields.parse("audienceMatchPolicy", |text| match text {
        "" | "MatchAny" => Ok(()),
        other => Err(format!("expected MatchAny, got {other:?}")),
    });
    if fields.node("egressSelectorType").is_some() {
        fields.report_error(
            "egressSelectorType",
            "weir has no egress selectors: it connects by itself",
        );
    }
    let certificate_authority = fields
        .string("certificateAuthority")
        .filter(|t| !t.is_empty());
    let jwks_url = fields.parse("jwksURL", parse_https_url);
    let jwks_file = fields.string("jwksFile").map(PathBuf::from);
    if jwks_url.is_some() && jwks_file.is_some() {
        fields.report_error(
            "jwksFile",
            "not together with jwksURL: the keys are at one of them",
        );
    }
    let url = url?;
    let jwks_location = match (jwks_file, jwks_url) {
        (Some(file), _) => JwksLocation::File(file),
        (None, Some(url)) => JwksLocation::Url(url),
        (None, None) => JwksLocation::Discovery(discovery.unwrap_or_else(|| {
            format!(
                "{}/.well-known/openid-configuration",
                url.trim_end_matches('/')
            )
        })),
    };
    Some((url, audiences, jwks_location, certificate_authority))
}

type ClaimMappings = (ClaimMapping, Option<ClaimMapping>, Option<String>);

fn decode_claim_mappings(fields: &mut MappingDecoder<'_>) -> Option<ClaimMappings> {
    fields.require(&["username"]);
    let username = fields.object("username", decode_claim_mapping);
    let groups = fields.object("groups", decode_claim_mapping);
    let uid = fields.object("uid", |fields| {
        reject_expression(fields);
        fields.string("claim").filter(|claim| !claim.is_empty())
    });
    if is_not_empty(fields, "extra") {
        fields.report_error("extra", EXPRESSIONS_UNSUPPORTED);
    }
    Some((username.flatten()?, groups.flatten(), uid.flatten()))
}

fn decode_claim_mapping(fields: &mut MappingDecoder<'_>) -> Option<ClaimMapping> {
    reject_expression(fields);
    let claim = fields.string("claim").filter(|claim| !claim.is_empty());
    let prefix = fields.string("prefix");
    if claim.is_none() {
        if fields.node("expression").is_none() {
            fields.report_error("claim", "required, but not given");
        }
    } else if prefix.is_none() {
        fields.report_error(
            "prefix",
            "required with a claim, if only as \"\": what stands before the claim's value",
        );
    }
    Some(ClaimMapping {
        claim: claim?,
        prefix: prefix.unwrap_or_default(),
    })
}

fn decode_required_claim(fields: &mut MappingDecoder<'_>) -> Option<RequiredClaim> {
    reject_expression(fields);
    fields.mark_known(&["message"]);
    let claim = fields.string("claim").filter(|claim| !claim.is_empty());
    let value = fields.string("requiredValue").unwrap_or_default();
    if claim.is_none() && fields.node("expression").is_none() {
        fields.report_error("claim", "required, but not given");
    }
    Some(RequiredClaim {
        claim: claim?,
        value,
    })
}

fn reject_expression(fields: &mut MappingDecoder<'_>) {
    if fields
        .string("expression")
        .is_some_and(|text| !text.is_empty())
    {
        fields.report_error("expression", EXPRESSIONS_UNSUPPORTED);
    }
}

fn is_not_empty(fields: &mut MappingDecoder<'_>, name: &'static str) -> bool {
    fields
        .node(name)
        .is_some_and(|node| !matches!(&node.content, Content::Sequence(items) if items.is_empty()))
}

fn parse_https_url(text: &str) -> Result<String, &'static str> {
    match text.strip_prefix("https://") {
        Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
        _ => Err("expected https://HOST[:PORT][/PATH]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::document;

    fn parse(text: &str) -> (Vec<ConfiguredIssuer>, String) {
        let mut diagnostics = Diagnostics::default();
        let nodes = document::parse_all("auth.yaml", text, &mut diagnostics);
        let issuers = decode_documents(&nodes, &mut diagnostics);
        (issuers, diagnostics.to_string())
    }

    const VALID_CONFIG: &str = "
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
    fn a_configuration_file_of_kube_apiserver_is_accepted() {
        let (issuers, diagnostics) = parse(VALID_CONFIG);
        assert_eq!(diagnostics, "");
        let [first, second] = &issuers[..] else {
            panic!("{issuers:?}")
        };
        assert_eq!(first.issuer.username.claim, "email");
        assert_eq!(first.issuer.groups.as_ref().unwrap().prefix, "oidc:");
        assert_eq!(first.issuer.required_claims[0].value, "example.com");
        assert_eq!(
            first.jwks_location,
            JwksLocation::Discovery(
                "https://login.example/tenant/.well-known/openid-configuration".into()
            )
        );
        assert_eq!(
            second.jwks_location,
            JwksLocation::Url("https://b.example/keys".into())
        );
    }

    #[test]
    fn unsupported_fields_are_reported_with_their_path() {
        let text = VALID_CONFIG
            .replace("claim: email, prefix: ''", "expression: claims.email")
            .replace("https://b.example,", "http://b.example,")
            .replace("prefix: 'b:'", "prefx: 'b:'");
        let (_, diagnostics) = parse(&text);
        for expected in [
            "jwt[0].claimMappings.username.expression: weir maps claims",
            "jwt[1].issuer.url: expected https://",
            "jwt[1].claimMappings.username.prefix: required with a claim",
            "jwt[1].claimMappings.username.prefx: unknown field",
        ] {
            assert!(diagnostics.contains(expected), "{expected}: {diagnostics}");
        }
    }

    #[test]
    fn a_section_of_another_file_needs_no_api_version_and_kind() {
        let jwt = VALID_CONFIG
            .split_once("jwt:")
            .unwrap()
            .1
            .replace('\n', "\n  ");
        let decoded = |text: &str| {
            let mut diagnostics = Diagnostics::default();
            let nodes = document::parse_all("weir.yaml", text, &mut diagnostics);
            let section = nodes[0].field("authentication").unwrap();
            let issuers = decode_section(section, "authentication", &mut diagnostics);
            (issuers, diagnostics.to_string())
        };
        let text = format!("authentication:\n  jwt:{jwt}");
        let (issuers, diagnostics) = decoded(&text);
        assert_eq!((issuers.len(), diagnostics.as_str()), (2, ""));
        let (_, diagnostics) = decoded(&text.replace("prefix: 'b:'", "prefx: 'b:'"));
        assert!(
            diagnostics
                .contains("authentication.jwt[1].claimMappings.username.prefx: unknown field"),
            "{diagnostics}"
        );
        let (_, diagnostics) = decoded("authentication: {kind: Pod, jwt: []}");
        assert!(
            diagnostics.contains("authentication.kind: expected Auth"),
            "{diagnostics}"
        );
    }

    #[test]
    fn a_duplicate_issuer_is_an_error() {
        let text = VALID_CONFIG.replace("https://b.example,", "https://login.example/tenant,");
        assert!(parse(&text).1.contains("stands here twice"));
    }
}
