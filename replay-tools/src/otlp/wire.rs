//! A span and its JSON form in the OpenTelemetry protocol.
//!
//! The encoding is protobuf's JSON mapping with OTLP's exceptions: ids in lower-case hex, 64-bit integers as decimal
//! strings, enums as numbers (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>). The few messages that
//! are needed are written here: the generated ones come with a gRPC stack.

use devmind_domain::Timestamp;
use devmind_domain::canonical::sha256_hex;
use serde_json::{Value, json};

/// Hex characters of a trace id.
const TRACE_ID_CHARS: usize = 32;
/// Hex characters of a span id.
const SPAN_ID_CHARS: usize = 16;

/// What a span's time was spent in, as OTLP numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Internal = 1,
    Client = 3,
}

/// A name and its value: text, number, truth or a list of texts.
pub(super) type Attribute = (&'static str, Value);

/// Where a span stands: its trace and itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub trace_id: String,
    pub span_id: String,
}

impl Context {
    /// The context that a W3C `traceparent` names, where it is one of version 00.
    pub fn parse(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let (version, trace_id, span_id, _) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, chars| {
            text.len() == chars
                && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
                && text.bytes().any(|byte| byte != b'0')
        };
        (version == "00" && hex(trace_id, TRACE_ID_CHARS) && hex(span_id, SPAN_ID_CHARS))
            .then(|| Self { trace_id: trace_id.to_owned(), span_id: span_id.to_owned() })
    }
}

/// The same id for the same thing in every export.
pub(super) fn trace_id(of: &str) -> String {
    sha256_hex(format!("devmind trace {of}").as_bytes())[..TRACE_ID_CHARS].to_owned()
}

/// The same id for the same thing in every export.
pub(super) fn span_id(of: &str) -> String {
    sha256_hex(format!("devmind span {of}").as_bytes())[..SPAN_ID_CHARS].to_owned()
}

/// Something that happened within a span.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SpanEvent {
    pub at: Timestamp,
    pub name: String,
    pub attributes: Vec<Attribute>,
}

/// One span.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub context: Context,
    pub parent_span_id: Option<String>,
    pub name: String,
    pub kind: Kind,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<Attribute>,
    pub events: Vec<SpanEvent>,
    /// Other spans it has to do with.
    pub links: Vec<Context>,
    /// Why it did not succeed.
    pub error: Option<String>,
}

impl Span {
    fn to_json(&self) -> Value {
        const STATUS_ERROR: u32 = 2;
        let mut span = json!({
            "traceId": self.context.trace_id, "spanId": self.context.span_id, "name": self.name,
            "kind": self.kind as u32, "startTimeUnixNano": nanos(self.start), "endTimeUnixNano": nanos(self.end),
            "attributes": attributes(&self.attributes),
            "events": self.events.iter().map(|event| json!({
                "timeUnixNano": nanos(event.at), "name": event.name, "attributes": attributes(&event.attributes),
            })).collect::<Vec<_>>(),
            "links": self.links.iter().map(|link| json!({ "traceId": link.trace_id, "spanId": link.span_id }))
                .collect::<Vec<_>>(),
            "status": self.error.as_ref().map_or_else(|| json!({}), |why| json!({ "code": STATUS_ERROR, "message": why })),
        });
        if let Some(parent) = &self.parent_span_id {
            span["parentSpanId"] = json!(parent);
        }
        span
    }
}

/// One request of the trace service, and one line of a file.
pub(super) fn request(resource: &[Attribute], spans: &[Span]) -> Value {
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes(resource) },
        "scopeSpans": [{
            "scope": { "name": "devmind-replay", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans.iter().map(Span::to_json).collect::<Vec<_>>(),
        }],
    }] })
}

fn nanos(moment: Timestamp) -> String {
    (i128::from(moment.as_micros()) * 1_000).max(0).to_string()
}

fn attributes(pairs: &[Attribute]) -> Vec<Value> {
    pairs.iter().map(|(key, value)| json!({ "key": key, "value": any_value(value) })).collect()
}

fn any_value(value: &Value) -> Value {
    match value {
        Value::Bool(truth) => json!({ "boolValue": truth }),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => json!({ "intValue": whole.to_string() }),
            None => json!({ "doubleValue": number }),
        },
        Value::String(text) => json!({ "stringValue": text }),
        Value::Array(list) => json!({ "arrayValue": { "values": list.iter().map(any_value).collect::<Vec<_>>() } }),
        // Structured content travels as JSON text: not every receiver takes nested values.
        Value::Object(_) | Value::Null => json!({ "stringValue": value.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_traceparent_that_names_a_trace_and_a_span_is_a_context() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let parsed = Context::parse(&format!("00-{trace}-00f067aa0ba902b7-01")).expect("a context");
        assert_eq!((parsed.trace_id.as_str(), parsed.span_id.as_str()), (trace, "00f067aa0ba902b7"));
        for wrong in [
            "",
            "00",
            "01-a-b-c",
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-{trace}-00F067AA0BA902B7-01"),
        ] {
            assert_eq!(Context::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sixty_four_bit_integers_travel_as_text_and_lists_as_lists() {
        assert_eq!(any_value(&json!(12)), json!({ "intValue": "12" }));
        assert_eq!(any_value(&json!(0.5)), json!({ "doubleValue": 0.5 }));
        assert_eq!(any_value(&json!(["stop"])), json!({ "arrayValue": { "values": [{ "stringValue": "stop" }] } }));
        assert_eq!(nanos(Timestamp::from_micros(1_700_000_000_000_001)), "1700000000000001000");
    }
}
