//! Which changes of a batch are made by one statement for many rows: a call of a database for each change costs more
//! than the change.
//!
//! Order counts only within a stream here, and only where a projection says so of the stream's kind
//! ([`Projection::independent`]); any other change stays where it is, after all before it and before all after it.
//! Nothing is run here: [`crate::apply`] does it, change by change where one of them is refused.

use crate::apply::Step;
use crate::change::{Change, Value};
use crate::projection::Projection;
use devmind_domain::event::{RecordedEvent, StreamId};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of text that one statement carries, about, where it is for more than one row.
const MAX_BYTES: usize = 1 << 20;

/// One statement, with the values of each row of them that it is run for.
#[derive(Debug, PartialEq)]
pub(crate) struct Together<'c> {
    pub sql: &'static str,
    pub rows: Vec<&'c [Value]>,
    bytes: usize,
}

impl<'c> Together<'c> {
    fn of(change: &'c Change) -> Self {
        Self { sql: change.sql, rows: vec![&change.values], bytes: bytes(&change.values) }
    }

    fn takes(&self, change: &Change) -> bool {
        let kinds = |values: &[Value]| values.iter().map(std::mem::discriminant).collect::<Vec<_>>();
        self.sql == change.sql
            && self.bytes + bytes(&change.values) <= MAX_BYTES
            && self.rows.first().is_some_and(|first| kinds(first) == kinds(&change.values))
    }

    fn add(&mut self, change: &'c Change) {
        self.bytes += bytes(&change.values);
        self.rows.push(&change.values);
    }
}

fn bytes(values: &[Value]) -> usize {
    let text = |value: &Value| match value {
        Value::Text(Some(text)) => text.len(),
        Value::Text(None) | Value::Int(_) | Value::Bool(_) => 0,
    };
    values.iter().map(text).sum()
}

/// The changes of a batch, in an order that leads to the same rows as their own.
pub(crate) fn together<'c>(
    projection: &dyn Projection,
    events: &'c [Arc<RecordedEvent>],
    steps: &'c [Step],
) -> Vec<Together<'c>> {
    let mut all: Vec<Together<'c>> = Vec::new();
    // Where the changes of each stream may go next, and those of any stream.
    let (mut next, mut next_of_any) = (HashMap::<&StreamId, usize>::new(), 0);
    for (event, step) in events.iter().zip(steps) {
        let Step::Write(changes) = step else { continue };
        let independent = projection.independent().iter().any(|kind| kind.as_str() == event.stream.aggregate_type);
        for change in changes {
            if !independent {
                all.push(Together::of(change));
                next_of_any = all.len();
                continue;
            }
            let next = next.entry(&event.stream).or_default();
            let from = next_of_any.max(*next);
            let found = all.iter_mut().enumerate().skip(from).find(|(_, one)| one.takes(change));
            *next = 1 + match found {
                Some((index, one)) => {
                    one.add(change);
                    index
                }
                None => {
                    all.push(Together::of(change));
                    all.len() - 1
                }
            };
        }
    }
    all
}

/// A statement for one row of values as PostgreSQL takes it for many: its parameters are arrays then, one for each
/// value. Nothing where it is neither an `INSERT … VALUES` nor an `UPDATE … WHERE`.
pub(crate) fn for_many(sql: &str, values: &[Value]) -> Option<String> {
    let (before, (from, between), after) = if sql.starts_with("UPDATE ") {
        let at = at_the_top(sql, " WHERE ")?;
        (&sql[..at], ("", ""), &sql[at..])
    } else {
        let at = at_the_top(sql, " VALUES (")?;
        let row = &sql[at + " VALUES (".len()..];
        let end = at_the_top(row, ")")?;
        (&sql[..at], (" SELECT ", &row[..end]), &row[end + 1..])
    };
    let number = |of: &str| (1..=values.len()).map(|n| format!("{of}{n}")).collect::<Vec<_>>().join(", ");
    let arrays = values.iter().zip(1..).map(|(value, n)| match value {
        Value::Int(_) => format!("${n}::bigint[]"),
        Value::Text(_) => format!("${n}::text[]"),
        Value::Bool(_) => format!("${n}::boolean[]"),
    });
    let arrays = arrays.collect::<Vec<_>>().join(", ");
    let of_row = |text: &str| text.replace('$', "many.v");
    Some(format!(
        "{}{from}{} FROM unnest({arrays}) AS many ({}){}",
        of_row(before),
        of_row(between),
        number("v"),
        of_row(after)
    ))
}

/// Where a text begins for the first time outside of all parentheses.
fn at_the_top(sql: &str, text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in sql.bytes().enumerate() {
        if depth == 0 && sql.get(at..).is_some_and(|rest| rest.starts_with(text)) {
            return Some(at);
        }
        depth += match byte {
            b'(' => 1,
            b')' => -1,
            _ => 0,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::change;
    use crate::testing::*;
    use devmind_domain::event::{AggregateType, DomainEvent};
    use devmind_domain::node::NodeEvent;

    /// What it is asked to change is told by the test; calls are independent of each other.
    struct Told;

    impl Projection for Told {
        fn name(&self) -> &'static str {
            "told"
        }
        fn version(&self) -> u32 {
            1
        }
        fn tables(&self) -> &'static [&'static str] {
            &[]
        }
        fn reads(&self) -> &'static [AggregateType] {
            &AggregateType::ALL
        }
        fn independent(&self) -> &'static [AggregateType] {
            &[AggregateType::ToolCall]
        }
        fn changes(&self, _: &RecordedEvent, _: &DomainEvent) -> Vec<Change> {
            vec![]
        }
    }

    /// The statements in their order, each with the first values of its rows.
    fn order(facts: &[Fact], changes: Vec<Vec<Change>>) -> Vec<String> {
        let (events, steps) = (recorded(facts), changes.into_iter().map(Step::Write).collect::<Vec<_>>());
        let name = |values: &&[Value]| match values.first() {
            Some(Value::Text(Some(text))) => text.chars().take(4).collect(),
            other => format!("{other:?}"),
        };
        let told =
            |one: &Together<'_>| format!("{} {}", one.sql, one.rows.iter().map(name).collect::<Vec<_>>().join(" "));
        together(&Told, &events, &steps).iter().map(told).collect()
    }

    fn call(id: &'static str) -> Fact {
        requested(id, "r1")
    }

    #[test]
    fn changes_of_independent_streams_come_together_and_keep_their_order_within_each() {
        let facts = [call("k1"), call("k2"), call("k1"), call("k2")];
        let (a, b) = (|k: &str| change!("A", k), |k: &str| change!("B", k));
        let changes = vec![vec![a("k1"), b("k1")], vec![a("k2")], vec![a("k1"), b("k1")], vec![b("k2"), a("k2")]];
        assert_eq!(order(&facts, changes), ["A k1 k2", "B k1 k2", "A k1 k2", "B k1"]);
    }

    #[test]
    fn nothing_passes_a_change_of_a_stream_that_is_not_independent() {
        let facts = [call("k1"), node_started(1), call("k2"), call("k3"), node_stopped(1), node_stopped(1)];
        let changes = ["k1", "n", "k2", "k3", "n", "n"].map(|name| vec![change!("A", name)]);
        assert!(matches!(&facts[1].1, DomainEvent::Node(NodeEvent::NodeStarted(_))));
        assert_eq!(order(&facts, changes.to_vec()), ["A k1", "A n", "A k2 k3", "A n", "A n"]);
    }

    #[test]
    fn a_statement_carries_values_of_the_same_kinds_and_no_more_than_it_may() {
        let facts = [call("k1"), call("k2"), call("k3"), call("k4")];
        let long = "x".repeat(MAX_BYTES);
        let changes = vec![
            vec![change!("A", "k1", 1_i64)],
            vec![change!("A", "k2", &*long)],
            vec![change!("A", "k3", &*long)],
            vec![change!("A", "k4", 1_i64)],
        ];
        assert_eq!(order(&facts, changes), ["A k1 k4", "A k2", "A k3"]);
    }

    #[test]
    fn a_statement_for_many_rows_takes_each_value_from_an_array() {
        let values = change!("", "k", 1_i64, true).values;
        let many = "unnest($1::text[], $2::bigint[], $3::boolean[]) AS many (v1, v2, v3)";
        assert_eq!(
            for_many("INSERT INTO t (a, b, c) VALUES ($1, f($2), $3) ON CONFLICT (a) DO NOTHING", &values),
            Some(format!(
                "INSERT INTO t (a, b, c) SELECT many.v1, f(many.v2), many.v3 FROM {many} ON CONFLICT (a) DO NOTHING"
            ))
        );
        assert_eq!(
            for_many("UPDATE t SET b = (SELECT b FROM u WHERE a = $1), c = $3 WHERE a = $1 AND b < $2", &values),
            Some(format!(
                "UPDATE t SET b = (SELECT b FROM u WHERE a = many.v1), c = many.v3 FROM {many} \
                 WHERE a = many.v1 AND b < many.v2"
            ))
        );
        for other in
            ["DELETE FROM t WHERE a = $1", "INSERT INTO t (a) SELECT a FROM u WHERE a = $1", "UPDATE t SET a = $1"]
        {
            assert_eq!(for_many(other, &values), None, "{other}");
        }
    }
}
