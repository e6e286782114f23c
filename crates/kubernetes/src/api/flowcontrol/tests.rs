//! Manifests in every form and version, and the reports on wrong ones.

use super::manifest::decode;
use super::read::read;
use super::types::{LimitedPriorityLevelConfiguration, Object, PriorityLevelConfiguration};
use crate::document::{Diagnostics, Strictness, parse_all};

/// The objects of a text, by kind and name, and the report.
fn read_text(text: &str) -> (Vec<String>, String) {
    let mut diagnostics = Diagnostics::default();
    let documents = parse_all("f.yaml", text, &mut diagnostics);
    let objects = read(&documents, &mut diagnostics);
    let name = |object: &Object| format!("{} {}", object.kind(), object.metadata().name);
    (objects.iter().map(name).collect(), diagnostics.to_string())
}

/// A limited level in the given version, and the errors that Kubernetes would find.
fn level(version: &str, annotations: &str, limited: &str) -> (PriorityLevelConfiguration, String) {
    let text = format!(
        "apiVersion: flowcontrol.apiserver.k8s.io/{version}\nkind: PriorityLevelConfiguration\n\
         metadata: {{name: x, annotations: {{{annotations}}}}}\n\
         spec: {{type: Limited, limited: {{{limited}, limitResponse: {{type: Reject}}}}}}\n"
    );
    let mut diagnostics = Diagnostics::default();
    let documents = parse_all("f", &text, &mut diagnostics);
    let mut found = decode(&documents[0], Strictness::Strict, &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "", "{text}");
    let manifest = found.remove(0);
    let errors: Vec<String> = manifest
        .validate()
        .iter()
        .map(ToString::to_string)
        .collect();
    let Object::PriorityLevelConfiguration(level) = manifest.object else {
        panic!("{text}")
    };
    (level, errors.join("\n"))
}

fn limited(level: &PriorityLevelConfiguration) -> &LimitedPriorityLevelConfiguration {
    level.spec.limited.as_ref().unwrap()
}

const PRESERVE: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares: ''";

#[test]
fn shares_mean_the_same_in_every_version() {
    for (version, annotations, given, shares) in [
        ("v1", "", "lendablePercent: 1", 30),
        ("v1", "", "nominalConcurrencyShares: 0", 0),
        ("v1", "", "nominalConcurrencyShares: 7", 7),
        ("v1beta3", "", "nominalConcurrencyShares: 0", 30),
        ("v1beta3", PRESERVE, "nominalConcurrencyShares: 0", 0),
        ("v1beta3", PRESERVE, "lendablePercent: 1", 0),
        ("v1beta3", "", "nominalConcurrencyShares: 7", 7),
        ("v1beta2", "", "assuredConcurrencyShares: 0", 30),
        ("v1beta2", "", "assuredConcurrencyShares: 7", 7),
        ("v1beta1", "", "assuredConcurrencyShares: 7", 7),
        ("v1beta1", "", "lendablePercent: 1", 30),
    ] {
        let (level, errors) = level(version, annotations, given);
        assert_eq!(errors, "", "{version} {given}");
        assert_eq!(
            limited(&level).nominal_concurrency_shares,
            shares,
            "{version} {given}"
        );
        assert_eq!(level.metadata.annotations, []);
    }
}

#[test]
fn errors_name_the_shares_by_the_field_of_the_version() {
    let negative = "Invalid value: -1: must be a non-negative integer";
    for version in ["v1beta1", "v1beta2"] {
        let (_, errors) = level(version, "", "assuredConcurrencyShares: -1");
        assert_eq!(
            errors,
            format!("spec.limited.assuredConcurrencyShares: {negative}")
        );
    }
    for version in ["v1", "v1beta3"] {
        let (_, errors) = level(version, "", "nominalConcurrencyShares: -1");
        assert_eq!(
            errors,
            format!("spec.limited.nominalConcurrencyShares: {negative}")
        );
    }
}

#[test]
fn the_annotation_for_zero_shares_applies_to_v1beta3_only() {
    for version in ["v1", "v1beta2", "v1beta1"] {
        let (level, errors) = level(version, PRESERVE, "lendablePercent: 1");
        assert!(
            errors.starts_with("metadata.annotations: Forbidden: annotation "),
            "{errors}"
        );
        assert_eq!(limited(&level).nominal_concurrency_shares, 30);
    }
}

#[test]
fn lists_of_every_kind_are_read() {
    let schema = "{metadata: {name: NAME}, spec: {priorityLevelConfiguration: {name: x}}}";
    let text = format!(
        "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchemaList\n\
         metadata: {{resourceVersion: '5'}}\nitems:\n- {}\n- {}\n---\n\
         apiVersion: v1\nkind: List\nitems:\n\
         - apiVersion: flowcontrol.apiserver.k8s.io/v1\n  kind: PriorityLevelConfigurationList\n  items: []\n\
         - apiVersion: flowcontrol.apiserver.k8s.io/v1beta3\n  kind: PriorityLevelConfiguration\n  \
         metadata: {{name: c}}\n  spec: {{type: Limited, limited: {{limitResponse: {{type: Reject}}}}}}\n",
        schema.replace("NAME", "a"),
        schema.replace("NAME", "b"),
    );
    let objects = [
        "FlowSchema a",
        "FlowSchema b",
        "PriorityLevelConfiguration c",
    ];
    assert_eq!(
        read_text(&text),
        (objects.map(str::to_owned).to_vec(), String::new())
    );
}

#[test]
fn kubectl_output_is_read_without_warnings() {
    let text = r#"{"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {
        "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"},
        "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1, "name": "x", "resourceVersion": "62",
        "uid": "c3b5b4ed-655f-452c-8e4e-8c33826eedb6",
        "managedFields": [{"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {".": {}}}, "manager": "m", "operation": "Apply"}]},
        "spec": {"matchingPrecedence": 10, "priorityLevelConfiguration": {"name": "y"}},
        "status": {"conditions": [{"lastTransitionTime": "2026-01-01T00:00:00Z", "message": "m",
            "reason": "Found", "status": "False", "type": "Dangling"}]}}"#;
    assert_eq!(
        read_text(text),
        (vec!["FlowSchema x".to_owned()], String::new())
    );
}

#[test]
fn every_fault_is_reported_with_its_location() {
    let text = "apiVersion: v1
kind: List
items:
- apiVersion: flowcontrol.apiserver.k8s.io/v1
  kind: FlowSchema
  metadata: {name: a}
  spec:
    matchingPrecedence: 20000
    extra: 1
    rules:
    - subjects:
      - kind: Nobody
- apiVersion: flowcontrol.apiserver.k8s.io/v1
  kind: PriorityLevelConfiguration
  metadata:
    name: b
  spec:
    type: 5
- kind: Pod
  apiVersion: v1
- apiVersion: flowcontrol.apiserver.k8s.io/v2
  kind: FlowSchema
- x
";
    let (objects, diagnostics) = read_text(text);
    assert_eq!(objects, [""; 0]);
    let start = "expected a FlowSchema or PriorityLevelConfiguration of flowcontrol.apiserver.k8s.io/v1 \
                 (or v1beta1 to v1beta3) or a list of them, got for kind";
    let expected = [
        &format!(
            "f.yaml:19:9: items[2]: {start} the string \"Pod\" and for apiVersion the string \"v1\""
        ),
        &format!(
            "f.yaml:22:9: items[3]: {start} the string \"FlowSchema\" and for apiVersion the string \
             \"flowcontrol.apiserver.k8s.io/v2\""
        ),
        "f.yaml:23:3: items[4]: expected a mapping, got a string",
        "f.yaml:9:5: warning: items[0].spec.extra: unknown field; allowed here: priorityLevelConfiguration, \
         matchingPrecedence, distinguisherMethod, rules",
        "f.yaml:18:11: items[1].spec.type: expected a string, got the number 5",
        "f.yaml:8:25: items[0].spec.matchingPrecedence: Invalid value: 20000: must not be greater than 10000",
        "f.yaml:8:5: items[0].spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
        "f.yaml:12:15: items[0].spec.rules[0].subjects[0].kind: Unsupported value: \"Nobody\": supported values: \
         \"Group\", \"ServiceAccount\", \"User\"",
        "f.yaml:11:7: items[0].spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has \
         to be non-empty",
    ];
    assert_eq!(diagnostics.lines().collect::<Vec<_>>(), expected);
}

/// The report on a schema with this metadata beside its name, and this condition.
fn report_faults(metadata: &str, condition: &str) -> Diagnostics {
    let text = format!(
        r#"{{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema",
        "metadata":{{"name":"a"{metadata}}},"status":{{"conditions":[{{"type":"t"{condition}}}]}}}}"#
    );
    let mut diagnostics = Diagnostics::default();
    let documents = parse_all("f", &text, &mut diagnostics);
    let found = decode(&documents[0], Strictness::Warn, &mut diagnostics);
    assert_eq!(
        found.is_empty(),
        diagnostics.has_errors(),
        "{text}: {diagnostics}"
    );
    diagnostics
}

#[test]
fn metadata_and_conditions_must_have_upstream_types() {
    for wrong in [
        r#""annotations":{"a":5}"#,
        r#""creationTimestamp":5"#,
        r#""creationTimestamp":"x""#,
        r#""creationTimestamp":"""#,
        r#""deletionGracePeriodSeconds":"x""#,
        r#""deletionTimestamp":{}"#,
        r#""finalizers":"x""#,
        r#""finalizers":[5]"#,
        r#""generateName":5"#,
        r#""generation":"a""#,
        r#""generation":9223372036854775808"#,
        r#""managedFields":{}"#,
        r#""managedFields":[{"time":"x"}]"#,
        r#""managedFields":[{"manager":5}]"#,
        r#""namespace":5"#,
        r#""ownerReferences":{}"#,
        r#""ownerReferences":[{"controller":"yes"}]"#,
        r#""ownerReferences":[{"uid":5}]"#,
        r#""resourceVersion":5"#,
        r#""selfLink":[]"#,
        r#""uid":true"#,
    ] {
        let diagnostics = report_faults(&format!(",{wrong}"), "");
        assert_eq!(diagnostics.errors().count(), 1, "{wrong}: {diagnostics}");
    }
    for wrong in [
        r#""lastTransitionTime":"x""#,
        r#""message":5"#,
        r#""reason":5"#,
        r#""status":true"#,
    ] {
        let diagnostics = report_faults("", &format!(",{wrong}"));
        assert_eq!(diagnostics.errors().count(), 1, "{wrong}: {diagnostics}");
    }
    let right = r#","creationTimestamp":null,"generation":-1,"finalizers":["x",null],"managedFields":
        [{"time":"2024-02-03T04:05:06Z","fieldsV1":{"f:spec":{}},"fieldsType":"FieldsV1"}],
        "ownerReferences":[{"controller":true,"uid":"u"}],"deletionGracePeriodSeconds":null"#;
    let diagnostics = report_faults(right, r#","lastTransitionTime":null,"status":"True""#);
    assert_eq!(diagnostics.to_string(), "");
}

#[test]
fn unknown_fields_are_reported_in_document_order() {
    let text = r#"{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","bogus":1,"kind":"FlowSchema",
        "metadata":{"managedFields":[{"bogus":1}],"ownerReferences":[{"bogus":1}]},
        "spec":{"bogus":1,"rules":[{"bogus":1,"bogus":2}],"zero":0},
        "status":{"conditions":[{"bogus":1}]},"zero":0}"#;
    let mut diagnostics = Diagnostics::default();
    let documents = parse_all("f", text, &mut diagnostics);
    decode(&documents[0], Strictness::Warn, &mut diagnostics);
    let fields: Vec<&str> = diagnostics.warnings().map(|w| w.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "bogus",
            "metadata.managedFields[0].bogus",
            "metadata.ownerReferences[0].bogus",
            "spec.bogus",
            "spec.rules[0].bogus",
            "spec.zero",
            "status.conditions[0].bogus",
            "zero",
        ]
    );
}

#[test]
fn two_objects_with_one_name_are_a_fault() {
    let one = "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {name: a}\n\
               spec: {priorityLevelConfiguration: {name: x}}\n";
    let (objects, diagnostics) = read_text(&format!("{one}---\n{one}"));
    assert_eq!(objects, ["FlowSchema a"]);
    assert_eq!(
        diagnostics,
        "f.yaml:8:18: metadata.name: FlowSchema \"a\" is defined twice, first at f.yaml:1:1"
    );
}

/// The report on a schema with this metadata.
fn validate_metadata(metadata: &str) -> String {
    let text = format!(
        "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {{{metadata}}}\n\
         spec: {{priorityLevelConfiguration: {{name: x}}}}\n"
    );
    read_text(&text).1
}

#[test]
fn finalizers_are_validated_as_upstream_does() {
    for right in ["kubernetes", "orphan", "foregroundDeletion", "a.example/b"] {
        assert_eq!(
            validate_metadata(&format!("name: a, finalizers: [{right}]")),
            ""
        );
    }
    let unqualified = "name is neither a standard finalizer name nor is it fully qualified";
    assert_eq!(
        validate_metadata("name: a, finalizers: [a.example/b, cleanup]"),
        format!("f.yaml:3:47: metadata.finalizers[1]: Invalid value: \"cleanup\": {unqualified}")
    );
    let diagnostics = validate_metadata("name: a, finalizers: [a_b!]");
    let lines: Vec<&str> = diagnostics.lines().collect();
    let invalid = "metadata.finalizers: Invalid value: \"a_b!\": name part must consist of";
    assert!(lines[0].contains(invalid), "{diagnostics}");
    assert!(lines[1].ends_with(unqualified), "{diagnostics}");
    assert_eq!(lines.len(), 2, "{diagnostics}");
    let both = validate_metadata("name: a, finalizers: [orphan, foregroundDeletion]");
    assert!(
        both.ends_with("finalizer orphan and foregroundDeletion cannot be both set"),
        "{both}"
    );
}

#[test]
fn owner_references_are_validated_as_upstream_does() {
    let whole = "apiVersion: apps/v1, kind: Deployment, name: d, uid: u";
    assert_eq!(
        validate_metadata(&format!(
            "name: a, ownerReferences: [{{{whole}, controller: true}}, {{{whole}}}]"
        )),
        ""
    );
    let errors = |references: &str| -> Vec<String> {
        let diagnostics = validate_metadata(&format!("name: a, ownerReferences: [{references}]"));
        let after_place = |line: &str| line.split_once(": ").unwrap().1.to_owned();
        diagnostics.lines().map(after_place).collect()
    };
    assert_eq!(
        errors("{}"),
        [
            "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty",
            "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
            "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
            "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
        ]
    );
    for api_version in ["apps/", "/", "a/b/c"] {
        assert_eq!(
            errors(&format!(
                "{{apiVersion: {api_version}, kind: k, name: d, uid: u}}"
            )),
            [format!(
                "metadata.ownerReferences.apiVersion: Invalid value: \"{api_version}\": version must not be empty"
            )]
        );
    }
    assert_eq!(
        errors("{apiVersion: v1, kind: Event, name: d, uid: u}"),
        [
            "metadata.ownerReferences: Invalid value: /v1, Kind=Event is disallowed from being an owner"
        ]
    );
    let controller = format!("{{{whole}, controller: true}}");
    assert_eq!(
        errors(&format!("{controller}, {controller}")),
        [
            "metadata.ownerReferences: Invalid value: Only one reference can have Controller set to true. \
          Found \"true\" in references for Deployment/d and Deployment/d"
        ]
    );
}

#[test]
fn a_name_is_generated_from_generate_name_alone() {
    let schema = |metadata: &str| {
        format!(
            "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {{{metadata}}}\n\
             spec: {{priorityLevelConfiguration: {{name: x}}}}\n"
        )
    };
    let long = "x".repeat(80);
    let text = [
        schema("generateName: team-"),
        schema("generateName: team-"),
        schema(&format!("generateName: {long}")),
        schema("generateName: team-, name: given"),
    ]
    .join("---\n");
    let (objects, diagnostics) = read_text(&text);
    assert_eq!(diagnostics, "");
    assert_eq!(read_text(&text).0, objects, "the same at each start");
    assert_eq!(objects[3], "FlowSchema given");
    assert_ne!(objects[0], objects[1]);
    for (object, beginning) in objects.iter().zip(["team-", "team-", &long[..58]]) {
        let end = object
            .strip_prefix(&format!("FlowSchema {beginning}"))
            .unwrap();
        assert_eq!(end.len(), 5, "{object}");
    }
    let diagnostics = validate_metadata("generateName: Team-");
    assert!(
        diagnostics.contains(
            "metadata.generateName: Invalid value: \"Team-\": a lowercase RFC 1123 subdomain"
        ),
        "{diagnostics}"
    );
    assert!(
        diagnostics.contains("metadata.name: Invalid value: \"Team-"),
        "{diagnostics}"
    );
    assert_eq!(validate_metadata("generateName: a-").len(), 0);
    let neither = validate_metadata("labels: {}");
    assert!(
        neither.ends_with("metadata.name: Required value: name or generateName is required"),
        "{neither}"
    );
}

#[test]
fn mangled_manifests_cause_no_panic() {
    let sample = include_str!("mandatory.yaml");
    let words = [
        "~",
        "[]",
        "{}",
        "-1",
        "2147483648",
        "'*'",
        "\"\"",
        "yes",
        "5.5",
        "&a",
        "*a",
        ":",
        "\n- ",
    ];
    for seed in 0..3000 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut text: Vec<&str> = sample.split_inclusive([' ', '\n', ',']).collect();
        for _ in 0..random.usize(1..10) {
            let at = random.usize(..text.len());
            match random.u8(..3) {
                0 => text[at] = words[random.usize(..words.len())],
                1 => text.insert(at, words[random.usize(..words.len())]),
                _ => drop(text.remove(at)),
            }
        }
        let _ = read_text(&text.concat());
    }
}

#[test]
fn an_enforcement_that_does_not_exist_is_an_error_and_other_annotations_are_not() {
    let level = |annotation: &str| {
        read_text(&format!(
            "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: PriorityLevelConfiguration\n\
             metadata:\n  name: x\n  annotations:\n    {annotation}\n\
             spec: {{type: Limited, limited: {{limitResponse: {{type: Reject}}}}}}\n"
        ))
    };
    for fine in [
        "weir/enforcement: DryRun",
        "weir/enforcement: Enforce",
        "weir/other: x",
    ] {
        assert_eq!(level(fine).1, "", "{fine}");
    }
    let (objects, report) = level("weir/enforcement: dryrun");
    assert!(objects.is_empty());
    assert_eq!(
        report,
        "f.yaml:6:5: metadata.annotations[weir/enforcement]: must be Enforce or DryRun, got \"dryrun\""
    );
}
