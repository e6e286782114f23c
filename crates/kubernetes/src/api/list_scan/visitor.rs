//! Lists in JSON or CBOR: the list's members, those of its metadata, and the bounds of the items.
//!
//! A list is an object with an array of objects, or null, as `items` or `rows`. An object with more
//! than one `items`, `rows` or `metadata` is not a list.

use super::totals::{ListTotals, is_transformed_kind};
use crate::api::walk::{LeafValue, ValueKind, ValueStart, VisitAction, Visitor};

#[derive(Debug, Default)]
pub(super) struct ListVisitor {
    started: bool,
    finished: bool,
    has_items: bool,
    totals: ListTotals,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ListContext {
    Continue,
    Items,
    Kind,
    List,
    Metadata,
    RemainingItemCount,
}

impl ListVisitor {
    /// The totals so far.
    pub(super) const fn totals_so_far(&self) -> ListTotals {
        self.totals
    }

    /// The totals, if the list is complete.
    pub(super) fn finish(&self) -> Option<ListTotals> {
        (self.finished && self.has_items).then_some(self.totals)
    }

    fn visit_member(&mut self, name: Option<&[u8]>, kind: ValueKind) -> VisitAction<ListContext> {
        match name {
            Some(b"items" | b"rows") => {
                self.totals.transformed |= name == Some(b"rows");
                let again = std::mem::replace(&mut self.has_items, true);
                enter_or_stop(
                    ListContext::Items,
                    !again && is_kind_or_null(kind, ValueKind::List),
                )
            }
            Some(b"metadata") => {
                let again = std::mem::replace(&mut self.totals.has_metadata, true);
                enter_or_stop(
                    ListContext::Metadata,
                    !again && is_kind_or_null(kind, ValueKind::Map),
                )
            }
            Some(b"kind") if kind == ValueKind::Text => VisitAction::Enter(ListContext::Kind),
            _ => VisitAction::Skip,
        }
    }
}

fn enter_or_stop(context: ListContext, allowed: bool) -> VisitAction<ListContext> {
    if allowed {
        VisitAction::Enter(context)
    } else {
        VisitAction::Stop
    }
}

/// Whether the value is of the wanted kind or may be null.
fn is_kind_or_null(kind: ValueKind, wanted: ValueKind) -> bool {
    kind == wanted || kind == ValueKind::Other
}

impl Visitor for ListVisitor {
    type Context = ListContext;

    fn visit(&mut self, value: ValueStart<'_, ListContext>) -> VisitAction<ListContext> {
        let ValueStart {
            parent,
            name,
            kind,
            offset: at,
        } = value;
        match (parent, name) {
            (None, _) => {
                let again = std::mem::replace(&mut self.started, true);
                enter_or_stop(ListContext::List, !again && kind == ValueKind::Map)
            }
            (Some(ListContext::List), _) => self.visit_member(name, kind),
            (Some(ListContext::Items), _) if kind == ValueKind::Map => {
                self.totals.begin_item(at);
                VisitAction::Skip
            }
            (Some(ListContext::Items), _) => VisitAction::Stop,
            (Some(ListContext::Metadata), Some(b"continue")) => enter_or_stop(
                ListContext::Continue,
                is_kind_or_null(kind, ValueKind::Text),
            ),
            (Some(ListContext::Metadata), Some(b"remainingItemCount")) => {
                enter_or_stop(ListContext::RemainingItemCount, kind == ValueKind::Other)
            }
            _ => VisitAction::Skip,
        }
    }

    fn visit_scalar(&mut self, context: ListContext, value: LeafValue<'_>) -> bool {
        match (context, value) {
            (ListContext::Items | ListContext::Metadata, LeafValue::Null) => {}
            (ListContext::Continue, LeafValue::Null) => self.totals.has_continue_token = false,
            (ListContext::Continue, LeafValue::Text(text)) => {
                self.totals.has_continue_token = text != Some(b"")
            }
            (ListContext::RemainingItemCount, LeafValue::Null) => {
                self.totals.remaining_items = None
            }
            (ListContext::RemainingItemCount, LeafValue::Number(number)) => {
                self.totals.remaining_items = Some(number);
            }
            (ListContext::Kind, LeafValue::Text(kind)) => {
                self.totals.transformed |= kind.is_some_and(is_transformed_kind);
            }
            _ => return false,
        }
        true
    }

    fn end_value(&mut self, parent: Option<ListContext>, at: u64) {
        match parent {
            None => self.finished = true,
            Some(ListContext::Items) => self.totals.end_item(at),
            Some(_) => {}
        }
    }
}
