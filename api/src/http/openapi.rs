//! The description of the API (OpenAPI 3.1), made from the same handlers as the router.
//!
//! Every refusal that a route can answer is declared beside the route, by its stable code; the
//! statuses follow from the codes.

use axum::Json;
use axum::extract::Extension;
use devmind_domain::ErrorCode;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    AllOfBuilder, ContentBuilder, ObjectBuilder, OpenApi as Document, Ref, RefOr, Schema, SecurityRequirement, Type,
};
use utoipa::{Modify, OpenApi, ToSchema};

/// Every route that reads or changes something for a person; reads of others' data are recorded, so
/// that reading writes too.
pub const PERSONAL: &[ErrorCode] = &[
    ErrorCode::Unauthenticated,
    ErrorCode::ShuttingDown,
    ErrorCode::NotReady,
    ErrorCode::Internal,
    ErrorCode::LedgerUnavailable,
    ErrorCode::LedgerOverloaded,
    ErrorCode::LedgerInDoubt,
    ErrorCode::LedgerCorrupt,
    ErrorCode::LedgerSchemaNewer,
    ErrorCode::VersionConflict,
];
/// Every route with parameters.
pub const QUERY: &[ErrorCode] = &[ErrorCode::ValidationFailed];
/// Every route with a body that changes something.
pub const CHANGE: &[ErrorCode] = &[
    ErrorCode::ReadOnlyRole,
    ErrorCode::MalformedJson,
    ErrorCode::RequestTimeout,
    ErrorCode::BodyTooLarge,
    ErrorCode::ValidationFailed,
    ErrorCode::EventTooLarge,
];

/// Names the refusals of a route: lists of codes, then codes of its own.
macro_rules! refusals {
    ($name:ident: $($list:ident),* $(; $($code:ident),+)?) => {
        /// The refusals of a route.
        pub struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses()
            -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::response::Response>> {
                use devmind_domain::ErrorCode;
                let own: &[ErrorCode] = &[$($(ErrorCode::$code),+)?];
                $crate::http::openapi::responses(&[$($crate::http::openapi::$list,)* own])
            }
        }
    };
}
pub(crate) use refusals;

/// One response a status, which names its codes.
pub fn responses(lists: &[&[ErrorCode]]) -> BTreeMap<String, RefOr<Response>> {
    let mut codes: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
    for code in lists.iter().copied().flatten() {
        let same_status = codes.entry(code.http_status()).or_default();
        if !same_status.contains(code) {
            same_status.push(*code);
        }
    }
    codes.into_iter().map(|(status, codes)| (status.to_string(), RefOr::T(refusal(&codes)))).collect()
}

fn refusal(codes: &[ErrorCode]) -> Response {
    let lines: Vec<_> = codes.iter().map(|code| format!("`{code}`: {}", code.help())).collect();
    let code = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(codes.iter().map(|code| code.as_str())));
    let error = ObjectBuilder::new().property("code", code);
    let schema =
        AllOfBuilder::new().item(Ref::from_schema_name("Refusal")).item(ObjectBuilder::new().property("error", error));
    let content = ContentBuilder::new().schema(Some(Schema::from(schema))).build();
    ResponseBuilder::new().description(lines.join("\n\n")).content("application/json", content).build()
}

/// The body of every refusal.
#[derive(Serialize, ToSchema)]
pub struct Refusal {
    /// What was refused.
    pub error: RefusalDetails,
}

/// What was refused.
#[derive(Serialize, ToSchema)]
pub struct RefusalDetails {
    /// A stable code; it is never renamed.
    pub code: String,
    /// What is wrong with this request.
    pub message: String,
    /// What can be done about it.
    pub hint: String,
    /// Whether the same request may succeed later.
    pub retriable: bool,
    /// More, for programs: `field` names the field that cannot be used.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// One frame of a run's stream (server-sent events).
#[derive(Serialize, ToSchema)]
pub struct RunStreamFrame {
    /// The place in the stream, for `Last-Event-ID`; only where the stream is read again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// One `AgUiEvent` as JSON.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

/// One frame of the log's stream (server-sent events).
#[derive(Serialize, ToSchema)]
pub struct LedgerStreamFrame {
    /// The event's position, for `Last-Event-ID`.
    pub id: String,
    /// One `EventRow` as JSON.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "DevMind Ledger",
        description = "An agent server whose every state change is an appended, verifiable event. JSON in, JSON out; \
            a run's events are a stream of server-sent events (AG-UI 1.0). Fields and parameters that are not \
            described here are refused (422), except in the input of AG-UI clients. An auditor reads everything \
            and changes nothing; what auditors and operators read of others is recorded in the ledger.",
    ),
    components(schemas(Refusal, RunStreamFrame, LedgerStreamFrame, crate::agui::AgUiEvent, super::ClientId, super::fields::UserName, super::runs::LastEventId, super::ledger_stream::LastPosition)),
    tags(
        (name = "conversations", description = "Questions and answers."),
        (name = "runs", description = "Executing, answering, stopping and reading again."),
        (name = "devices", description = "People's own computers."),
        (name = "ledger", description = "The log itself."),
        (name = "server", description = "The process."),
    ),
    modifiers(&Security),
)]
struct Base;

/// The description's frame, without the routes.
pub fn base() -> Document {
    Base::openapi()
}

/// Tokens, and the headers of development mode.
struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut Document) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token that `devmind token` made; its hash stands in the server's configuration."))
            .build();
        let dev_user = ApiKeyValue::with_description(
            "X-Dev-User",
            "A name, in development mode and on a loopback address only. `X-Dev-Role: auditor` or `operator` beside \
             it takes that role.",
        );
        if let Some(components) = document.components.as_mut() {
            components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
            components.add_security_scheme("dev_user", SecurityScheme::ApiKey(ApiKey::Header(dev_user)));
        }
        let one_of = ["bearer", "dev_user"].map(|name| SecurityRequirement::new::<_, [&str; 0], &str>(name, []));
        document.security = Some(one_of.to_vec());
    }
}

/// Rows whose every field is always there, `null` where there is nothing.
const ROWS: [&str; 9] = [
    "ConversationRow",
    "TurnRow",
    "PendingApproval",
    "TurnToolCall",
    "ActiveRunRow",
    "ToolCallRow",
    "ToolAttemptRow",
    "DeviceRow",
    "ProjectionStatus",
];

/// The finished description: what the macros cannot say is added.
pub fn finish(document: &Document) -> Value {
    let mut document = serde_json::to_value(document).unwrap_or_default();
    let schemas = &mut document["components"]["schemas"];
    for row in ROWS {
        if let Some(properties) = schemas[row]["properties"].as_object() {
            let names: Vec<_> = properties.keys().cloned().collect();
            schemas[row]["required"] = json!(names);
        }
    }
    schemas["RunStreamFrame"]["properties"]["data"]["contentSchema"] =
        json!({ "$ref": "#/components/schemas/AgUiEvent" });
    schemas["LedgerStreamFrame"]["properties"]["data"]["contentSchema"] =
        json!({ "$ref": "#/components/schemas/EventRow" });
    let operations = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    for operation in operations.filter_map(Value::as_object_mut).flat_map(|methods| methods.values_mut()) {
        for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
            // A parameter is there or not; it is never null.
            if let Some(schema) = parameter["schema"].get("oneOf").and_then(|either| either.get(0)).cloned() {
                parameter["schema"] = schema;
            }
        }
    }
    document
}

/// The description, shared by the requests that ask for it.
#[derive(Clone)]
pub struct Description(pub Arc<Value>);

/// The description of the API.
#[utoipa::path(get, path = "/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "This document.", body = Object)))]
pub async fn document(Extension(Description(document)): Extension<Description>) -> Json<Value> {
    Json(Value::clone(&document))
}
