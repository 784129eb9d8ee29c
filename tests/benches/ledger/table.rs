//! The rows and how they are printed.

use std::time::Duration;

/// A figure, and what it is to reach.
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    /// Ours divided by the peer's, and the least it should be.
    ratio: Option<(String, f64, f64)>,
}

/// What was measured so far. Each row is printed the moment it is known.
pub struct Table {
    filters: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    /// An empty table that takes the rows which contain one of the filters, or all without any.
    pub fn new(filters: Vec<String>) -> Self {
        println!("name\tvalue\tunit\tratio\tgoal\tmet");
        Self { filters, rows: Vec::new() }
    }

    /// Whether a group of rows is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }

    /// A figure without a goal: a peer's, or the machine's.
    pub fn figure(&mut self, name: &str, value: f64, unit: &'static str) {
        self.push(Row { name: name.to_owned(), value, unit, ratio: None });
    }

    /// A duration.
    pub fn time(&mut self, name: &str, value: Duration) {
        self.figure(name, value.as_secs_f64() * 1e3, "ms");
    }

    /// A figure of ours that is to be at least `goal` times a peer's.
    pub fn at_least(&mut self, name: &str, value: f64, unit: &'static str, peer: (&str, f64), goal: f64) {
        self.push(Row {
            name: format!("{name} ÷ {}", peer.0),
            value,
            unit,
            ratio: Some((format!("≥ {goal}"), value / peer.1, goal)),
        });
    }

    /// A ratio of two figures of ours that is to stay below a goal.
    pub fn at_most(&mut self, name: &str, late: f64, early: f64, unit: &'static str, goal: f64) {
        // Stored as "at least" of the inverse would print an inverse nobody can read.
        let row =
            Row { name: name.to_owned(), value: late, unit, ratio: Some((format!("≤ {goal}"), late / early, -goal)) };
        self.push(row);
    }

    fn push(&mut self, row: Row) {
        let (ratio, goal, met) = match &row.ratio {
            Some((goal, ratio, least)) => (format!("{ratio:.2}"), goal.as_str(), met(*ratio, *least)),
            None => (String::new(), "", ""),
        };
        println!("{}\t{:.1}\t{}\t{ratio}\t{goal}\t{met}", row.name, row.value, row.unit);
        self.rows.push(row);
    }

    /// The table for people.
    pub fn print(&self) {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or_default();
        println!("\n{:width$}  {:>12} {:9} {:>8} {:>8}", "", "value", "unit", "ratio", "goal");
        for row in &self.rows {
            let (ratio, goal, met) = match &row.ratio {
                Some((goal, ratio, least)) => (format!("{ratio:.2}"), goal.as_str(), met(*ratio, *least)),
                None => (String::new(), "", ""),
            };
            println!("{:width$}  {:>12.1} {:9} {ratio:>8} {goal:>8} {met}", row.name, row.value, row.unit);
        }
    }
}

/// A goal below zero is the most a ratio may be.
fn met(ratio: f64, goal: f64) -> &'static str {
    let met = if goal < 0.0 { ratio <= -goal } else { ratio >= goal };
    if met { "yes" } else { "NO" }
}
