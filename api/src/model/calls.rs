//! Tool calls put together from their pieces.

use devmind_domain::thread::ModelToolCall;

/// Bytes that a call counts for besides its texts, so that empty ones are not free.
const BYTES_PER_CALL: usize = 64;

/// The tool calls of an answer that is under way.
///
/// A provider's index only says which pieces belong together: it need not begin at 0 or be dense,
/// and some endpoints give every call the same one. A piece with a name and with another id begins
/// another call, then. (An id alone does not: some endpoints invent a new one for every piece.)
#[derive(Clone, Debug, Default)]
pub struct Calls {
    calls: Vec<(usize, ModelToolCall)>,
    bytes: usize,
}

impl Calls {
    /// Takes a piece.
    pub fn add(&mut self, index: usize, id: Option<String>, name: Option<String>, arguments: &str) {
        let (id, name) = (id.unwrap_or_default(), name.unwrap_or_default());
        let known = self.calls.iter().rposition(|(known, _)| *known == index);
        let begun = known.filter(|at| {
            let call = &self.calls[*at].1;
            id.is_empty() || name.is_empty() || call.id.is_empty() || call.id == id
        });
        let at = begun.unwrap_or_else(|| {
            let call = ModelToolCall { id: String::new(), name: String::new(), arguments: String::new() };
            self.calls.push((index, call));
            self.bytes += BYTES_PER_CALL;
            self.calls.len() - 1
        });
        let call = &mut self.calls[at].1;
        // The first id and name count; later pieces repeat them or leave them out.
        for (known, new) in [(&mut call.id, id), (&mut call.name, name)] {
            if known.is_empty() {
                self.bytes += new.len();
                *known = new;
            }
        }
        call.arguments.push_str(arguments);
        self.bytes += arguments.len();
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How much they hold.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The calls in the order in which they began.
    pub fn into_vec(self) -> Vec<ModelToolCall> {
        self.calls.into_iter().map(|(_, call)| call).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Piece = (usize, Option<&'static str>, Option<&'static str>, &'static str);

    fn assembled(pieces: &[Piece]) -> Vec<(String, String, String)> {
        let mut calls = Calls::default();
        for (index, id, name, arguments) in pieces {
            calls.add(*index, id.map(str::to_owned), name.map(str::to_owned), arguments);
        }
        calls.into_vec().into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn pieces_of_several_calls_are_told_apart_by_index() {
        let pieces: &[Piece] = &[
            (0, Some("a"), Some("f"), "{ \"x\""),
            (1, Some("b"), Some("g"), ""),
            (0, None, None, " :1}"),
            (1, None, None, "{}"),
        ];
        assert_eq!(assembled(pieces), [call("a", "f", "{ \"x\" :1}"), call("b", "g", "{}")]);
    }

    #[test]
    fn an_index_need_not_begin_at_0_nor_be_dense() {
        let pieces: &[Piece] =
            &[(1, Some("a"), Some("f"), "1"), (1, None, None, "2"), (usize::MAX, Some("b"), Some("g"), "3")];
        assert_eq!(assembled(pieces), [call("a", "f", "12"), call("b", "g", "3")]);
    }

    #[test]
    fn calls_that_share_an_index_are_told_apart_by_id_and_name() {
        let pieces: &[Piece] = &[(0, Some("a"), Some("f"), "1"), (0, Some("b"), Some("f"), "2"), (0, None, None, "3")];
        assert_eq!(assembled(pieces), [call("a", "f", "1"), call("b", "f", "23")]);
    }

    #[test]
    fn an_id_that_changes_with_every_piece_begins_no_call() {
        let pieces: &[Piece] =
            &[(0, Some("a"), Some("f"), "1"), (0, Some("b"), None, "2"), (0, Some("c"), Some(""), "3")];
        assert_eq!(assembled(pieces), [call("a", "f", "123")]);
    }

    #[test]
    fn empty_calls_count_too() {
        let mut calls = Calls::default();
        for index in 0..10 {
            calls.add(index, None, None, "");
        }
        assert_eq!(calls.bytes(), 10 * BYTES_PER_CALL);
    }
}
