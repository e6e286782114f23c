//! Parses an expression, and makes a typed tree of it.
//!
//! The parser is cel-core's: its tree has the place of each node, and it is quick enough for a thousand
//! expressions at each reload. (The crate `cel` has no places in a tree of its fast parser, and its other
//! parser overflows a stack of 2 MiB at 16 nested brackets in a debug build.) cel-core's checker is not
//! used: it takes fields of objects from protobuf descriptors only, and types are needed here in any
//! case, to evaluate without them.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other type is the same error"
)]

use cel_core::parser;
use cel_core::types::{BinaryOp, Expr, ListElement, Span, SpannedExpr, UnaryOp};
use regex::bytes::RegexBuilder;

use crate::error::ExpressionError;
use crate::expression::{
    BoolExpr, Comparison, Conditional, ListExpr, NumberExpr, Operation, TextExpr, TextTest,
};
use crate::fields::{Field, ObjectType, TextField, VARIABLES};

/// The longest expression in bytes.
pub const MAX_BYTES: usize = 1024;

/// The most opening brackets: the parser takes some 25 KiB of stack for each in a debug build, and runs
/// on threads with 2 MiB. As many as nest, since brackets in strings are not told apart here.
const MAX_BRACKETS: usize = 40;

/// The most `!` and `-`, likewise, of 3 KiB.
const MAX_SIGNS: usize = 100;

/// The deepest tree that is checked. Operators in a row make a tree as well.
const MAX_DEPTH: usize = 100;

/// The memory of a regular expression in bytes.
const MAX_REGEX_BYTES: usize = 256 << 10;

const FUNCTIONS: &str = "functions are startsWith, endsWith, contains, matches and size";

/// A subexpression with its type.
enum Typed {
    Bool(BoolExpr),
    Number(NumberExpr),
    Text(TextExpr),
    List(ListExpr),
    Numbers(Vec<NumberExpr>),
    /// `request.extra`.
    Extra,
    Object(&'static ObjectType),
}

impl Typed {
    const fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::Number(_) => "int",
            Self::Text(_) => "string",
            Self::List(_) => "list(string)",
            Self::Numbers(_) => "list(int)",
            Self::Extra => "map(string, list(string))",
            Self::Object(_) => "an object",
        }
    }
}

/// The tree of an expression, and whether it asks who the user is.
pub(crate) fn compile(text: &str) -> Result<(BoolExpr, bool), Vec<ExpressionError>> {
    let mut checker = Checker {
        text,
        asks_for_user: false,
        errors: Vec::new(),
    };
    let compiled = checker.compile();
    match compiled {
        Some(compiled) if checker.errors.is_empty() => Ok((compiled, checker.asks_for_user)),
        _ => {
            if checker.errors.is_empty() {
                checker.report(0, "the expression cannot be read");
            }
            checker
                .errors
                .sort_by_key(|error| (error.line, error.column));
            Err(checker.errors)
        }
    }
}

struct Checker<'t> {
    text: &'t str,
    asks_for_user: bool,
    errors: Vec<ExpressionError>,
}

impl Checker<'_> {
    fn report(&mut self, offset: usize, message: impl Into<String>) {
        let error = ExpressionError::at(self.text, offset, message);
        self.errors.push(error);
    }

    /// Reports an error and has no value.
    fn fail<T>(&mut self, span: &Span, message: impl Into<String>) -> Option<T> {
        self.report(span.start, message);
        None
    }

    fn compile(&mut self) -> Option<BoolExpr> {
        self.check_size()?;
        let parsed = parser::parse(self.text);
        for error in &parsed.errors {
            let message = self.syntax_message(&error.message, error.span.start);
            self.report(error.span.start, message);
        }
        let ast = parsed.ast.filter(|_| self.errors.is_empty())?;
        self.bool(&ast, 0)
    }

    fn check_size(&mut self) -> Option<()> {
        let text = self.text;
        if text.trim().is_empty() {
            return self.fail(
                &(0..0),
                "the expression is empty; expected one of type bool",
            );
        }
        if text.len() > MAX_BYTES {
            let message = format!(
                "an expression has at most {MAX_BYTES} bytes, this one has {}",
                text.len()
            );
            return self.fail(&(MAX_BYTES..MAX_BYTES), message);
        }
        for (marks, most, what) in [
            (&['(', '[', '{'][..], MAX_BRACKETS, "opening brackets"),
            (&['!', '-'][..], MAX_SIGNS, "! and -"),
        ] {
            if let Some((at, _)) = text.match_indices(marks).nth(most) {
                let message =
                    format!("an expression has at most {most} {what}; use several conditions");
                return self.fail(&(at..at), message);
            }
        }
        Some(())
    }

    /// What the parser says, and what may be meant.
    fn syntax_message(&self, message: &str, offset: usize) -> String {
        let rest = self.text.get(offset..).unwrap_or_default();
        let word = rest.split(|c: char| !c.is_alphanumeric()).next();
        let hint = match (rest.chars().next(), word.unwrap_or_default()) {
            (Some('='), _) => "; == compares",
            (Some('&'), _) | (_, "and" | "AND") => "; && is the conjunction",
            (Some('|'), _) | (_, "or" | "OR") => "; || is the disjunction",
            (Some('\'' | '"'), _) => "; a string ends with the quote that it begins with",
            _ => "",
        };
        let message = message
            .replace("found Some(", "found ")
            .replace("found None", "found the end");
        let message = message.strip_suffix(')').unwrap_or(&message).to_owned();
        format!("{message}{hint}")
    }

    /// An expression of any type.
    fn any(&mut self, expr: &SpannedExpr, depth: usize) -> Option<Typed> {
        if depth > MAX_DEPTH {
            let message =
                format!("more than {MAX_DEPTH} operators in each other; use several conditions");
            return self.fail(&expr.span, message);
        }
        let depth = depth + 1;
        match &expr.node {
            Expr::Bool(value) => Some(Typed::Bool(BoolExpr::Literal(*value))),
            Expr::Int(value) => Some(Typed::Number(NumberExpr::Literal(*value))),
            Expr::String(text) => Some(Typed::Text(TextExpr::Literal(text.as_bytes().into()))),
            Expr::UInt(_) | Expr::Float(_) => {
                self.fail(&expr.span, "numbers are of type int, such as 10")
            }
            Expr::Bytes(_) => self.fail(&expr.span, "texts are strings, without b"),
            Expr::Null => self.fail(&expr.span, "nothing is null; use has(), or compare with ''"),
            Expr::Map(_) | Expr::Struct { .. } => {
                self.fail(&expr.span, "maps and messages cannot be made in a condition")
            }
            Expr::Comprehension(_) | Expr::Bind { .. } => self.fail(
                &expr.span,
                "comprehensions (all, exists, map, filter) are not allowed; use in, or several conditions",
            ),
            Expr::Error => None, // it was reported
            Expr::Ident(name) | Expr::RootIdent(name) => {
                let field = VARIABLES.field(name);
                self.field(field, &expr.span)
            }
            Expr::Member {
                expr: of,
                field,
                optional: false,
            } => self.member(of, field, &expr.span, depth),
            Expr::Member { .. } | Expr::Index { optional: true, .. } => {
                self.fail(&expr.span, "optional access (?) is not allowed; use has()")
            }
            Expr::MemberTestOnly { expr: of, field } => {
                self.has(of, field, &expr.span, depth).map(Typed::Bool)
            }
            Expr::Index {
                expr: of, index, ..
            } => self.index(of, index, depth),
            Expr::List(items) => self.list(items, &expr.span, depth),
            Expr::Unary { op, expr: of } => match op {
                UnaryOp::Not => {
                    let value = self.bool(of, depth)?;
                    Some(Typed::Bool(BoolExpr::Not(value.into())))
                }
                UnaryOp::Neg => {
                    let number = self.number(of, depth)?;
                    Some(Typed::Number(NumberExpr::Negative(number.into())))
                }
            },
            Expr::Binary { op, left, right } => self.binary(*op, left, right, depth),
            Expr::Ternary {
                cond,
                then_expr,
                else_expr,
            } => self.conditional(cond, then_expr, else_expr, depth),
            Expr::Call { expr: of, args } => self.call(of, args, &expr.span, depth),
        }
    }

    fn field(&mut self, field: Result<Field, String>, span: &Span) -> Option<Typed> {
        self.asks_for_user |= matches!(
            field,
            Ok(Field::Groups | Field::Extra | Field::Text(TextField::User | TextField::Uid))
        );
        Some(match field {
            Ok(Field::Object(object)) => Typed::Object(object),
            Ok(Field::Text(field)) => Typed::Text(TextExpr::Field(field)),
            Ok(Field::Number(name)) => Typed::Number(NumberExpr::Option(name)),
            Ok(Field::Groups) => Typed::List(ListExpr::Groups),
            Ok(Field::Extra) => Typed::Extra,
            Ok(Field::Verified) => Typed::Bool(BoolExpr::Verified),
            Err(message) => return self.fail(span, message),
        })
    }

    /// Where the name of a field begins, at the end of its selection.
    fn name_span(&self, span: &Span, name: &str) -> Span {
        let selection = self.text.get(span.clone()).unwrap_or_default();
        let at = selection
            .rfind(name)
            .map_or(span.start, |at| span.start + at);
        at..at
    }

    fn member(&mut self, of: &SpannedExpr, name: &str, span: &Span, depth: usize) -> Option<Typed> {
        let at = self.name_span(span, name);
        match self.any(of, depth)? {
            Typed::Object(object) => self.field(object.field(name), &at),
            Typed::Extra => Some(Typed::List(ListExpr::Extra(
                TextExpr::Literal(name.as_bytes().into()).into(),
            ))),
            other => {
                let message = format!("{} has no fields", other.type_name());
                self.fail(&at, message)
            }
        }
    }

    fn has(&mut self, of: &SpannedExpr, name: &str, span: &Span, depth: usize) -> Option<BoolExpr> {
        let at = self.name_span(span, name);
        match self.any(of, depth)? {
            Typed::Object(object) => match object.field(name) {
                Ok(field) => Some(BoolExpr::Has(field)),
                Err(message) => self.fail(&at, message),
            },
            Typed::Extra => Some(BoolExpr::HasKey(TextExpr::Literal(name.as_bytes().into()))),
            other => {
                let message = format!("{} has no fields", other.type_name());
                self.fail(&at, message)
            }
        }
    }

    fn index(&mut self, of: &SpannedExpr, index: &SpannedExpr, depth: usize) -> Option<Typed> {
        match self.any(of, depth)? {
            Typed::List(list) => {
                let index = self.number(index, depth)?;
                Some(Typed::Text(TextExpr::Index(list.into(), index.into())))
            }
            Typed::Extra => {
                let key = self.text(index, depth)?;
                Some(Typed::List(ListExpr::Extra(key.into())))
            }
            other => {
                let message = format!("{} has no elements", other.type_name());
                self.fail(&of.span, message)
            }
        }
    }

    fn list(&mut self, items: &[ListElement], span: &Span, depth: usize) -> Option<Typed> {
        let Some(first) = items.first() else {
            return self.fail(
                span,
                "a list in an expression has elements, and this one has none",
            );
        };
        let is_number = matches!(
            first.expr.node,
            Expr::Int(_)
                | Expr::Unary {
                    op: UnaryOp::Neg,
                    ..
                }
        );
        if is_number {
            let numbers = items.iter().map(|item| self.number(&item.expr, depth));
            let numbers: Vec<_> = numbers.collect();
            return Some(Typed::Numbers(numbers.into_iter().collect::<Option<_>>()?));
        }
        let texts = items.iter().map(|item| self.text(&item.expr, depth));
        let texts: Vec<_> = texts.collect();
        let texts: Option<Box<[_]>> = texts.into_iter().collect();
        Some(Typed::List(ListExpr::Literal(texts?)))
    }

    /// An expression of a type; of another one, an error.
    fn expect<T>(
        &mut self,
        expr: &SpannedExpr,
        depth: usize,
        expected: &str,
        take: impl FnOnce(Typed) -> Result<T, Typed>,
    ) -> Option<T> {
        let typed = self.any(expr, depth)?;
        match take(typed) {
            Ok(value) => Some(value),
            Err(other) => {
                let hint = match (&other, expected) {
                    (Typed::Number(_), "string") => "; a string has quotes",
                    (Typed::Object(_), "bool") => "; has() says whether it is there",
                    (Typed::Text(_), "bool") => "; compare it, as with == ''",
                    _ => "",
                };
                let message = format!("expected {expected}, this is {}{hint}", other.type_name());
                self.fail(&expr.span, message)
            }
        }
    }

    fn bool(&mut self, expr: &SpannedExpr, depth: usize) -> Option<BoolExpr> {
        self.expect(expr, depth, "bool", |typed| match typed {
            Typed::Bool(value) => Ok(value),
            other => Err(other),
        })
    }

    fn number(&mut self, expr: &SpannedExpr, depth: usize) -> Option<NumberExpr> {
        self.expect(expr, depth, "int", |typed| match typed {
            Typed::Number(value) => Ok(value),
            other => Err(other),
        })
    }

    fn text(&mut self, expr: &SpannedExpr, depth: usize) -> Option<TextExpr> {
        self.expect(expr, depth, "string", |typed| match typed {
            Typed::Text(value) => Ok(value),
            other => Err(other),
        })
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        left: &SpannedExpr,
        right: &SpannedExpr,
        depth: usize,
    ) -> Option<Typed> {
        match op {
            BinaryOp::And | BinaryOp::Or => {
                let (left, right) = (self.bool(left, depth), self.bool(right, depth));
                let (left, right) = (left?.into(), right?.into());
                Some(Typed::Bool(match op {
                    BinaryOp::And => BoolExpr::And(left, right),
                    _ => BoolExpr::Or(left, right),
                }))
            }
            BinaryOp::In => self.is_in(left, right, depth).map(Typed::Bool),
            BinaryOp::Add => self.calculation(Operation::Add, left, right, depth),
            BinaryOp::Sub => self.calculation(Operation::Subtract, left, right, depth),
            BinaryOp::Mul => self.calculation(Operation::Multiply, left, right, depth),
            BinaryOp::Div => self.calculation(Operation::Divide, left, right, depth),
            BinaryOp::Mod => self.calculation(Operation::Remainder, left, right, depth),
            BinaryOp::Eq => self.comparison(Comparison::Equal, left, right, depth),
            BinaryOp::Ne => self.comparison(Comparison::NotEqual, left, right, depth),
            BinaryOp::Lt => self.comparison(Comparison::Less, left, right, depth),
            BinaryOp::Le => self.comparison(Comparison::LessOrEqual, left, right, depth),
            BinaryOp::Gt => self.comparison(Comparison::Greater, left, right, depth),
            BinaryOp::Ge => self.comparison(Comparison::GreaterOrEqual, left, right, depth),
        }
    }

    fn is_in(&mut self, one: &SpannedExpr, all: &SpannedExpr, depth: usize) -> Option<BoolExpr> {
        match self.any(all, depth)? {
            Typed::List(list) => Some(BoolExpr::InList(self.text(one, depth)?, list)),
            Typed::Numbers(numbers) => {
                let number = self.number(one, depth)?;
                Some(BoolExpr::InNumbers(number, numbers.into()))
            }
            Typed::Extra => Some(BoolExpr::HasKey(self.text(one, depth)?)),
            Typed::Text(_) => self.fail(
                &all.span,
                "expected a list, this is string; contains() looks for a part of a string",
            ),
            other => {
                let message = format!("expected a list, this is {}", other.type_name());
                self.fail(&all.span, message)
            }
        }
    }

    fn calculation(
        &mut self,
        operation: Operation,
        left: &SpannedExpr,
        right: &SpannedExpr,
        depth: usize,
    ) -> Option<Typed> {
        let (left, right) = (self.number(left, depth), self.number(right, depth));
        let (left, right) = (left?.into(), right?.into());
        let calculation = NumberExpr::Calculation(operation, left, right);
        Some(Typed::Number(calculation))
    }

    fn comparison(
        &mut self,
        comparison: Comparison,
        left: &SpannedExpr,
        right: &SpannedExpr,
        depth: usize,
    ) -> Option<Typed> {
        let compared = match self.any(left, depth)? {
            Typed::Number(left) => BoolExpr::Numbers(comparison, left, self.number(right, depth)?),
            Typed::Text(left) => BoolExpr::Texts(comparison, left, self.text(right, depth)?),
            Typed::Bool(value) => {
                let right = self.bool(right, depth)?;
                let same = BoolExpr::Same(value.into(), right.into());
                match comparison {
                    Comparison::Equal => same,
                    Comparison::NotEqual => BoolExpr::Not(same.into()),
                    Comparison::Less
                    | Comparison::LessOrEqual
                    | Comparison::Greater
                    | Comparison::GreaterOrEqual => {
                        return self.fail(&left.span, "bools have no order; use == or !=");
                    }
                }
            }
            other => {
                let message = format!(
                    "{} cannot be compared; compare int, string or bool",
                    other.type_name()
                );
                return self.fail(&left.span, message);
            }
        };
        Some(Typed::Bool(compared))
    }

    fn conditional(
        &mut self,
        condition: &SpannedExpr,
        then: &SpannedExpr,
        otherwise: &SpannedExpr,
        depth: usize,
    ) -> Option<Typed> {
        let condition = self.bool(condition, depth);
        let typed = self.any(then, depth)?;
        macro_rules! conditional {
            ($then:expr, $otherwise:expr) => {
                Box::new(Conditional {
                    then: $then,
                    otherwise: $otherwise,
                    condition: condition?,
                })
            };
        }
        Some(match typed {
            Typed::Bool(then) => {
                let otherwise = self.bool(otherwise, depth)?;
                Typed::Bool(BoolExpr::If(conditional!(then, otherwise)))
            }
            Typed::Number(then) => {
                let otherwise = self.number(otherwise, depth)?;
                Typed::Number(NumberExpr::If(conditional!(then, otherwise)))
            }
            Typed::Text(then) => {
                let otherwise = self.text(otherwise, depth)?;
                Typed::Text(TextExpr::If(conditional!(then, otherwise)))
            }
            Typed::List(then) => {
                let otherwise =
                    self.expect(otherwise, depth, "list(string)", |typed| match typed {
                        Typed::List(list) => Ok(list),
                        other => Err(other),
                    })?;
                Typed::List(ListExpr::If(conditional!(then, otherwise)))
            }
            other @ (Typed::Numbers(_) | Typed::Extra | Typed::Object(_)) => {
                let message = format!("{} cannot be chosen by ?:", other.type_name());
                return self.fail(&then.span, message);
            }
        })
    }

    fn call(
        &mut self,
        of: &SpannedExpr,
        args: &[SpannedExpr],
        span: &Span,
        depth: usize,
    ) -> Option<Typed> {
        match (&of.node, args) {
            (Expr::Ident(name), [arg]) if name == "size" => self.size(arg, depth),
            (Expr::Ident(name), _) if name == "size" => {
                self.fail(span, "size() takes one argument, a string or a list")
            }
            (Expr::Ident(name), _) if name == "has" => self.fail(
                span,
                "has() takes a field, such as has(request.options.limit)",
            ),
            (Expr::Ident(name), _) => {
                let message = format!("there is no function {name}; {FUNCTIONS}");
                self.fail(&of.span, message)
            }
            (
                Expr::Member {
                    expr: text, field, ..
                },
                args,
            ) => {
                let at = self.name_span(&of.span, field);
                match (field.as_str(), args) {
                    ("size", []) => self.size(text, depth),
                    ("startsWith", [part]) => {
                        self.text_test(TextTest::StartsWith, text, part, depth)
                    }
                    ("endsWith", [part]) => self.text_test(TextTest::EndsWith, text, part, depth),
                    ("contains", [part]) => self.text_test(TextTest::Contains, text, part, depth),
                    ("matches", [pattern]) => self.matches(text, pattern, depth),
                    ("startsWith" | "endsWith" | "contains" | "matches", _) => {
                        let message = format!("{field}() takes one argument, a string");
                        self.fail(&at, message)
                    }
                    (name, _) => {
                        let message = format!("there is no function {name}; {FUNCTIONS}");
                        self.fail(&at, message)
                    }
                }
            }
            _ => self.fail(&of.span, format!("this cannot be called; {FUNCTIONS}")),
        }
    }

    fn size(&mut self, of: &SpannedExpr, depth: usize) -> Option<Typed> {
        let size = match self.any(of, depth)? {
            Typed::Text(text) => NumberExpr::TextSize(text.into()),
            Typed::List(list) => NumberExpr::ListSize(list.into()),
            other => {
                let message = format!("expected a string or a list, this is {}", other.type_name());
                return self.fail(&of.span, message);
            }
        };
        Some(Typed::Number(size))
    }

    fn text_test(
        &mut self,
        test: TextTest,
        text: &SpannedExpr,
        part: &SpannedExpr,
        depth: usize,
    ) -> Option<Typed> {
        let (text, part) = (self.text(text, depth), self.text(part, depth));
        Some(Typed::Bool(BoolExpr::Contains(test, text?, part?)))
    }

    fn matches(
        &mut self,
        text: &SpannedExpr,
        pattern: &SpannedExpr,
        depth: usize,
    ) -> Option<Typed> {
        let text = self.text(text, depth);
        let Expr::String(regex) = &pattern.node else {
            let message = "expected a string literal: regular expressions are compiled when the condition is read";
            return self.fail(&pattern.span, message);
        };
        let compiled = RegexBuilder::new(regex)
            .size_limit(MAX_REGEX_BYTES)
            .dfa_size_limit(MAX_REGEX_BYTES)
            .nest_limit(16)
            .build();
        match compiled {
            Ok(regex) => Some(Typed::Bool(BoolExpr::Matches(text?, regex))),
            Err(why) => {
                let why = why.to_string();
                let last = why.lines().last().unwrap_or_default();
                let last = last.trim_start_matches("error: ");
                self.fail(
                    &pattern.span,
                    format!("no regular expression of RE2: {last}"),
                )
            }
        }
    }
}
