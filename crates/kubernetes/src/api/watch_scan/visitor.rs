//! Events in JSON or CBOR: `{"type": …, "object": …}`, one after another.
//!
//! A bookmark of a table has its object in a row.

use super::totals::{INITIAL_EVENTS_END, WatchEventType, WatchTotals};
use crate::api::list_scan::is_transformed_kind;
use crate::api::walk::{LeafValue, ValueKind, ValueStart, VisitAction, Visitor};

#[derive(Debug, Default)]
pub(super) struct WatchVisitor {
    totals: WatchTotals,
    event_type: WatchEventType,
    /// Whether the event's object has the annotation.
    has_end_annotation: bool,
    /// Whether the kind of the first object was read.
    kind_checked: bool,
    /// Offset of the current object.
    object_start: Option<u64>,
    object_length: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum WatchContext {
    Annotations,
    Event,
    Kind,
    EndAnnotation,
    Metadata,
    Object,
    /// An object within a row.
    RowObject,
    Row,
    Rows,
    Type,
}

impl WatchVisitor {
    pub(super) const fn totals(&self) -> WatchTotals {
        self.totals
    }

    fn visit_member(
        &mut self,
        name: Option<&[u8]>,
        kind: ValueKind,
        at: u64,
    ) -> VisitAction<WatchContext> {
        match name {
            Some(b"type") if kind == ValueKind::Text => VisitAction::Enter(WatchContext::Type),
            Some(b"object") => {
                self.object_start = Some(at);
                let first = self.event_type == WatchEventType::Added
                    && !std::mem::replace(&mut self.kind_checked, true);
                let wanted = matches!(
                    self.event_type,
                    WatchEventType::Bookmark | WatchEventType::Unknown
                );
                enter_if(
                    WatchContext::Object,
                    kind == ValueKind::Map && (first || wanted),
                )
            }
            _ => VisitAction::Skip,
        }
    }
}

fn enter_if(context: WatchContext, wanted: bool) -> VisitAction<WatchContext> {
    if wanted {
        VisitAction::Enter(context)
    } else {
        VisitAction::Skip
    }
}

impl Visitor for WatchVisitor {
    type Context = WatchContext;

    fn visit(&mut self, value: ValueStart<'_, WatchContext>) -> VisitAction<WatchContext> {
        let ValueStart {
            parent,
            name,
            kind,
            offset: at,
        } = value;
        let is_map = kind == ValueKind::Map;
        match (parent, name) {
            (None, _) if is_map => {
                (self.event_type, self.has_end_annotation) = (WatchEventType::Unknown, false);
                self.object_length = 0;
                VisitAction::Enter(WatchContext::Event)
            }
            (None, _) => VisitAction::Stop,
            (Some(WatchContext::Event), _) => self.visit_member(name, kind, at),
            (Some(WatchContext::Object), Some(b"kind")) => {
                enter_if(WatchContext::Kind, kind == ValueKind::Text)
            }
            (Some(WatchContext::Object), Some(b"rows")) => {
                enter_if(WatchContext::Rows, kind == ValueKind::List)
            }
            (Some(WatchContext::Rows), _) => enter_if(WatchContext::Row, is_map),
            (Some(WatchContext::Row), Some(b"object")) => enter_if(WatchContext::RowObject, is_map),
            (Some(WatchContext::Object | WatchContext::RowObject), Some(b"metadata")) => {
                enter_if(WatchContext::Metadata, is_map)
            }
            (Some(WatchContext::Metadata), Some(b"annotations")) => {
                enter_if(WatchContext::Annotations, is_map)
            }
            (Some(WatchContext::Annotations), Some(INITIAL_EVENTS_END)) => {
                enter_if(WatchContext::EndAnnotation, kind == ValueKind::Text)
            }
            _ => VisitAction::Skip,
        }
    }

    fn visit_scalar(&mut self, context: WatchContext, value: LeafValue<'_>) -> bool {
        if let LeafValue::Text(text) = value {
            match context {
                WatchContext::Type => self.event_type = WatchEventType::from_name(text),
                WatchContext::EndAnnotation => self.has_end_annotation |= text == Some(b"true"),
                WatchContext::Kind => {
                    self.totals.events.transformed |= text.is_some_and(is_transformed_kind)
                }
                WatchContext::Annotations
                | WatchContext::Event
                | WatchContext::Metadata
                | WatchContext::Object
                | WatchContext::RowObject
                | WatchContext::Row
                | WatchContext::Rows => {}
            }
        }
        true
    }

    fn end_value(&mut self, parent: Option<WatchContext>, at: u64) {
        match parent {
            None => self.totals.record_event(
                self.event_type,
                self.has_end_annotation,
                self.object_length,
            ),
            Some(WatchContext::Event) => {
                if let Some(began) = self.object_start.take() {
                    self.object_length = at.saturating_sub(began);
                }
            }
            Some(_) => {}
        }
    }
}
