//! Documents as operators and kubectl write them, and invalid ones.

use super::node_builder::MAX_DEPTH;
use super::parser::MAX_EXPANSION;
use super::{
    Content, Diagnostic, Diagnostics, MappingDecoder, Node, QuotingStyle, SourceLocation,
    Strictness, ValueDecoder, parse_all, parse_first_bounded,
};

fn parse(text: &str) -> Node {
    let mut diagnostics = Diagnostics::default();
    let mut nodes = parse_all("f", text, &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "", "{text}");
    assert_eq!(nodes.len(), 1, "{text}");
    nodes.remove(0)
}

/// The error of a text that cannot be parsed.
fn parse_error(text: &str) -> String {
    let mut diagnostics = Diagnostics::default();
    assert_eq!(parse_all("f", text, &mut diagnostics), [], "{text}");
    diagnostics.to_string()
}

/// The result of decoding a text as a mapping, and the diagnostics.
fn decode<T>(
    text: &str,
    strictness: Strictness,
    read: impl FnOnce(&mut MappingDecoder<'_>) -> T,
) -> (Option<T>, String) {
    let mut diagnostics = Diagnostics::default();
    let value = parse(text).decode(&mut diagnostics, "", strictness, read);
    (value, diagnostics.to_string())
}

fn line_and_column(node: &Node) -> (u32, u32) {
    (node.location.line, node.location.column)
}

#[test]
fn every_value_has_its_location() {
    let yaml = "# first\na: 1\nb:\n  - x\n  - c: 'y'\n    d: |\n      text\n";
    let json = "\n{\"a\": 1,\n\"b\":\n   [\"x\",\n    {\"c\":\"y\",\n     \"d\": \"text\\n\"}]}";
    for text in [yaml, json] {
        let node = parse(text);
        let b = node.field("b").unwrap();
        let Content::Sequence(items) = &b.content else {
            panic!("{b:?}")
        };
        assert_eq!(items[1].field("d").unwrap().as_str(), Some("text\n"));
    }
    let (yaml, json) = (parse(yaml), parse(json));
    let at = |node: &Node, path: &str| {
        let location = node.locate(path);
        (location.line, location.column)
    };
    assert_eq!(
        (line_and_column(&yaml), line_and_column(&json)),
        ((2, 1), (2, 1))
    );
    assert_eq!((at(&yaml, "a"), at(&json, "a")), ((2, 4), (2, 7)));
    assert_eq!((at(&yaml, "b[0]"), at(&json, "b[0]")), ((4, 5), (4, 5)));
    assert_eq!(
        (at(&yaml, "b[1].c"), at(&json, "b[1].c")),
        ((5, 8), (5, 10))
    );
    assert_eq!(
        at(&yaml, "b[1].nothing.at.all"),
        (5, 5),
        "the innermost that is there"
    );
    assert_eq!(at(&yaml, "b[7]"), (4, 3));
}

#[test]
fn diagnostics_are_displayed_one_per_line() {
    let mut diagnostics = Diagnostics::default();
    let location = SourceLocation {
        file: "f".into(),
        line: 2,
        column: 3,
    };
    diagnostics.report_error(&location, "a.b", "wrong");
    diagnostics.report_warning(&location, "a", "odd");
    diagnostics.report_error(&SourceLocation::whole_file("g"), "", "not there");
    assert_eq!(
        diagnostics.to_string(),
        "f:2:3: a.b: wrong\nf:2:3: warning: a: odd\ng: not there"
    );
    assert_eq!(
        (diagnostics.errors().count(), diagnostics.warnings().count()),
        (2, 1)
    );
    assert!(diagnostics.has_errors());
}

#[test]
fn a_stream_yields_its_documents_up_to_the_first_syntax_error() {
    let mut diagnostics = Diagnostics::default();
    let nodes = parse_all(
        "f",
        "# none\n---\n---\na: 1\n--- ~\n--- x\n---\nb: [\n",
        &mut diagnostics,
    );
    assert_eq!(
        nodes.iter().map(line_and_column).collect::<Vec<_>>(),
        [(4, 1), (6, 5)]
    );
    let errors: Vec<&Diagnostic> = diagnostics.errors().collect();
    assert_eq!((errors.len(), errors[0].location.line), (1, 9));
}

#[test]
fn syntax_errors_are_reported_with_their_line() {
    assert!(parse_error("a: 1\nb:\n\t- x\n").starts_with("f:3:2: tabs disallowed"));
    assert!(parse_error("a: 'x\n").starts_with("f:1:4: "));
    assert_eq!(
        parse_error("? [a]\n: 1"),
        "f:1:3: a key must be a string, not a list"
    );
    assert_eq!(
        parse_error("a: 1\n~: 2"),
        "f:2:1: a key must not be empty; quote it"
    );
    assert!(parse_error("a: *x").starts_with("f:1:4: "));
    assert_eq!(
        parse_error("a: !!int x"),
        "f:1:4: the value cannot have the tag int"
    );
    assert_eq!(
        parse_error("a: !!map [x]"),
        "f:1:4: only the tag seq can stand here"
    );
}

#[test]
fn text_that_may_be_a_secret_is_never_quoted() {
    for text in [
        "token: !!binary hunter2",
        "token: !!int hunter2",
        "token: !!hunter2",
        "token: !hunter2",
        "token: !hunter2 a",
        "token: @hunter2",
        "token: *hunter2",
        "token: &a hunter2\nuser: {<<: *a}",
        "token: &a hunter2\nuser: {<<: [*a]}",
        "token: 'hunter2",
        "token: hunter2: x",
        "token: {hunter2",
        "? [hunter2]\n: 1",
    ] {
        let error = parse_error(text);
        assert!(!error.contains("hunter2"), "{text}: {error}");
    }
    // Without the space after the colon, the mapping is a string.
    let text = "user: token:hunter2\nargs: hunter2\nenv: 12345\n";
    let (_, diagnostics) = decode(text, Strictness::Strict, |f| {
        f.object("user", |_| ());
        f.strings("args");
        f.map("env", |value| value.string());
    });
    let expected = [
        "f:1:7: user: expected a mapping, got a string",
        "f:2:7: args: expected a list, got a string",
        "f:3:6: env: expected a mapping, got a number",
    ];
    assert_eq!(diagnostics.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn json_is_read_as_json() {
    let text = "{\"a\"\t:\t\"\\ud83d\\ude00 \\ud83d \\/\\u003c\\t\",\n\t\"b\" :\n1e3 ,\"<<\":{\"c\":null}}\n";
    let node = parse(text);
    assert_eq!(node.field("a").unwrap().as_str(), Some("😀 \u{fffd} /<\t"));
    assert_eq!(line_and_column(node.field("b").unwrap()), (3, 1));
    assert_eq!(node.field("b").unwrap().describe(), "the number 1e3");
    assert!(node.field("<<").unwrap().field("c").unwrap().is_null());
    let (value, diagnostics) = decode(text, Strictness::Lenient, |f| f.integer("b", 0..=9999_i32));
    assert_eq!(value, Some(None));
    assert_eq!(
        diagnostics,
        "f:3:1: b: expected a whole number from 0 to 9999, got the number 1e3"
    );
    let (value, _) = decode("b: 1e3", Strictness::Lenient, |f| {
        f.integer("b", 0..=9999_i32)
    });
    assert_eq!(
        value,
        Some(Some(1000)),
        "in YAML it is whole, as for Kubernetes"
    );
    assert_eq!(
        line_and_column(parse("\u{feff}{\"a\": 1}").field("a").unwrap()),
        (1, 7)
    );
}

#[test]
fn a_quoted_scalar_is_a_string() {
    let node = parse("a: '1'\nb: \"no\"\nc: no\nd: !!str 1\ne: !!int '7'\nf: ! 8\ng: >\n  1\n");
    let scalar = |name| match &node.field(name).unwrap().content {
        Content::Scalar(scalar) => scalar,
        Content::Mapping(_) | Content::Sequence(_) => panic!("{name}"),
    };
    assert_eq!(
        (scalar("a").style, scalar("g").style),
        (QuotingStyle::Quoted, QuotingStyle::Literal)
    );
    for name in ["a", "b", "d", "f", "g"] {
        assert!(node.field(name).unwrap().as_str().is_some(), "{name}");
    }
    for name in ["c", "e"] {
        assert!(node.field(name).unwrap().as_str().is_none(), "{name}");
    }
}

#[test]
fn an_alias_is_a_copy_with_the_location_of_its_anchor() {
    let node = parse("a: &x {k: 1}\nb: [*x, *x]\n");
    let Content::Sequence(items) = &node.field("b").unwrap().content else {
        panic!()
    };
    assert_eq!(
        items.iter().map(line_and_column).collect::<Vec<_>>(),
        [(1, 4), (1, 4)]
    );
    assert_eq!(line_and_column(items[1].field("k").unwrap()), (1, 11));
    assert_eq!(
        parse_error("a: &x [1, *x]"),
        "f:1:11: an alias to the value that it is part of"
    );
}

#[test]
fn explicit_and_earlier_merged_keys_take_precedence_over_merged_keys() {
    let node = parse(
        "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\n\
         z:\n  <<: [*x, *y]\n  a: 0\nw: {\"<<\": 3}\nv: {a: 5, <<: *x}\n",
    );
    let get = |outer, inner| node.field(outer)?.field(inner).map(Node::describe);
    assert_eq!(get("z", "a").unwrap(), "the number 0");
    assert_eq!(get("z", "b").unwrap(), "the number 1");
    assert_eq!(get("z", "c").unwrap(), "the number 2");
    assert_eq!(
        get("w", "<<").unwrap(),
        "the number 3",
        "quoted, it is a key like any other"
    );
    assert_eq!(get("v", "a").unwrap(), "the number 5");
    let wrong = parse_error("x: {<<: 3}");
    assert_eq!(
        wrong,
        "f:1:9: << takes a mapping or a list of them, not a number"
    );
}

const COPY_LIMIT_MESSAGE: &str = "the anchors, aliases and << up to here copy too much";

#[test]
fn alias_expansion_is_bounded() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let list = vec![format!("*a{}", n - 1); 10].join(", ");
        text += &format!("a{n}: &a{n} [{list}]\n");
    }
    assert!(parse_error(&text).ends_with(COPY_LIMIT_MESSAGE));
    // The anchored value is one of the copies.
    let long = "x".repeat(MAX_EXPANSION / 4 - 1);
    let text = |n: usize| format!("a: &a {long}\nb: [{}]\n", "*a, ".repeat(n));
    assert!(parse(&text(3)).field("b").is_some());
    assert!(parse_error(&text(4)).ends_with(COPY_LIMIT_MESSAGE));
}

#[test]
fn nested_anchors_and_merges_are_bounded_without_an_alias() {
    let nested = |begin: &str, levels: usize, inner: &str, end: &str| {
        begin.repeat(levels) + inner + &end.repeat(levels)
    };
    let list = |text: usize| format!("[{}]", vec!["~"; text].join(", "));
    parse(&nested("[&a ", 90, &list(5_000), "]"));
    let error = parse_error(&nested("[&a ", 90, &list(6_000), "]"));
    // 87 times the contents is less than a MiB.
    assert_eq!(error, format!("f:1:10: {COPY_LIMIT_MESSAGE}"));
    let keys = |count: usize| {
        let keys: Vec<_> = (0..count).map(|n| format!("k{n:04}: ")).collect();
        format!("{{{}}}", keys.join(", "))
    };
    let merged = parse(&nested("{<<: ", 90, &keys(1_000), "}"));
    assert!(merged.field("k0999").is_some());
    assert!(parse_error(&nested("{<<: ", 90, &keys(2_000), "}")).ends_with(COPY_LIMIT_MESSAGE));
}

#[test]
fn untrusted_text_is_parsed_with_a_bound_of_its_own() {
    let read = |text: &str, max_expansion: usize| {
        let mut diagnostics = Diagnostics::default();
        let first = parse_first_bounded("f", text, max_expansion, &mut diagnostics);
        (first.is_some(), diagnostics.to_string())
    };
    let text = "a: &a {k: v}\nb: *a\n"; // the mapping, its key and its value: 1 + 2 + 2, twice
    assert_eq!(read(text, 10), (true, String::new()));
    assert_eq!(
        read(text, 9),
        (false, format!("f:2:4: {COPY_LIMIT_MESSAGE}"))
    );
    assert_eq!(
        read(text, 4),
        (false, format!("f:1:4: {COPY_LIMIT_MESSAGE}"))
    );
}

#[test]
fn values_nest_no_deeper_than_the_bound() {
    let lists = |n: usize| "[".repeat(n) + &"]".repeat(n);
    parse(&lists(MAX_DEPTH));
    let deeper = format!("values nest deeper than {MAX_DEPTH}");
    for text in [
        lists(MAX_DEPTH + 1),
        lists(100_000),
        "{\"a\":".repeat(5000),
        "- ".repeat(5000),
    ] {
        let error = parse_error(&text);
        assert!(
            error.ends_with(&deeper) || error.ends_with("recursion limit exceeded"),
            "{error}"
        );
    }
    // Sixty levels, and sixty more below an alias.
    let text = format!(
        "a: &a {}\nb: {}*a{}\n",
        lists(60),
        "[".repeat(60),
        "]".repeat(60)
    );
    assert!(parse_error(&text).ends_with(&deeper));
}

#[test]
fn a_type_mismatch_is_reported_with_the_expected_type() {
    let text = "s: 5\nq: yes\nb: 'true'\ni: 70000\nj: '1'\no: [1]\nl: {}\nt: [a, 1, [b]]\nm: {k: 1}\np: five\n";
    let (_, diagnostics) = decode(text, Strictness::Strict, |f| {
        f.require(&["s", "gone"]);
        f.string("s");
        f.string("q");
        f.boolean("b");
        f.integer("i", 1..=65535_u16);
        f.integer("j", 1..=65535_u16);
        f.object("o", |_| ());
        f.list("l", |item| item.string());
        f.strings("t");
        f.map("m", |value| value.string());
        f.parse("p", |_| Err::<(), _>("expected a number of goats"));
    });
    let expected = [
        "f:1:1: gone: required, but not given",
        "f:1:4: s: expected a string, got the number 5",
        "f:2:4: q: expected a string, got the boolean true (unquoted yes is one)",
        "f:3:4: b: expected true or false, got the string \"true\"",
        "f:4:4: i: expected a whole number from 1 to 65535, got the number 70000",
        "f:5:4: j: expected a whole number from 1 to 65535, got the string \"1\"",
        "f:6:4: o: expected a mapping, got a list",
        "f:7:4: l: expected a list, got a mapping",
        "f:8:8: t[1]: expected a string, got the number 1",
        "f:8:11: t[2]: expected a string, got a list",
        "f:9:8: m[k]: expected a string, got the number 1",
        "f:10:4: p: expected a number of goats, got the string \"five\"",
    ];
    assert_eq!(diagnostics.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn values_of_the_expected_type_are_decoded() {
    let text =
        "s: x\nb: off\ni: 010\nf: 2.5\nw: 3\nm: {a: x, b: w, a: z}\nl: [{k: 1}, {k: 2}]\nz: ~\n";
    let (value, diagnostics) = decode(text, Strictness::Lenient, |f| {
        assert_eq!(f.string("s").as_deref(), Some("x"));
        assert_eq!(f.boolean("b"), Some(false));
        assert_eq!(f.integer("i", i64::MIN..=i64::MAX), Some(8));
        let map = f.map("m", |value| value.string()).unwrap();
        assert_eq!(
            map,
            [
                ("b".to_owned(), "w".to_owned()),
                ("a".to_owned(), "z".to_owned())
            ]
        );
        assert_eq!(f.string("z"), None, "null is absent");
        f.objects("l", |item| item.integer("k", 0..=9_u8))
    });
    assert_eq!(
        (value, diagnostics.as_str()),
        (Some(Some(vec![Some(1), Some(2)])), "")
    );
}

#[test]
fn unknown_and_repeated_fields_follow_the_strictness() {
    let text = "a: 1\nspec:\n  x: 1\n  v: 2\n  x: 3\n  z: 4\n";
    let read = |f: &mut MappingDecoder<'_>| {
        f.mark_known(&["a"]);
        f.object("spec", |f| {
            (f.integer("x", 0..=9_u8), f.integer("w", 0..=9_u8))
        })
    };
    let found = "f:4:3: {}spec.v: unknown field; allowed here: x, w\n\
                 f:5:3: {}spec.x: given twice; the last one counts\n\
                 f:6:3: {}spec.z: unknown field; allowed here: x, w";
    for (strictness, diagnostics) in [
        (Strictness::Lenient, String::new()),
        (Strictness::Strict, found.replace("{}", "")),
        (Strictness::Warn, found.replace("{}", "warning: ")),
    ] {
        let value = Some(Some((Some(3), None)));
        assert_eq!(decode(text, strictness, read), (value, diagnostics));
    }
}

#[test]
fn a_null_in_a_list_is_an_empty_item_unless_strict() {
    let read = |f: &mut MappingDecoder<'_>| {
        let objects = f.objects("o", |f| f.string("k")).map(|list| list.len());
        (f.strings("s"), objects)
    };
    let text = "s: [a, ~]\no: [{k: x}, ~]\n";
    let items = vec!["a".to_owned(), String::new()];
    let lenient = decode(text, Strictness::Warn, read);
    assert_eq!(lenient, (Some((Some(items), Some(2))), String::new()));
    let (_, diagnostics) = decode(text, Strictness::Strict, read);
    assert_eq!(
        diagnostics,
        "f:2:13: o[1]: expected a mapping, got nothing\n\
         f:1:8: s[1]: expected a string, got nothing"
    );
}

#[test]
fn errors_that_the_caller_reports_have_the_location_of_the_field() {
    let (_, diagnostics) = decode("a:\n  b: 1\n", Strictness::Strict, |f| {
        f.object("a", |f| {
            f.mark_known(&["b"]);
            f.report_error("b", "is odd");
            f.report_warning("c", "is missed");
            f.report_error("", "is wrong as a whole");
        });
    });
    assert_eq!(
        diagnostics,
        "f:2:6: a.b: is odd\nf:2:3: warning: a.c: is missed\nf:2:3: a: is wrong as a whole"
    );
}

/// Decodes a value in every way.
fn read_everything(value: ValueDecoder<'_>) -> Option<()> {
    let node = value.node();
    assert!(!node.describe().is_empty());
    let mut diagnostics = Diagnostics::default();
    for strictness in [Strictness::Lenient, Strictness::Strict, Strictness::Warn] {
        let mut read = |read: fn(ValueDecoder<'_>) -> bool| {
            read(node.decoder(&mut diagnostics, "x", strictness))
        };
        read(|value| value.string().is_some());
        read(|value| value.boolean().is_some());
        read(|value| value.integer(0..=255_u8).is_some());
        read(|value| value.integer(i64::MIN..=i64::MAX).is_some());
        read(|value| value.object(|fields| fields.string("a")).is_some());
    }
    node.decoder(&mut diagnostics, "x", Strictness::Warn)
        .list(read_everything);
    node.decoder(&mut diagnostics, "x", Strictness::Warn)
        .map(read_everything);
    assert!(diagnostics.iter().all(|error| error.location.line > 0));
    Some(())
}

#[test]
fn a_mangled_document_causes_no_panic() {
    let samples = [
        "a: &x {k: [1, 2.5, yes, ~]}\nb:\n- *x\n- <<: *x\n  c: |\n    text\n--- 'q'\n",
        "{\"a\":{\"b\":[1,-2.5e3,true,null,\"x\\u0041\\n\"]},\"c\":\"\\ud83d\\ude00\"}",
        "%YAML 1.2\n---\n? !!str a\n: !!map {b: \"c\\x41\"}\n...\n",
    ];
    let alphabet: Vec<char> = " \t\n-:?,[]{}#&*!|>'\"%@`\\~=<0159axuU.é\u{0}\u{feff}😀"
        .chars()
        .collect();
    for seed in 0..6000 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut text: Vec<char> = samples[random.usize(..samples.len())].chars().collect();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..text.len());
            let c = alphabet[random.usize(..alphabet.len())];
            match random.u8(..4) {
                0 => text[at] = c,
                1 => text.insert(at, c),
                2 => drop(text.remove(at)),
                _ => text.truncate(at + 1),
            }
            if text.is_empty() {
                text.push(c);
            }
        }
        let text: String = text.into_iter().collect();
        let mut diagnostics = Diagnostics::default();
        for node in parse_all("f", &text, &mut diagnostics) {
            node.decoder(&mut Diagnostics::default(), "", Strictness::Warn)
                .list(read_everything);
            node.decoder(&mut Diagnostics::default(), "", Strictness::Warn)
                .map(read_everything);
            let _ = node.locate("a.k[1].b");
        }
    }
}
