//! The rows and how they are printed.

use std::time::Duration;

/// A figure, and what it is to reach.
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    goal: Option<Goal>,
}

/// What a figure, or its ratio to another, is to reach.
struct Goal {
    ratio: Option<f64>,
    text: String,
    met: bool,
}

impl Row {
    /// The ratio, the goal, and whether it is met: empty where there is none.
    fn words(&self) -> (String, &str, &str) {
        let Some(goal) = &self.goal else { return (String::new(), "", "") };
        let ratio = goal.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        (ratio, &goal.text, if goal.met { "yes" } else { "NO" })
    }
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
        self.push(name.to_owned(), value, unit, None);
    }

    /// A duration, and what it is at most to be.
    pub fn time(&mut self, name: &str, value: Duration, most: Option<Duration>) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let goal = most.map(|most| Goal { ratio: None, text: format!("≤ {} ms", ms(most)), met: value <= most });
        self.push(name.to_owned(), ms(value), "ms", goal);
    }

    /// A figure of ours that is to be at least `goal` times a peer's.
    pub fn at_least(&mut self, name: &str, value: f64, unit: &'static str, peer: (&str, f64), goal: f64) {
        let ratio = value / peer.1;
        let goal = Goal { ratio: Some(ratio), text: format!("≥ {goal}"), met: ratio >= goal };
        self.push(format!("{name} ÷ {}", peer.0), value, unit, Some(goal));
    }

    /// A ratio of two figures of ours that is to stay below a goal.
    pub fn at_most(&mut self, name: &str, late: f64, early: f64, unit: &'static str, goal: f64) {
        let ratio = late / early;
        let goal = Goal { ratio: Some(ratio), text: format!("≤ {goal}"), met: ratio <= goal };
        self.push(name.to_owned(), late, unit, Some(goal));
    }

    fn push(&mut self, name: String, value: f64, unit: &'static str, goal: Option<Goal>) {
        let row = Row { name, value, unit, goal };
        let (ratio, goal, met) = row.words();
        println!("{}\t{:.1}\t{}\t{ratio}\t{goal}\t{met}", row.name, row.value, row.unit);
        self.rows.push(row);
    }

    /// The table for people.
    pub fn print(&self) {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or_default();
        println!("\n{:width$}  {:>12} {:9} {:>8} {:>8}", "", "value", "unit", "ratio", "goal");
        for row in &self.rows {
            let (ratio, goal, met) = row.words();
            println!("{:width$}  {:>12.1} {:9} {ratio:>8} {goal:>8} {met}", row.name, row.value, row.unit);
        }
    }
}
