//! The objects that kube-apiserver creates itself.

use serde_json::json;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, Strictness};

use crate::support;

#[test]
fn the_built_in_objects_are_those_of_kubernetes() {
    let mut left: Vec<_> = [BootstrapClass::Mandatory, BootstrapClass::Suggested]
        .iter()
        .flat_map(|class| {
            bootstrap::objects(*class)
                .iter()
                .map(move |object| (*class, object))
        })
        .collect();
    for case in support::cases("bootstrap_objects") {
        let class = if case["input"]["class"] == json!("mandatory") {
            BootstrapClass::Mandatory
        } else {
            BootstrapClass::Suggested
        };
        let mut errors = Diagnostics::default();
        let documents = document::parse_all("case", &case["expected"].to_string(), &mut errors);
        let expected = flowcontrol::decode(&documents[0], Strictness::Strict, &mut errors);
        assert_eq!(errors.to_string(), "", "{}", case["name"]);
        let same =
            |(c, object): &(BootstrapClass, &_)| *c == class && **object == expected[0].object;
        let at = left.iter().position(same);
        let at = at.unwrap_or_else(|| panic!("{} is not built in as expected", case["input"]));
        left.remove(at);
    }
    assert!(left.is_empty(), "built in, but not by Kubernetes: {left:?}");
}
