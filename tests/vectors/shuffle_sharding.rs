//! `shuffle_shard`: hashes of flows and their hands. `shuffle_shard_validation`: valid hand sizes.

use serde_json::Value;
use weir_flowcontrol::fairqueuing::shuffle_sharding::{Dealer, flow_hash, required_entropy_bits};

use crate::support;

#[test]
fn every_flow_is_dealt_the_hand_of_upstream() {
    for case in support::cases("shuffle_shard") {
        let Value::Object(input) = &case["input"] else {
            panic!("no input: {case}")
        };
        let hash = match input.get("hash") {
            Some(hash) => hash.as_str().unwrap().parse().unwrap(),
            None => flow_hash(
                input["flow_schema"].as_str().unwrap(),
                input["distinguisher"].as_str().unwrap(),
            ),
        };
        assert_eq!(hash.to_string(), case["expected"]["hash"], "{input:?}");
        for (sizes, hand) in case["expected"]["hands"].as_object().unwrap() {
            let (deck_size, hand_size) = sizes.split_once('/').unwrap();
            let dealer =
                Dealer::new(deck_size.parse().unwrap(), hand_size.parse().unwrap()).unwrap();
            assert_eq!(
                serde_json::json!(dealer.deal(hash).cards()),
                *hand,
                "{sizes} of {input:?}"
            );
        }
    }
}

#[test]
fn dealers_are_valid_as_upstream() {
    for case in support::cases("shuffle_shard_validation") {
        let size = |name: &str| i32::try_from(case["input"][name].as_i64().unwrap()).unwrap();
        let (deck_size, hand_size) = (size("deck_size"), size("hand_size"));
        let expected = &case["expected"];
        let dealer = Dealer::new(deck_size, hand_size);
        assert_eq!(
            dealer.is_ok(),
            expected["dealer_ok"].as_bool().unwrap(),
            "{case}"
        );
        if let Err(error) = dealer {
            assert_eq!(error.to_string(), expected["dealer_error"], "{case}");
        }
        if let Some(bits) = expected.get("required_entropy_bits") {
            assert_eq!(
                serde_json::json!(required_entropy_bits(deck_size, hand_size)),
                *bits
            );
        }
    }
}
