//! Warnings about PriorityLevelConfigurations.

use super::elephants;
use super::elephants::Remedy;
use super::objects::{ObjectSet, finding_at};
use super::rule::{LintFinding, Rule};
use weir_flowcontrol::concurrency::level_limits::LevelLimits;
use weir_flowcontrol::matching::CompiledLevel;
use weir_kubernetes::api::flowcontrol::{
    LimitResponseType, LimitedPriorityLevelConfiguration, LocatedObject, QueuingConfiguration,
};

/// All warnings about the levels of files.
pub fn lint(set: &ObjectSet<'_>) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    let limits = level_limits(set);
    for (file, level) in set.own_levels() {
        let name = &level.metadata.name;
        let mut schemas = set.schemas();
        let mut is_referenced =
            schemas.any(|schema| schema.spec.priority_level_configuration == *name);
        is_referenced |= !set.is_complete();
        if !is_referenced {
            let message = format!("no FlowSchema leads to PriorityLevelConfiguration {name:?}");
            findings.push(finding_at(
                file,
                Rule::LevelUnreferenced,
                "metadata.name",
                message,
            ));
        }
        let Some(limited) = &level.spec.limited else {
            continue;
        };
        let own = limits.iter().find(|one| one.name == name);
        findings.extend(own.and_then(|own| without_seats(file, limited, own)));
        if let Some(own) = own.filter(|_| set.is_complete()) {
            findings.extend(percents(file, limited, own));
        }
        if let Some(queuing) = limited.limit_response.queuing {
            findings.extend(hand_size(set, file, queuing, name));
        }
    }
    findings
}

/// The seats of a level in force.
struct AttainableSeats<'s> {
    name: &'s str,
    limits: LevelLimits,
    /// The seats that it can have at most, since other levels keep some.
    most: u32,
}

fn level_limits<'s>(set: &'s ObjectSet<'_>) -> Vec<AttainableSeats<'s>> {
    let levels = set.matcher().levels();
    let shares = levels
        .iter()
        .map(|level| u64::from(level.spec.nominal_concurrency_shares));
    let share_sum = shares.sum();
    let limits: Vec<_> = levels
        .iter()
        .map(|level| LevelLimits::from_spec(&level.spec, share_sum, set.server_concurrency_limit()))
        .collect();
    let nominal = limits
        .iter()
        .fold(0_u32, |sum, limits| sum.saturating_add(limits.nominal));
    // Exempt levels may lend all they have: the seats that they use are not subtracted.
    let kept = levels
        .iter()
        .zip(&limits)
        .filter(|(level, _)| !level.is_exempt());
    let kept = kept.fold(0_u32, |sum, (_, limits)| sum.saturating_add(limits.lower));
    let seats = |(level, limits): (&'s CompiledLevel, &LevelLimits)| {
        let kept_by_others = kept.saturating_sub(limits.lower);
        AttainableSeats {
            name: &level.spec.name,
            limits: *limits,
            most: nominal.saturating_sub(kept_by_others),
        }
    };
    levels.iter().zip(&limits).map(seats).collect()
}

fn without_seats(
    file: &LocatedObject<'_>,
    limited: &LimitedPriorityLevelConfiguration,
    own: &AttainableSeats<'_>,
) -> Option<LintFinding> {
    if own.limits.nominal > 0 {
        return None;
    }
    let borrows = own.most > 0 && own.limits.upper > 0;
    let more = if borrows {
        ", and as many as it can borrow from levels that leave theirs unused"
    } else {
        ""
    };
    let what = match limited.limit_response.kind {
        LimitResponseType::Queue => "it executes one request at a time, and the others wait",
        LimitResponseType::Reject | LimitResponseType::Other(_) => {
            "it admits one request at a time instead of none"
        }
    };
    let message = format!(
        "PriorityLevelConfiguration {:?} has no seats of its own: {what}{more}",
        own.name
    );
    Some(finding_at(
        file,
        Rule::LevelWithoutSeats,
        &format!("spec.limited.{}", file.shares_field()),
        message,
    ))
}

fn percents(
    file: &LocatedObject<'_>,
    limited: &LimitedPriorityLevelConfiguration,
    own: &AttainableSeats<'_>,
) -> Vec<LintFinding> {
    let LevelLimits {
        nominal,
        lower,
        upper,
    } = own.limits;
    let mut findings = Vec::new();
    let mut add = |field: &str, message: String| {
        let field = format!("spec.limited.{field}");
        findings.push(finding_at(
            file,
            Rule::PercentWithoutEffect,
            &field,
            message,
        ));
    };
    let seats = |count: u32| format!("{count} seat{}", if count == 1 { "" } else { "s" });
    let lendable = limited.lendable_percent;
    if nominal > 0 && lendable > 0 && lower == nominal {
        let message = format!(
            "{lendable} % of {} rounds to 0: the level lends none",
            seats(nominal)
        );
        add("lendablePercent", message);
    }
    match limited.borrowing_limit_percent {
        Some(percent) if nominal > 0 && percent > 0 && upper == nominal => {
            let message = format!(
                "{percent} % of {} rounds to 0: the level borrows none",
                seats(nominal)
            );
            add("borrowingLimitPercent", message);
        }
        Some(percent) if percent > 0 && upper >= own.most && nominal < own.most => {
            let message = format!(
                "never reached: the level may have {}, but the others always keep theirs, which leaves it {} \
                 at most; leave the field out, or set less than {}",
                seats(upper),
                seats(own.most),
                percent_to_reach(own.most - nominal, nominal)
            );
            add("borrowingLimitPercent", message);
        }
        _ => {}
    }
    findings
}

/// The percentage of `nominal` that is `borrowed`, rounded up.
fn percent_to_reach(borrowed: u32, nominal: u32) -> u64 {
    let hundredfold = u64::from(borrowed).saturating_mul(100);
    hundredfold.div_ceil(u64::from(nominal.max(1)))
}

fn hand_size(
    set: &ObjectSet<'_>,
    file: &LocatedObject<'_>,
    queuing: QueuingConfiguration,
    name: &str,
) -> Option<LintFinding> {
    let mut schemas = set
        .schemas()
        .filter(|schema| schema.spec.priority_level_configuration == name);
    let is_one_flow = schemas
        .next()
        .is_none_or(|first| first.spec.distinguisher_method.is_none() && schemas.next().is_none());
    if is_one_flow && set.is_complete() {
        return None;
    }
    let (queues, hand) = (
        u32::try_from(queuing.queues).ok()?,
        u32::try_from(queuing.hand_size).ok()?,
    );
    let two = elephants::two_elephants(queues, hand)?;
    if !two.is_intolerable() {
        return None;
    }
    let one = elephants::one_elephant(queues, hand)?;
    let better = match elephants::remedy(queues, hand) {
        Some(Remedy::HandSize(size)) => format!("; with handSize {size} it is less than 1 %"),
        Some(Remedy::Queues(more)) => format!("; with {more} queues it is less than 1 %"),
        None => String::new(),
    };
    let message = format!(
        "with {queues} queues and hands of {hand}, two flows with many requests fill all queues of another flow with \
         a probability of {two} (one: {one}){better}"
    );
    Some(finding_at(
        file,
        Rule::HandSize,
        "spec.limited.limitResponse.queuing.handSize",
        message,
    ))
}
