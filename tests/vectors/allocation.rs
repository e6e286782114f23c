//! `compute_concurrency_allocation`: the solver alone, with the cases that it rejects.

#![expect(
    clippy::unwrap_used,
    reason = "a test says so when a case is not as described"
)]

use serde_json::Value;
use weir_flowcontrol::concurrency::allocation::{AllocationClass, allocate};

use crate::support;

#[test]
fn every_sum_is_divided_as_upstream() {
    for case in support::cases("compute_concurrency_allocation") {
        let number = |class: &Value, name: &str| class[name].as_f64().unwrap();
        let classes: Vec<AllocationClass> = case["input"]["classes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|class| AllocationClass {
                lower_bound: number(class, "lower_bound"),
                upper_bound: number(class, "upper_bound"),
                target: number(class, "target"),
            })
            .collect();
        let expected = &case["expected"];
        match allocate(case["input"]["required_sum"].as_i64().unwrap(), &classes) {
            Ok(made) => {
                let wanted = expected["allocs"]
                    .as_array()
                    .unwrap_or_else(|| panic!("{case}"));
                assert_eq!(made.allocations.len(), wanted.len(), "{case}");
                for (got, wanted) in made.allocations.iter().zip(wanted) {
                    assert_near(*got, wanted, &case);
                }
                assert_near(made.fair_proportion, &expected["fair_prop"], &case);
            }
            Err(error) => assert_eq!(error.to_string(), expected["error"], "{case}"),
        }
    }
}

fn assert_near(got: f64, wanted: &Value, case: &Value) {
    let wanted = wanted.as_f64().unwrap();
    let near = (got - wanted).abs() <= 1e-9 * wanted.abs().max(1.0);
    assert!(near, "{got} is not {wanted} in {case}");
}
