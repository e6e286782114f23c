//! What an issuer's claims make of a user: service accounts, and the issuers of `--authentication-config`. Pure.
//!
//! After `serviceaccount.validator` and `plugin/pkg/authenticator/token/oidc` (Kubernetes 1.36), signature and claims only:
//! that a service account still exists the API server alone can tell, and it judges the request again.

use serde_json::Value;

use crate::api::UserInfo;
use crate::identity::jwt::Claims;
use crate::identity::jwt::string_list;

/// What the names that are Kubernetes' own begin with.
const SYSTEM_PREFIX: &str = "system:";

/// Why claims that are signed name nobody here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// It is over.
    Expired,
    /// A claim is missing, or is not what it should be.
    Malformed,
    /// It does not hold yet.
    NotYetValid,
    /// It is meant for somebody else.
    WrongAudience,
    /// A required claim has not the value that is wanted, or the user would be one of Kubernetes' own.
    Rejected,
}

/// A user whose claims hold.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedUser {
    /// The user.
    pub user: UserInfo,
    /// When the token ends, in seconds since the epoch.
    pub expires_at: f64,
}

/// The API server's own issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountValidator;

impl ServiceAccountValidator {
    /// The service account that `claims` are about, at `now` (seconds since the epoch) and for one of `audiences`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn validate(
        &self,
        claims: Claims<'_>,
        audiences: &[String],
        now: f64,
    ) -> Result<ValidatedUser, ClaimError> {
        let expires = claims.check_validity(now)?;
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
        let of = |kind: &str, field: &str| text(private.get(kind).and_then(|v| v.get(field)));
        let namespace = text(private.get("namespace")).ok_or(ClaimError::Malformed)?;
        let account = of("serviceaccount", "name").ok_or(ClaimError::Malformed)?;
        let name = format!("system:serviceaccount:{namespace}:{account}");
        if claims.get_str("sub") != Some(name.as_str()) {
            return Err(ClaimError::Malformed);
        }
        let mut extra = Vec::new();
        let mut told = |key: &str, value: String| {
            extra.push((format!("authentication.kubernetes.io/{key}"), vec![value]));
        };
        if let Some(id) = claims.get_str("jti") {
            told("credential-id", format!("JTI={id}"));
        }
        if let (Some(pod), Some(uid)) = (of("pod", "name"), of("pod", "uid")) {
            told("pod-name", pod);
            told("pod-uid", uid);
        }
        if let Some(node) = of("node", "name") {
            told("node-name", node);
            if let Some(uid) = of("node", "uid") {
                told("node-uid", uid);
            }
        }
        let user = UserInfo {
            name,
            uid: of("serviceaccount", "uid").unwrap_or_default(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
            extra,
        };
        Ok(ValidatedUser {
            user: user.with_authenticated_group(),
            expires_at: expires,
        })
    }
}

/// A claim and what stands before it in a user's name or groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimMapping {
    /// The claim.
    pub claim: String,
    /// What is put before its value.
    pub prefix: String,
}

/// A claim that must have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredClaim {
    /// The claim.
    pub claim: String,
    /// Its value; any where it is empty.
    pub value: String,
}

/// An issuer of `--authentication-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtIssuer {
    /// The `iss` of its tokens.
    pub url: String,
    /// Of these one must be in `aud`.
    pub audiences: Vec<String>,
    /// The user's name.
    pub username: ClaimMapping,
    /// The groups.
    pub groups: Option<ClaimMapping>,
    /// The claim that is the uid.
    pub uid: Option<String>,
    /// `claimValidationRules`.
    pub required_claims: Vec<RequiredClaim>,
}

impl JwtIssuer {
    /// The user that `claims` are about, at `now` (seconds since the epoch).
    ///
    /// # Errors
    /// Why there is none. Names and groups of Kubernetes' own (`system:`) are not this issuer's to give, whatever its mapping
    /// says: with such a name goes a class of requests, with such a group exemption.
    pub fn validate(&self, claims: Claims<'_>, now: f64) -> Result<ValidatedUser, ClaimError> {
        let expires = claims.check_validity(now)?;
        if !claims.has_audience(&self.audiences) {
            return Err(ClaimError::WrongAudience);
        }
        for RequiredClaim { claim, value } in &self.required_claims {
            let told = claims.get_str(claim).ok_or(ClaimError::Rejected)?;
            if !value.is_empty() && told != value {
                return Err(ClaimError::Rejected);
            }
        }
        let ClaimMapping { claim, prefix } = &self.username;
        let name = claims.get_str(claim).ok_or(ClaimError::Malformed)?;
        // As upstream: an address counts if nobody says that it is not verified.
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
            expires_at: expires,
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
