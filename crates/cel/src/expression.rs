//! A checked expression: a tree of each type. Evaluating it needs no types.

use std::borrow::Cow;

use memchr::memmem;
use regex::bytes::Regex;

use crate::error::EvaluationError;
use crate::fields;
use crate::fields::{ConditionInput, Field, TextField};

type Value<T> = Result<T, EvaluationError>;

/// An expression that is true or false.
#[derive(Clone, Debug)]
pub(crate) enum BoolExpr {
    Literal(bool),
    Verified,
    Has(Field),
    HasKey(TextExpr),
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    If(Box<Conditional<Self>>),
    Same(Box<Self>, Box<Self>),
    Numbers(Comparison, NumberExpr, NumberExpr),
    Texts(Comparison, TextExpr, TextExpr),
    Contains(TextTest, TextExpr, TextExpr),
    Matches(TextExpr, Regex),
    InList(TextExpr, ListExpr),
    InNumbers(NumberExpr, Box<[NumberExpr]>),
}

/// A whole number.
#[derive(Clone, Debug)]
pub(crate) enum NumberExpr {
    Literal(i64),
    Option(&'static str),
    TextSize(Box<TextExpr>),
    ListSize(Box<ListExpr>),
    Negative(Box<Self>),
    Calculation(Operation, Box<Self>, Box<Self>),
    If(Box<Conditional<Self>>),
}

/// A text.
#[derive(Clone, Debug)]
pub(crate) enum TextExpr {
    Literal(Box<[u8]>),
    Field(TextField),
    Index(Box<ListExpr>, Box<NumberExpr>),
    If(Box<Conditional<Self>>),
}

/// A list of texts.
#[derive(Clone, Debug)]
pub(crate) enum ListExpr {
    Groups,
    Extra(Box<TextExpr>),
    Literal(Box<[TextExpr]>),
    If(Box<Conditional<Self>>),
}

/// `condition ? then : otherwise`.
#[derive(Clone, Debug)]
pub(crate) struct Conditional<T> {
    pub(crate) condition: BoolExpr,
    pub(crate) then: T,
    pub(crate) otherwise: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What a text is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextTest {
    Contains,
    EndsWith,
    StartsWith,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Comparison {
    fn holds<T: Ord>(self, left: T, right: T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
        }
    }
}

impl<T> Conditional<T> {
    fn chosen(&self, input: &ConditionInput<'_>) -> Value<&T> {
        Ok(match self.condition.evaluate(input)? {
            true => &self.then,
            false => &self.otherwise,
        })
    }
}

impl BoolExpr {
    pub(crate) fn evaluate(&self, input: &ConditionInput<'_>) -> Value<bool> {
        match self {
            Self::Literal(value) => Ok(*value),
            Self::Verified => Ok(input.is_verified),
            Self::Has(field) => fields::is_set(*field, input),
            Self::HasKey(key) => Ok(extra(&key.evaluate(input)?, input).is_some()),
            Self::Not(value) => Ok(!value.evaluate(input)?),
            Self::And(left, right) => decided_by(left, right, false, input),
            Self::Or(left, right) => decided_by(left, right, true, input),
            Self::If(conditional) => conditional.chosen(input)?.evaluate(input),
            Self::Same(left, right) => Ok(left.evaluate(input)? == right.evaluate(input)?),
            Self::Numbers(comparison, left, right) => {
                Ok(comparison.holds(left.evaluate(input)?, right.evaluate(input)?))
            }
            Self::Texts(comparison, left, right) => {
                Ok(comparison.holds(&*left.evaluate(input)?, &*right.evaluate(input)?))
            }
            Self::Contains(test, text, part) => {
                let (text, part) = (text.evaluate(input)?, part.evaluate(input)?);
                Ok(match test {
                    TextTest::Contains => memmem::find(&text, &part).is_some(),
                    TextTest::EndsWith => text.ends_with(&part),
                    TextTest::StartsWith => text.starts_with(&part),
                })
            }
            Self::Matches(text, regex) => Ok(regex.is_match(&text.evaluate(input)?)),
            Self::InList(text, list) => list.contains(&text.evaluate(input)?, input),
            Self::InNumbers(number, list) => {
                let number = number.evaluate(input)?;
                for one in list {
                    if one.evaluate(input)? == number {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

/// `&&` (of which `decisive` is false) and `||`. As in CEL, a side that decides alone makes up for an
/// error of the other one.
fn decided_by(
    left: &BoolExpr,
    right: &BoolExpr,
    decisive: bool,
    input: &ConditionInput<'_>,
) -> Value<bool> {
    let left = left.evaluate(input);
    if left == Ok(decisive) {
        return left;
    }
    let right = right.evaluate(input);
    if right == Ok(decisive) {
        return right;
    }
    left.and(right)
}

impl NumberExpr {
    fn evaluate(&self, input: &ConditionInput<'_>) -> Value<i64> {
        match self {
            Self::Literal(number) => Ok(*number),
            Self::Option(name) => fields::number(name, input),
            Self::TextSize(text) => {
                let text = text.evaluate(input)?;
                Ok(to_number(String::from_utf8_lossy(&text).chars().count()))
            }
            Self::ListSize(list) => list.len(input),
            Self::Negative(number) => {
                let number = number.evaluate(input)?;
                number.checked_neg().ok_or(EvaluationError::Arithmetic)
            }
            Self::Calculation(operation, left, right) => {
                let (left, right) = (left.evaluate(input)?, right.evaluate(input)?);
                let result = match operation {
                    Operation::Add => left.checked_add(right),
                    Operation::Subtract => left.checked_sub(right),
                    Operation::Multiply => left.checked_mul(right),
                    Operation::Divide => left.checked_div(right),
                    Operation::Remainder => left.checked_rem(right),
                };
                result.ok_or(EvaluationError::Arithmetic)
            }
            Self::If(conditional) => conditional.chosen(input)?.evaluate(input),
        }
    }
}

fn to_number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl TextExpr {
    fn evaluate<'a>(&'a self, input: &ConditionInput<'a>) -> Value<Cow<'a, [u8]>> {
        match self {
            Self::Literal(text) => Ok(Cow::Borrowed(text)),
            Self::Field(field) => field.value(input),
            Self::Index(list, index) => list.get(index.evaluate(input)?, input),
            Self::If(conditional) => conditional.chosen(input)?.evaluate(input),
        }
    }
}

/// The values of a key of `request.extra`.
fn extra<'a>(key: &[u8], input: &ConditionInput<'a>) -> Option<&'a [String]> {
    let mut all = input.user.extra.iter();
    let found = all.find(|(name, _)| name.as_bytes() == key);
    found.map(|(_, values)| &**values)
}

impl ListExpr {
    /// The texts of a list that the request has, or the expressions of a literal one.
    fn resolve<'a>(&'a self, input: &ConditionInput<'a>) -> Value<ListValue<'a>> {
        match self {
            Self::Groups => Ok(ListValue::Texts(&input.user.groups)),
            Self::Extra(key) => {
                let values = extra(&key.evaluate(input)?, input);
                values
                    .map(ListValue::Texts)
                    .ok_or(EvaluationError::NoSuchKey)
            }
            Self::Literal(items) => Ok(ListValue::Expressions(items)),
            Self::If(conditional) => conditional.chosen(input)?.resolve(input),
        }
    }

    fn contains(&self, text: &[u8], input: &ConditionInput<'_>) -> Value<bool> {
        match self.resolve(input)? {
            ListValue::Texts(texts) => Ok(texts.iter().any(|one| one.as_bytes() == text)),
            ListValue::Expressions(items) => {
                for item in items {
                    if *item.evaluate(input)? == *text {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    fn len(&self, input: &ConditionInput<'_>) -> Value<i64> {
        Ok(to_number(match self.resolve(input)? {
            ListValue::Texts(texts) => texts.len(),
            ListValue::Expressions(items) => items.len(),
        }))
    }

    fn get<'a>(&'a self, index: i64, input: &ConditionInput<'a>) -> Value<Cow<'a, [u8]>> {
        let index = usize::try_from(index).map_err(|_| EvaluationError::NoSuchIndex)?;
        match self.resolve(input)? {
            ListValue::Texts(texts) => {
                let text = texts.get(index).ok_or(EvaluationError::NoSuchIndex)?;
                Ok(text.as_bytes().into())
            }
            ListValue::Expressions(items) => {
                let item = items.get(index).ok_or(EvaluationError::NoSuchIndex)?;
                item.evaluate(input)
            }
        }
    }
}

enum ListValue<'a> {
    Texts(&'a [String]),
    Expressions(&'a [TextExpr]),
}
