//! How large a result is as a frame, and what becomes of one that is too large.
//!
//! It is the encoded size that counts: a control character takes six bytes in JSON.

use devmind_domain::protocol::{CallResult, DeviceFrame, Envelope};

/// Bytes of the frame, with the longest number and id that its envelope can have.
fn encoded_bytes(frame: &DeviceFrame) -> usize {
    let envelope = Envelope { event_id: uuid::Uuid::nil().to_string(), sequence: u64::MAX, frame };
    // What cannot be encoded fits nowhere.
    serde_json::to_string(&envelope).map_or(usize::MAX, |text| text.len())
}

/// Whether a result fits into one frame.
pub(super) fn fits(result: CallResult, max_message_bytes: usize) -> bool {
    encoded_bytes(&DeviceFrame::Result(Box::new(result))) <= max_message_bytes
}

/// Whether a result with this text as its output certainly does: as a part of a frame it is about as long, and all
/// else in the frame is short.
pub(super) fn surely_fits(output: &str, max_message_bytes: usize) -> bool {
    output.len() <= max_message_bytes / 8
}

/// The frame of a result. One that was stored for a server with larger frames goes without its
/// output: how the call ended matters more.
pub(crate) fn fitting(result: CallResult, max_message_bytes: usize) -> DeviceFrame {
    let frame = DeviceFrame::Result(Box::new(result));
    let fits = encoded_bytes(&frame) <= max_message_bytes;
    match frame {
        DeviceFrame::Result(result) if result.output.is_some() && !fits => {
            DeviceFrame::Result(Box::new(CallResult { output: None, output_discarded: true, ..*result }))
        }
        frame => frame,
    }
}
