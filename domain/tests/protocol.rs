//! The wire protocol, frame by frame, as the specification writes it.

use devmind_domain::protocol::{CallResult, CloseCode, DeviceFrame, Envelope, ServerFrame};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Every frame of the device, every field present.
fn device_frames() -> Vec<Value> {
    vec![
        json!({"type": "device.register", "device_id": "d", "instance_id": "i", "journal_id": "j", "journal_epoch": 5,
            "version": "0.1.0", "protocol_version": 1, "computer": "anns-laptop", "workspace": "my-project"}),
        json!({"type": "tool.registry.sync", "tools": [{"name": "workspace.read_file", "version": "1", "risk": "MEDIUM",
            "schema": {"type": "object"}, "timeout_ms": 10000, "requires_confirmation": true}]}),
        json!({"type": "tool.call.received", "tool_call_id": "g:c", "attempt_no": 1, "phase": "reserved"}),
        json!({"type": "tool.call.result", "tool_call_id": "g:c", "executed_attempt_no": 1, "status": "succeeded",
            "output": {"n": 1.5, "big": 9007199254740991_u64, "none": null}, "output_sha256": "h", "output_discarded": true,
            "error": {"code": "IO_ERROR", "message": "disk"}, "started_at": "2026-11-29T22:04:51.123456Z",
            "finished_at": "2026-11-29T22:04:51.131000Z"}),
        json!({"type": "tool.call.refused", "tool_call_id": "g:c", "attempt_no": 1, "code": "DEVICE_BUSY"}),
        json!({"type": "heartbeat", "time": "2026-11-29T22:04:51.123456Z", "answers": "2026-11-29T22:04:51.123455Z"}),
        json!({"type": "protocol.error", "code": "PROTOCOL_ERROR", "message": "no such type", "about_event_id": "e"}),
    ]
}

/// Every frame of the server, every field present.
fn server_frames() -> Vec<Value> {
    vec![
        json!({"type": "device.registered", "connection_id": "s", "connection_epoch": 3, "server_id": "l",
            "user_hash": "u", "heartbeat_interval_ms": 15000, "max_message_bytes": 4194304,
            "server_time": "2026-11-29T22:04:51.123456Z", "settled_position": 42,
            "head": {"checkpoint": "log\n42\n…\n\n— log …\n", "key": "log+00000000+…"}}),
        json!({"type": "tool.call.request", "tool_call_id": "g:c", "run_id": "r", "attempt_no": 1,
            "tool_name": "workspace.read_file", "tool_version": "1", "arguments_json": "{\"path\":\"a\"}", "call_hash": "h",
            "requires_confirmation": true, "execution_timeout_ms": 10000, "ttl_ms": 105000,
            "expires_at": "2026-11-29T22:06:36.123456Z",
            "call_created_at": "2026-11-29T22:04:51.123456Z", "device_id": "d", "conversation_title": "t"}),
        json!({"type": "tool.call.ack", "tool_call_id": "g:c", "disposition": "stored"}),
        json!({"type": "tool.call.nack", "tool_call_id": "g:c", "code": "RESULT_TOO_LARGE", "permanent": true}),
        json!({"type": "tool.call.cancel", "tool_call_id": "g:c", "attempt_no": 1, "reason": "RUN_CANCELLED"}),
        json!({"type": "heartbeat", "time": "2026-11-29T22:04:51.123456Z", "answers": "2026-11-29T22:04:51.123455Z"}),
        json!({"type": "protocol.error", "code": "PROTOCOL_ERROR", "message": "no such type", "about_event_id": "e"}),
    ]
}

/// A frame as it travels: with the envelope's fields beside its own.
fn enveloped(frame: &Value) -> Value {
    let mut value = frame.clone();
    value["event_id"] = json!("019acf3e-6b1a-7c41-9d2e-000000000001");
    value["sequence"] = json!(7);
    value
}

fn keys(frame: &Value) -> Vec<String> {
    frame.as_object().expect("an object").keys().cloned().collect()
}

/// Reads and writes every frame, with its envelope, without one field that may be left out, and with one it does not know.
fn check<T: Serialize + DeserializeOwned>(frames: &[Value], optional: &[(&str, &str)]) {
    for frame in frames {
        let kind = frame["type"].as_str().expect("a type");
        let travelling = enveloped(frame);
        let envelope: Envelope<T> = serde_json::from_str(&travelling.to_string()).expect(kind);
        assert_eq!((envelope.sequence, envelope.event_id.as_str()), (7, "019acf3e-6b1a-7c41-9d2e-000000000001"));
        assert_eq!(serde_json::to_value(&envelope).expect(kind), travelling, "{kind} changed on its way through");

        let mut newer = travelling.clone();
        newer["colour"] = json!({"nested": ["blue"]});
        let read: Envelope<T> = serde_json::from_value(newer).expect("unknown fields are ignored");
        assert_eq!(serde_json::to_value(&read).expect(kind), travelling);

        for key in keys(&travelling) {
            let mut without = travelling.clone();
            without.as_object_mut().expect("an object").remove(&key);
            let read = serde_json::from_value::<Envelope<T>>(without);
            assert_eq!(read.is_ok(), optional.contains(&(kind, key.as_str())), "{kind} without {key}");
        }
    }
}

#[test]
fn every_frame_of_the_device_is_written_as_the_specification_says() {
    let result = "tool.call.result";
    let optional = ["output", "output_sha256", "output_discarded", "error", "started_at", "finished_at"];
    let mut optional: Vec<_> = optional.map(|key| (result, key)).to_vec();
    optional.extend([("heartbeat", "answers"), ("protocol.error", "about_event_id")]);
    optional.extend([("device.register", "computer"), ("device.register", "workspace")]);
    check::<DeviceFrame>(&device_frames(), &optional);
}

#[test]
fn every_frame_of_the_server_is_written_as_the_specification_says() {
    check::<ServerFrame>(
        &server_frames(),
        &[
            ("device.registered", "head"),
            ("tool.call.request", "expires_at"),
            ("heartbeat", "answers"),
            ("protocol.error", "about_event_id"),
        ],
    );
}

#[test]
fn a_result_without_its_optional_fields_leaves_them_out() {
    let bare =
        json!({"type": "tool.call.result", "tool_call_id": "g:c", "executed_attempt_no": 1, "status": "rejected"});
    let frame: DeviceFrame = serde_json::from_value(bare.clone()).expect("reads");
    assert_eq!(serde_json::to_value(&frame).expect("writes"), bare);
    let DeviceFrame::Result(result) = frame else { panic!("{frame:?}") };
    assert!(matches!(*result, CallResult { output: None, output_discarded: false, error: None, .. }));
}

#[test]
fn a_frame_of_an_unknown_type_or_of_the_other_direction_is_an_error() {
    for kind in ["tool.call.invented", "", "DEVICE.REGISTER"] {
        let frame = enveloped(&json!({ "type": kind }));
        assert!(serde_json::from_value::<Envelope<DeviceFrame>>(frame.clone()).is_err(), "{kind}");
        assert!(serde_json::from_value::<Envelope<ServerFrame>>(frame).is_err(), "{kind}");
    }
    let both = ["heartbeat", "protocol.error"].map(|kind| json!(kind));
    for frame in device_frames().iter().filter(|frame| !both.contains(&frame["type"])) {
        assert!(serde_json::from_value::<ServerFrame>(frame.clone()).is_err(), "{frame}");
    }
    for frame in server_frames().iter().filter(|frame| !both.contains(&frame["type"])) {
        assert!(serde_json::from_value::<DeviceFrame>(frame.clone()).is_err(), "{frame}");
    }
}

#[test]
fn text_that_is_no_frame_is_an_error_and_never_a_panic() {
    for text in ["", "null", "[]", "7", "{}", r#"{"type":7}"#, r#"{"type":"heartbeat","sequence":-1}"#, "{\"type\":"] {
        assert!(serde_json::from_str::<Envelope<DeviceFrame>>(text).is_err(), "{text}");
    }
    let deep = format!(r#"{{"type":"heartbeat","x":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    assert!(serde_json::from_str::<Envelope<DeviceFrame>>(&deep).is_err());
}

#[test]
fn an_integer_that_the_log_could_not_keep_exactly_is_refused_at_the_door() {
    let largest = (1_u64 << 53) - 1;
    for (value, accepted) in [(largest, true), (largest + 1, false), (u64::MAX, false)] {
        let mut register = device_frames()[0].clone();
        register["journal_epoch"] = json!(value);
        assert_eq!(serde_json::from_value::<DeviceFrame>(register).is_ok(), accepted, "{value}");
        let mut sync = device_frames()[1].clone();
        sync["tools"][0]["timeout_ms"] = json!(value);
        assert_eq!(serde_json::from_value::<DeviceFrame>(sync).is_ok(), accepted, "{value}");
    }
}

#[test]
fn every_word_of_a_field_with_a_fixed_set_is_the_specifications() {
    let accepts = |frame: &Value, key: &str, word: &str| {
        let mut frame = frame.clone();
        frame[key] = json!(word);
        let read = serde_json::from_value::<DeviceFrame>(frame.clone()).map(|frame| serde_json::to_value(&frame));
        let read =
            read.or_else(|_| serde_json::from_value::<ServerFrame>(frame.clone()).map(|f| serde_json::to_value(&f)));
        read.is_ok_and(|written| written.expect("writes") == frame)
    };
    let (device, server) = (device_frames(), server_frames());
    for (frame, key, words) in [
        (&device[2], "phase", &["reserved", "confirming", "executing"][..]),
        (&device[3], "status", &["succeeded", "failed", "rejected", "cancelled", "indeterminate"]),
        (&server[2], "disposition", &["stored", "duplicate", "superseded", "unknown_call"]),
        (&server[4], "reason", &["RUN_CANCELLED", "WAIT_TIMED_OUT"]),
    ] {
        for word in words {
            assert!(accepts(frame, key, word), "{key}: {word}");
        }
        assert!(!accepts(frame, key, "else") && !accepts(frame, key, ""), "{key}");
    }
}

#[test]
fn close_codes_are_the_specifications_and_only_two_keep_a_device_off() {
    let numbers: Vec<u16> = CloseCode::ALL.iter().map(|code| code.as_u16()).collect();
    assert_eq!(numbers, [1001, 1003, 1009, 1012, 1013, 4400, 4401, 4403, 4408, 4409, 4429]);
    for code in CloseCode::ALL {
        assert_eq!(CloseCode::from_u16(code.as_u16()), Some(code));
    }
    for number in [0, 1000, 1006, 4402, 4499] {
        assert_eq!(CloseCode::from_u16(number), None);
    }
    let last: Vec<_> = CloseCode::ALL.into_iter().filter(|code| code.is_final_for_device()).collect();
    assert_eq!(last, [CloseCode::Denied, CloseCode::Replaced]);
}
