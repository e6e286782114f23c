//! What expressions mean, and what is wrong with others.

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

use super::*;

const POD_LIST: &str = "GET /api/v1/pods?limit=500&resourceVersion=&labelSelector=a%3Db";

fn evaluate_for(text: &str, line: &str) -> Result<bool, EvaluationError> {
    let condition = Condition::compile(text).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
    let (method, path) = line.split_once(' ').unwrap();
    let info = RequestInfo::parse(method, path.as_bytes()).unwrap();
    let user = UserInfo {
        name: "alice".to_owned(),
        uid: String::new(),
        groups: vec!["dev".to_owned(), "ops".to_owned()],
        extra: vec![("scopes".to_owned(), vec!["read".to_owned()])],
    };
    condition.evaluate(&ConditionInput {
        info: &info,
        user: &user,
        is_verified: true,
        user_agent: b"kubectl/v1.36 (linux)",
        source_address: "::ffff:10.1.2.3".parse().unwrap(),
    })
}

fn errors(text: &str) -> Vec<String> {
    let errors = Condition::compile(text).expect_err(text);
    errors
        .iter()
        .map(|e| format!("{}:{}: {}", e.line, e.column, e.message))
        .collect()
}

#[test]
fn expressions_about_a_request() {
    for (text, expected) in [
        ("request.user == 'alice'", true),
        (
            "'dev' in request.groups && !('root' in request.groups)",
            true,
        ),
        ("request.groups[1] == 'ops'", true),
        ("size(request.groups) == 2 || false", true),
        ("request.extra['scopes'][0] == 'read'", true),
        ("'read' in request.extra.scopes", true),
        ("'other' in request.extra", false),
        (
            "has(request.extra.scopes) && !has(request.extra.other)",
            true,
        ),
        ("request.resourceAttributes.verb in ['list', 'watch']", true),
        ("request.resourceAttributes.namespace == ''", true),
        ("request.resourceAttributes.resource != \"pods\"", false),
        (
            "request.resourceAttributes.version == 'v1' && request.resourceAttributes.group == ''",
            true,
        ),
        (
            "has(request.resourceAttributes) && !has(request.nonResourceAttributes)",
            true,
        ),
        ("has(request.resourceAttributes.name)", false),
        (
            "request.options.limit > 499 && request.options.limit <= 5 * 100",
            true,
        ),
        ("request.options.limit in [1, -2, 500]", true),
        (
            "request.options.resourceVersion == '' && has(request.options.resourceVersion)",
            true,
        ),
        ("has(request.options.continue)", false),
        ("request.options.labelSelector == 'a=b'", true),
        (
            "request.userAgent.startsWith('kubectl/') && request.userAgent.endsWith(')')",
            true,
        ),
        ("request.userAgent.contains('linux')", true),
        ("request.userAgent.matches('^kubectl/v1\\\\.[0-9]+ ')", true),
        ("request.userAgent.matches(r'^\\d')", false),
        ("request.sourceAddress == '10.1.2.3'", true),
        ("user.verified", true),
        (
            "user.verified == false ? true : size(request.user) == 5",
            true,
        ),
        ("(user.verified ? request.user : 'x') == 'alice'", true),
        ("'ö'.size() == 1 && -7 % 4 == -3 && 7 / 2 - 1 == 2", true),
        ("'a' < 'b' && true != false", true),
    ] {
        assert_eq!(evaluate_for(text, POD_LIST), Ok(expected), "{text}");
    }
}

#[test]
fn an_expression_knows_whether_it_asks_for_the_user() {
    for (text, expected) in [
        ("request.user=='a'", true),
        ("!('a' in request.groups)", true),
        ("has(request.extra.a)", true),
        (
            "user.verified && request.userAgent == 'request.user'",
            false,
        ),
    ] {
        assert_eq!(
            Condition::compile(text).unwrap().asks_for_user(),
            expected,
            "{text}"
        );
    }
}

#[test]
fn errors_are_values_and_a_side_that_decides_makes_up_for_one() {
    use EvaluationError as E;
    for (text, expected) in [
        (
            "request.nonResourceAttributes.path == '/x'",
            Err(E::Resource),
        ),
        (
            "request.nonResourceAttributes.path == '/x' && user.verified",
            Err(E::Resource),
        ),
        (
            "request.nonResourceAttributes.path == '/x' || user.verified",
            Ok(true),
        ),
        (
            "request.nonResourceAttributes.path == '/x' && !user.verified",
            Ok(false),
        ),
        ("request.extra['x'][0] == ''", Err(E::NoSuchKey)),
        ("request.groups[2] == ''", Err(E::NoSuchIndex)),
        ("request.groups[-1] == ''", Err(E::NoSuchIndex)),
        (
            "1 / request.options.timeoutSeconds == 0",
            Err(E::Arithmetic),
        ),
        ("9223372036854775807 + 1 > 0", Err(E::Arithmetic)),
        ("-9223372036854775807 - 2 > 0", Err(E::Arithmetic)),
    ] {
        assert_eq!(evaluate_for(text, POD_LIST), expected, "{text}");
    }
    let limit = "request.options.limit == 0";
    assert_eq!(
        evaluate_for(limit, "GET /api/v1/pods?limit=x"),
        Err(E::NoNumber)
    );
    assert_eq!(evaluate_for(limit, "GET /api/v1/pods?limit="), Ok(true));
    let verb = "request.resourceAttributes.verb == 'get'";
    assert_eq!(evaluate_for(verb, "GET /version"), Err(E::NoResource));
    let verb = "request.nonResourceAttributes.verb == 'get'";
    assert_eq!(evaluate_for(verb, "GET /version"), Ok(true));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_expressions_say_where_and_what_would_be_right() {
    for (text, expected) in [
        (
            "",
            "1:1: the expression is empty; expected one of type bool",
        ),
        (
            "request.usr == 'a'",
            "1:9: request has no field usr; expected user, groups, uid, extra, resourceAttributes",
        ),
        (
            "object.kind == 'a'",
            "1:1: there is no variable object; expected request, user",
        ),
        (
            "user.name == 'a'",
            "1:6: user has no field name; expected verified",
        ),
        (
            "request.user",
            "1:1: expected bool, this is string; compare it, as with == ''",
        ),
        ("request.options.limit", "1:1: expected bool, this is int"),
        (
            "has(request.options.limits)",
            "1:21: request.options has no field limits; expected limit, continue",
        ),
        (
            "request.resourceAttributes",
            "1:1: expected bool, this is an object; has() says whether it is there",
        ),
        (
            "request.user == 5",
            "1:17: expected string, this is int; a string has quotes",
        ),
        (
            "request.options.limit == '5'",
            "1:26: expected int, this is string",
        ),
        (
            "user.verified &&\n  request.verb == 'get'",
            "2:11: request has no field verb; expected user",
        ),
        ("'é' == request.nme", "1:16: request has no field nme"),
        (
            "request.groups.exists(g, g == 'a')",
            "1:1: comprehensions (all, exists, map, filter) are not allowed; use in",
        ),
        (
            "request.groups.filter(g, g == 'a').size() > 0",
            "1:1: comprehensions",
        ),
        (
            "request.user.lowerAscii() == 'a'",
            "1:14: there is no function lowerAscii; functions are startsWith",
        ),
        (
            "lower(request.user) == 'a'",
            "1:1: there is no function lower; functions are",
        ),
        (
            "request.user.startsWith()",
            "1:14: startsWith() takes one argument, a string",
        ),
        (
            "request.user.startsWith(5)",
            "1:25: expected string, this is int; a string has quotes",
        ),
        (
            "request.user.matches('(')",
            "1:22: no regular expression of RE2: unclosed group",
        ),
        (
            "request.user.matches(request.uid)",
            "1:22: expected a string literal",
        ),
        (
            "'a' in request.user",
            "1:8: expected a list, this is string; contains() looks for a part",
        ),
        ("5 in request.groups", "1:1: expected string, this is int"),
        (
            "request.user in [1, 2]",
            "1:1: expected int, this is string",
        ),
        (
            "request.user in ['a', 5]",
            "1:23: expected string, this is int",
        ),
        (
            "request.user in []",
            "1:17: a list in an expression has elements",
        ),
        (
            "request.user + 'x' == 'ax'",
            "1:1: expected int, this is string",
        ),
        (
            "request.groups == ['a']",
            "1:1: list(string) cannot be compared",
        ),
        (
            "user.verified < true",
            "1:1: bools have no order; use == or !=",
        ),
        (
            "request.options.limit == 5u",
            "1:26: numbers are of type int, such as 10",
        ),
        (
            "request.options.limit > 1.5",
            "1:25: numbers are of type int",
        ),
        ("request.user == null", "1:17: nothing is null; use has()"),
        ("request.user == b'a'", "1:17: texts are strings, without b"),
        ("{'a': 1} == 1", "1:1: maps and messages cannot be made"),
        ("request.user[0] == 'a'", "1:1: string has no elements"),
        ("request.user.first == 'a'", "1:14: string has no fields"),
        (
            "user.verified ? 'a' : 5",
            "1:23: expected string, this is int",
        ),
        ("!request.user", "1:2: expected bool, this is string"),
        (
            "request.?user == 'a'",
            "1:1: optional access (?) is not allowed",
        ),
    ] {
        let found = errors(text);
        assert!(found[0].starts_with(expected), "{text}: {found:?}");
    }
}

#[test]
fn syntax_errors_have_places_and_hints() {
    for (text, place, hint) in [
        ("request.user = 'a'", "1:14: ", "== compares"),
        ("user.verified & true", "1:15: ", "&& is the conjunction"),
        ("user.verified and true", "1:15: ", "&& is the conjunction"),
        ("user.verified or true", "1:15: ", "|| is the disjunction"),
        (
            "request.user == 'a",
            "1:17: ",
            "a string ends with the quote",
        ),
        ("(user.verified", "1:15: ", ""),
        ("user.verified ==", "1:17: ", ""),
        ("user.verified\n  && ?", "2:6: ", ""),
    ] {
        let found = errors(text);
        assert!(
            found[0].starts_with(place) && found[0].contains(hint),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn all_errors_are_reported_in_their_order() {
    let found = errors("request.usr == 'a' &&\n(request.grups[0] == 'b' || 5)");
    let places: Vec<_> = found.iter().map(|e| e.split(' ').next().unwrap()).collect();
    assert_eq!(places, ["1:9:", "2:10:", "2:29:"]);
}

#[test]
fn length_and_nesting_are_bounded_before_anything_calls_itself() {
    let long = format!("request.user == '{}'", "x".repeat(MAX_BYTES));
    assert!(
        errors(&long)[0].contains("at most 1024 bytes"),
        "{:?}",
        errors(&long)
    );
    let nasty = [
        ("(", ")"),
        ("[", "]"),
        ("{1:", "}"),
        ("!", ""),
        ("-", ""),
        ("!-", ""),
        ("(!", ")"),
        ("a.f(", ")"),
        ("a?(", "):a"),
        ("a?a:", ""),
        ("a+", ""),
        ("a&&", ""),
        ("a.", ""),
        ("", "[0]"),
        ("", ".f()"),
        ("a in ", ""),
        ("has(", ")"),
        ("\\", ""),
        ("'", ""),
        ("'''", ""),
        ("r'", ""),
        ("//", ""),
        ("`", ""),
        ("\u{0}", ""),
        ("é", ""),
        ("a.all(b,", ")"),
    ];
    // As small as a stack of a worker is, and in a debug build.
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let checked = thread.spawn(move || {
        for (left, right) in nasty {
            for count in [1, 20, 40, 41, 99, 1024 / (left.len() + right.len())] {
                let text = left.repeat(count) + "a" + &right.repeat(count);
                assert!(Condition::compile(&text).is_err(), "{text}");
            }
        }
        let deepest = format!("{}user.verified{}", "(!".repeat(40), ")".repeat(40));
        assert!(Condition::compile(&deepest).is_ok());
    });
    checked.unwrap().join().unwrap();
}

#[test]
fn nothing_panics_whatever_the_text_is() {
    let words = [
        "request",
        ".",
        "user",
        "verified",
        "groups",
        "options",
        "limit",
        "resourceAttributes",
        "(",
        ")",
        "[",
        "]",
        "'a'",
        "5",
        "==",
        "in",
        "&&",
        "||",
        "!",
        "-",
        "?",
        ":",
        ",",
        "has",
        "size",
        "startsWith",
        "matches",
        "'('",
        " ",
        "\n",
        "é",
        "'",
        "\\",
        "{",
        "}",
        "true",
        "all",
        "x",
    ];
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..5_000 {
        let text: String = (0..random.usize(..24))
            .map(|_| *random.choice(&words).unwrap())
            .collect();
        let Ok(condition) = Condition::compile(&text) else {
            continue;
        };
        let (info, user) = (
            RequestInfo::parse("GET", b"/api/v1/pods").unwrap(),
            UserInfo::anonymous(),
        );
        let _ = condition.evaluate(&ConditionInput {
            info: &info,
            user: &user,
            is_verified: false,
            user_agent: b"\xff",
            source_address: [1, 2, 3, 4].into(),
        });
    }
    println!("seed {seed}");
}

/// Long expressions and long values: the cost is the product of both at most. With a backtracking engine,
/// this would not end.
#[test]
fn the_cost_is_bounded() {
    let part = "request.userAgent.matches('(a|aa)*b') || ";
    let text = part.repeat(20) + "false";
    let condition = Condition::compile(&text).unwrap();
    let (info, user) = (
        RequestInfo::parse("GET", b"/api/v1/pods").unwrap(),
        UserInfo::anonymous(),
    );
    let agent = vec![b'a'; 16 << 10];
    let value = condition.evaluate(&ConditionInput {
        info: &info,
        user: &user,
        is_verified: false,
        user_agent: &agent,
        source_address: [1, 2, 3, 4].into(),
    });
    assert_eq!(value, Ok(false));
}
