//! `concurrency_allocation`: the limits of a fresh server. `borrowing`: how they follow demand and
//! configuration.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says so when a case is not as described"
)]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_flowcontrol::concurrency::demand::SeatDemand;
use weir_flowcontrol::concurrency::level_limits::LevelSpec;
use weir_flowcontrol::concurrency::{ConcurrencyLimits, LevelSeats};
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::fairqueuing::shuffle_sharding::Dealer;

use crate::support;

#[test]
fn every_level_gets_the_limits_of_upstream() {
    for case in support::cases("concurrency_allocation") {
        let server = ConcurrencyReplay::start(&case["input"]);
        let expected = &case["expected"];
        assert_eq!(
            server.concurrency.nominal_limit_sum(),
            expected["nominal_cl_sum"],
            "{case}"
        );
        for level in server.levels_of(expected) {
            let wanted = &expected["levels"][&level.spec.name];
            assert_limits(level, wanted, &case);
            assert_eq!(level.max_seats.unwrap_or(0), wanted["max_seats"], "{case}");
        }
    }
}

#[test]
fn seats_are_lent_and_reclaimed_as_upstream() {
    for case in support::cases("borrowing") {
        let name = case["name"].as_str().unwrap();
        let expected = case["expected"].as_array().unwrap();
        let mut server = ConcurrencyReplay::start(&case["input"]);
        server.assert_state(&format!("{name} at the start"), &expected[0]);
        let steps = case["input"]["steps"].as_array().unwrap();
        assert_eq!(steps.len() + 1, expected.len(), "{name}");
        for (index, (step, expected)) in steps.iter().zip(&expected[1..]).enumerate() {
            server.step(step);
            server.assert_state(&format!("{name} after step {index}"), expected);
        }
    }
}

/// The priority levels of a server and their demand.
struct ConcurrencyReplay {
    origin: Instant,
    concurrency: ConcurrencyLimits,
    demand: HashMap<String, SeatDemand>,
}

impl ConcurrencyReplay {
    #[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
    fn start(input: &Value) -> Self {
        let limit = u32::try_from(input["server_concurrency_limit"].as_u64().unwrap()).unwrap();
        let mut server = Self {
            origin: Instant::now(),
            concurrency: ConcurrencyLimits::new(limit),
            demand: HashMap::new(),
        };
        server.configure(server.origin, &input["priority_levels"]);
        server
    }

    /// Mandatory levels that are not given get defaults, or stay as they are.
    fn configure(&mut self, now: Instant, levels: &Value) {
        let mut specs: Vec<LevelSpec> = levels.as_array().unwrap().iter().map(spec).collect();
        for (name, queuing, shares) in [
            ("exempt", Queuing::Exempt, 0),
            ("catch-all", Queuing::Reject, 5),
        ] {
            if specs.iter().any(|spec| spec.name == name) {
                continue;
            }
            let before = self
                .concurrency
                .levels()
                .iter()
                .find(|level| level.spec.name == name);
            specs.push(before.map_or_else(
                || LevelSpec {
                    name: name.to_owned(),
                    queuing,
                    nominal_concurrency_shares: shares,
                    lendable_percent: 0,
                    borrowing_limit_percent: None,
                },
                |level| level.spec.clone(),
            ));
        }
        let demand = &mut self.demand;
        let request = |name: &str| {
            demand
                .entry(name.to_owned())
                .or_insert_with(|| SeatDemand::new(now))
                .reset(now)
        };
        // If the seats cannot be divided, upstream logs that and continues.
        let _ = self.concurrency.configure(specs, request);
    }

    fn step(&mut self, step: &Value) {
        for (name, changes) in step["demand"].as_object().into_iter().flatten() {
            for change in changes.as_array().unwrap() {
                let at = self.at(&change[0]);
                self.demand
                    .get_mut(name)
                    .unwrap()
                    .set(at, change[1].as_u64().unwrap());
            }
        }
        let now = self.at(&step["t_ns"]);
        match step["kind"].as_str().unwrap() {
            "adjust" => {
                let demand = &mut self.demand;
                let request = |name: &str| demand.get_mut(name).unwrap().reset(now);
                let _ = self.concurrency.adjust(request);
            }
            "reconfigure" => self.configure(now, &step["priority_levels"]),
            kind => panic!("a step of kind {kind}"),
        }
    }

    fn at(&self, t_ns: &Value) -> Instant {
        self.origin + Duration::from_nanos(t_ns.as_u64().unwrap())
    }

    fn levels_of(&self, expected: &Value) -> &[LevelSeats] {
        let names = expected["levels"].as_object().unwrap().len();
        assert_eq!(self.concurrency.levels().len(), names, "{expected}");
        self.concurrency.levels()
    }

    fn assert_state(&self, at: &str, expected: &Value) {
        assert_eq!(
            self.concurrency.nominal_limit_sum(),
            expected["nominal_cl_sum"],
            "{at}"
        );
        for level in self.levels_of(expected) {
            let wanted = &expected["levels"][&level.spec.name];
            assert_limits(level, wanted, &Value::from(at));
            let name = &level.spec.name;
            assert_eq!(
                level.demand.high_watermark, wanted["high_watermark"],
                "{at}: {name}"
            );
            assert_eq!(
                level.min_current_limit, wanted["min_current_cl"],
                "{at}: {name}"
            );
            for (what, value) in [
                ("avg", level.demand.average),
                ("stdev", level.demand.deviation),
                ("smoothed", level.demand.smoothed),
                ("target", level.target),
            ] {
                let Some(wanted) = wanted.get(what) else {
                    assert_eq!((name.as_str(), what), ("exempt", "target"), "{at}");
                    continue;
                };
                let wanted = wanted.as_f64().unwrap();
                let near = (value - wanted).abs() <= 1e-9 * wanted.abs().max(1.0);
                assert!(near, "{at}: {what} of {name} is {value}, not {wanted}");
            }
        }
    }
}

fn assert_limits(level: &LevelSeats, wanted: &Value, context: &Value) {
    let name = &level.spec.name;
    assert_eq!(
        level.limits.nominal, wanted["nominal_cl"],
        "nominal limit of {name}: {context}"
    );
    assert_eq!(
        level.limits.lower, wanted["min_cl"],
        "lower limit of {name}: {context}"
    );
    assert_eq!(
        level.limits.upper, wanted["max_cl"],
        "upper limit of {name}: {context}"
    );
    assert_eq!(
        level.current_limit, wanted["current_cl"],
        "current limit of {name}: {context}"
    );
}

fn spec(level: &Value) -> LevelSpec {
    let number = |name: &str| {
        level[name]
            .as_u64()
            .map(|number| u32::try_from(number).unwrap())
    };
    let queues = i32::try_from(number("queues").unwrap()).unwrap();
    let queuing = match (level["type"].as_str().unwrap(), queues) {
        ("Exempt", _) => Queuing::Exempt,
        (_, 0) => Queuing::Reject,
        _ => Queuing::Queue {
            dealer: Dealer::new(queues, i32::try_from(number("hand_size").unwrap()).unwrap())
                .unwrap(),
            queue_length_limit: usize::try_from(number("queue_length_limit").unwrap()).unwrap(),
        },
    };
    LevelSpec {
        name: level["name"].as_str().unwrap().to_owned(),
        queuing,
        nominal_concurrency_shares: number("nominal_concurrency_shares").unwrap_or(0),
        lendable_percent: number("lendable_percent").unwrap_or(0),
        borrowing_limit_percent: number("borrowing_limit_percent"),
    }
}
