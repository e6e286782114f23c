//! Validation of a PriorityLevelConfiguration.

use crate::api::flowcontrol::field_error::FieldErrors;
use crate::api::flowcontrol::fields::PRESERVE_ZERO_SHARES;
use crate::api::flowcontrol::mandatory;
use crate::api::flowcontrol::types::{
    EXEMPT, LimitResponse, LimitResponseType, LimitedPriorityLevelConfiguration,
    PriorityLevelConfiguration, PriorityLevelConfigurationSpec, PriorityLevelEnablement,
    QueuingConfiguration, Version,
};
use crate::encoding::go_text;

/// `priorityLevelConfigurationQueuingMaxQueues`
const MAX_QUEUES: i32 = 10_000_000;

/// `shufflesharding.MaxHashBits`: the usable bits of a 64-bit hash, so that all hands are about
/// equally probable.
const MAX_HASH_BITS: u32 = 60;

pub(super) fn validate(
    level: &PriorityLevelConfiguration,
    version: Version,
    errors: &mut FieldErrors,
) {
    // Decoding removes it from v1beta3 objects, so it is only left where it is forbidden.
    if level
        .metadata
        .annotations
        .iter()
        .any(|(key, _)| key == PRESERVE_ZERO_SHARES)
    {
        let detail = format!("annotation '{PRESERVE_ZERO_SHARES}' is forbidden");
        errors.forbidden("metadata.annotations".to_owned(), detail);
    }
    let name = level.metadata.name.as_str();
    validate_spec(name, &level.spec, version, errors);
    validate_mandatory(name, &level.spec, errors);
}

/// The mandatory levels must not change, except for the lending of `exempt`.
fn validate_mandatory(name: &str, spec: &PriorityLevelConfigurationSpec, errors: &mut FieldErrors) {
    let Some(fixed) = mandatory::priority_level(name).map(|level| &level.spec) else {
        return;
    };
    let (same, except) = if name == EXEMPT {
        let same = (&spec.enablement, &spec.limited) == (&fixed.enablement, &fixed.limited);
        (same, " except the 'spec.exempt' field")
    } else {
        (spec == fixed, "")
    };
    if !same {
        let detail = format!("spec of '{name}'{except} must equal the fixed value");
        errors.invalid_whole("spec".to_owned(), detail);
    }
}

fn validate_spec(
    name: &str,
    spec: &PriorityLevelConfigurationSpec,
    version: Version,
    errors: &mut FieldErrors,
) {
    let PriorityLevelConfigurationSpec {
        enablement,
        limited,
        exempt,
    } = spec;
    if (name == EXEMPT) != (*enablement == PriorityLevelEnablement::Exempt) {
        let value = go_text::quote(enablement.as_str().as_bytes());
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.invalid("spec.type".to_owned(), value, detail);
    }
    match enablement {
        PriorityLevelEnablement::Exempt => {
            if limited.is_some() {
                let detail = "must be nil if the type is not Limited";
                errors.forbidden("spec.limited".to_owned(), detail);
            }
            if let Some(exempt) = exempt {
                let shares = "spec.exempt.nominalConcurrencyShares".to_owned();
                validate_shares(shares, exempt.nominal_concurrency_shares, errors);
                validate_lendable_percent(
                    "spec.exempt.lendablePercent",
                    exempt.lendable_percent,
                    errors,
                );
            }
        }
        PriorityLevelEnablement::Limited => {
            if exempt.is_some() {
                errors.forbidden(
                    "spec.exempt".to_owned(),
                    "must be nil if the type is Limited",
                );
            }
            match limited {
                None => {
                    let detail = "must not be empty when type is Limited";
                    errors.required("spec.limited".to_owned(), detail);
                }
                Some(limited) => validate_limited(limited, version, errors),
            }
        }
        PriorityLevelEnablement::Other(text) => {
            let allowed = PriorityLevelEnablement::ALLOWED;
            errors.not_supported(
                "spec.type".to_owned(),
                go_text::quote(text.as_bytes()),
                allowed,
            );
        }
    }
}

fn validate_limited(
    limited: &LimitedPriorityLevelConfiguration,
    version: Version,
    errors: &mut FieldErrors,
) {
    let field = format!("spec.limited.{}", version.shares_field());
    validate_shares(field, limited.nominal_concurrency_shares, errors);
    validate_limit_response(&limited.limit_response, errors);
    validate_lendable_percent(
        "spec.limited.lendablePercent",
        limited.lendable_percent,
        errors,
    );
    if let Some(percent) = limited
        .borrowing_limit_percent
        .filter(|percent| *percent < 0)
    {
        let field = "spec.limited.borrowingLimitPercent".to_owned();
        let detail = "if specified, must be a non-negative integer";
        errors.invalid(field, percent.to_string(), detail);
    }
}

fn validate_shares(field: String, shares: i32, errors: &mut FieldErrors) {
    if shares < 0 {
        errors.invalid(field, shares.to_string(), "must be a non-negative integer");
    }
}

fn validate_lendable_percent(field: &str, percent: i32, errors: &mut FieldErrors) {
    if !(0..=100).contains(&percent) {
        let detail = "must be between 0 and 100, inclusive";
        errors.invalid(field.to_owned(), percent.to_string(), detail);
    }
}

fn validate_limit_response(response: &LimitResponse, errors: &mut FieldErrors) {
    let field = "spec.limited.limitResponse.queuing".to_owned();
    match (&response.kind, &response.queuing) {
        (LimitResponseType::Queue, Some(queuing)) => validate_queuing(*queuing, errors),
        (LimitResponseType::Queue, None) => {
            // Upstream's text has the wrong word too, here and below.
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.required(field, detail);
        }
        (LimitResponseType::Reject, Some(_)) => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            errors.forbidden(field, detail);
        }
        (LimitResponseType::Reject, None) => {}
        (LimitResponseType::Other(text), _) => {
            let field = "spec.limited.limitResponse.type".to_owned();
            errors.not_supported(
                field,
                go_text::quote(text.as_bytes()),
                LimitResponseType::ALLOWED,
            );
        }
    }
}

fn validate_queuing(queuing: QueuingConfiguration, errors: &mut FieldErrors) {
    let QueuingConfiguration {
        queues,
        hand_size,
        queue_length_limit,
    } = queuing;
    let mut invalid = |name: &str, value: i32, detail: &str| {
        let field = format!("spec.limited.limitResponse.queuing.{name}");
        errors.invalid(field, value.to_string(), detail);
    };
    if queue_length_limit <= 0 {
        invalid("queueLengthLimit", queue_length_limit, "must be positive");
    }
    if queues <= 0 {
        invalid("queues", queues, "must be positive");
    } else if queues > MAX_QUEUES {
        invalid(
            "queues",
            queues,
            &format!("must not be greater than {MAX_QUEUES}"),
        );
    }
    if hand_size <= 0 {
        invalid("handSize", hand_size, "must be positive");
    } else if hand_size > queues {
        let detail = format!("should not be greater than queues ({queues})");
        invalid("handSize", hand_size, &detail);
    } else if exceeds_hash_bits(queues, hand_size) {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand_size} should \
             not be greater than {MAX_HASH_BITS}"
        );
        invalid("handSize", hand_size, &detail);
    }
}

/// Whether `ceil(log2(queues) * handSize)` exceeds the maximum, as `RequiredEntropyBits` computes
/// it, but without floats.
fn exceeds_hash_bits(queues: i32, hand_size: i32) -> bool {
    let (Ok(queues), Ok(hand_size)) = (u128::try_from(queues), u32::try_from(hand_size)) else {
        return false;
    };
    queues
        .checked_pow(hand_size)
        .is_none_or(|hands| hands > 1 << MAX_HASH_BITS)
}
