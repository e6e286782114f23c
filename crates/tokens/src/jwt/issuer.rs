//! Maps the claims of a token to a user: service accounts, and the issuers of
//! `--authentication-config`. Pure.
//!
//! Follows `serviceaccount.validator` and `plugin/pkg/authenticator/token/oidc` (Kubernetes 1.36),
//! signature and claims only. Whether a service account still exists is for the API server to
//! check, which authenticates the request again.

use serde_json::Value;

use crate::jwt::claims::{ClaimError, Claims, string_list};
use weir_kubernetes::api::UserInfo;

/// The prefix of names and groups that Kubernetes reserves.
const SYSTEM_PREFIX: &str = "system:";

/// A user from valid claims.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedUser {
    /// The user.
    pub user: UserInfo,
    /// When the token expires, in seconds since the epoch.
    pub expires_at: f64,
}

/// Validates service account tokens of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountValidator;

impl ServiceAccountValidator {
    /// Maps `claims` to a service account, at `now` (seconds since the epoch) and for one of
    /// `audiences`.
    ///
    /// # Errors
    /// Why the claims are not valid.
    pub fn validate(
        &self,
        claims: Claims<'_>,
        audiences: &[String],
        now: f64,
    ) -> Result<ValidatedUser, ClaimError> {
        let expires_at = claims.check_validity(now)?;
        if !claims.has_audience(audiences) {
            return Err(ClaimError::WrongAudience);
        }
        let private = claims
            .get("kubernetes.io")
            .and_then(Value::as_object)
            .ok_or(ClaimError::Malformed)?;
        let text = |value: Option<&Value>| {
            value
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let nested_text =
            |kind: &str, field: &str| text(private.get(kind).and_then(|v| v.get(field)));
        let namespace = text(private.get("namespace")).ok_or(ClaimError::Malformed)?;
        let account = nested_text("serviceaccount", "name").ok_or(ClaimError::Malformed)?;
        let name = format!("system:serviceaccount:{namespace}:{account}");
        if claims.get_str("sub") != Some(name.as_str()) {
            return Err(ClaimError::Malformed);
        }
        let mut extra = Vec::new();
        let mut add_extra = |key: &str, value: String| {
            extra.push((format!("authentication.kubernetes.io/{key}"), vec![value]));
        };
        if let Some(id) = claims.get_str("jti") {
            add_extra("credential-id", format!("JTI={id}"));
        }
        if let (Some(pod), Some(uid)) = (nested_text("pod", "name"), nested_text("pod", "uid")) {
            add_extra("pod-name", pod);
            add_extra("pod-uid", uid);
        }
        if let Some(node) = nested_text("node", "name") {
            add_extra("node-name", node);
            if let Some(uid) = nested_text("node", "uid") {
                add_extra("node-uid", uid);
            }
        }
        let user = UserInfo {
            name,
            uid: nested_text("serviceaccount", "uid").unwrap_or_default(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
            extra,
        };
        Ok(ValidatedUser {
            user: user.with_authenticated_group(),
            expires_at,
        })
    }
}

/// A claim that becomes a user name or groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimMapping {
    /// The name of the claim.
    pub claim: String,
    /// The prefix of the name or of each group.
    pub prefix: String,
}

/// A claim that has to have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredClaim {
    /// The name of the claim.
    pub claim: String,
    /// The required value. Empty for any value.
    pub value: String,
}

/// An issuer of `--authentication-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtIssuer {
    /// The `iss` claim of its tokens.
    pub url: String,
    /// The accepted audiences. `aud` has to contain one of them.
    pub audiences: Vec<String>,
    /// The claim that is the user name.
    pub username: ClaimMapping,
    /// The claim that is the list of groups.
    pub groups: Option<ClaimMapping>,
    /// The claim that is the uid.
    pub uid: Option<String>,
    /// `claimValidationRules`.
    pub required_claims: Vec<RequiredClaim>,
}

impl JwtIssuer {
    /// Maps `claims` to a user, at `now` (seconds since the epoch).
    ///
    /// # Errors
    /// Why the claims are not valid. Claims that map to a `system:` name or group are rejected,
    /// whatever the mapping: such names select flow schemas, and such groups can be exempt from
    /// limits.
    pub fn validate(&self, claims: Claims<'_>, now: f64) -> Result<ValidatedUser, ClaimError> {
        let expires_at = claims.check_validity(now)?;
        if !claims.has_audience(&self.audiences) {
            return Err(ClaimError::WrongAudience);
        }
        for RequiredClaim { claim, value } in &self.required_claims {
            let actual = claims.get_str(claim).ok_or(ClaimError::Rejected)?;
            if !value.is_empty() && actual != value {
                return Err(ClaimError::Rejected);
            }
        }
        let ClaimMapping { claim, prefix } = &self.username;
        let name = claims.get_str(claim).ok_or(ClaimError::Malformed)?;
        // As upstream: an email address counts unless `email_verified` is present and not true.
        if claim == "email"
            && claims
                .get("email_verified")
                .is_some_and(|verified| verified != &Value::Bool(true))
        {
            return Err(ClaimError::Rejected);
        }
        let name = format!("{prefix}{name}");
        let groups = self.groups_from(claims)?;
        if name.starts_with(SYSTEM_PREFIX)
            || groups.iter().any(|group| group.starts_with(SYSTEM_PREFIX))
        {
            return Err(ClaimError::Rejected);
        }
        let uid = self.uid.as_ref().and_then(|claim| claims.get_str(claim));
        let extra = claims.get_str("jti").map(|id| {
            let key = "authentication.kubernetes.io/credential-id".to_owned();
            (key, vec![format!("JTI={id}")])
        });
        let user = UserInfo {
            name,
            uid: uid.unwrap_or_default().to_owned(),
            groups,
            extra: extra.into_iter().collect(),
        };
        Ok(ValidatedUser {
            user: user.with_authenticated_group(),
            expires_at,
        })
    }

    fn groups_from(&self, claims: Claims<'_>) -> Result<Vec<String>, ClaimError> {
        let Some(ClaimMapping { claim, prefix }) = &self.groups else {
            return Ok(Vec::new());
        };
        let Some(value) = claims.get(claim) else {
            return Ok(Vec::new());
        };
        let groups = string_list(value).ok_or(ClaimError::Malformed)?;
        Ok(groups
            .into_iter()
            .filter(|group| !group.is_empty())
            .map(|group| format!("{prefix}{group}"))
            .collect())
    }
}
