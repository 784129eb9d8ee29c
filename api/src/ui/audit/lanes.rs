//! How long things took, drawn: a lane for each kind of span, time from left to right, stretches in which nothing
//! was recorded folded. A picture beside the list, which says the same in words.

use crate::ui::components::duration;
use devmind_projections::TimelineLine;
use maud::{Markup, html};

/// Bars drawn, at most: the longest.
const MAX_BARS: usize = 200;
/// Bars above each other in a lane, at most; more share the last row.
const MAX_ROWS: usize = 6;
/// A stretch without a fact is folded when it is longer than this (milliseconds) …
const IDLE_MS: i64 = 2_000;
/// … and than so many times what is usual between two facts.
const IDLE_TIMES: i64 = 8;
/// Units of the drawing from left to right.
const WIDTH: i64 = 10_000;
/// Units of a row of bars.
const ROW: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bar {
    position: u64,
    from_ms: i64,
    to_ms: i64,
}

/// Time with its idle stretches folded.
struct Axis {
    /// A moment and where it is drawn, both growing.
    points: Vec<(i64, i64)>,
    folds: Vec<(i64, i64)>,
}

impl Axis {
    fn of(lines: &[TimelineLine]) -> Self {
        let mut moments: Vec<i64> = lines.iter().map(|line| line.offset_ms).collect();
        moments.sort_unstable();
        moments.dedup();
        let mut gaps: Vec<i64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
        let idle = IDLE_MS.max(usual * IDLE_TIMES);
        let (mut points, mut folds, mut length) = (Vec::new(), Vec::new(), 0);
        for (index, moment) in moments.iter().enumerate() {
            if let Some(before) = index.checked_sub(1).map(|before| moments[before]) {
                let gap = moment - before;
                if gap > idle {
                    folds.push((before, *moment));
                }
                length += gap.min(idle);
            }
            points.push((*moment, length));
        }
        Self { points, folds }
    }

    fn length(&self) -> i64 {
        self.points.last().map_or(0, |(_, at)| *at).max(1)
    }

    /// Where a moment is drawn; between two facts, in proportion.
    fn place(&self, moment: i64) -> i64 {
        let after = self.points.partition_point(|(at, _)| *at < moment);
        let drawn = match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (_, Some((at, drawn))) if *at == moment => *drawn,
            (Some((from, begin)), Some((to, end))) => begin + (end - begin) * (moment - from) / (to - from).max(1),
            (Some((_, end)), None) => end,
            (None, _) => 0,
        };
        drawn * WIDTH / self.length()
    }
}

const LANES: [&str; 4] = ["Waiting to start", "Model", "Tools", "People"];

/// The lane that a line's span belongs to; spans that contain others have none.
fn lane(line: &TimelineLine) -> Option<usize> {
    match line.ended.as_deref()?.split(' ').next()? {
        "wait" => Some(0),
        "round" => Some(1),
        // Until the device had it in its journal is within the span until the result.
        "sent" if line.event_type != "ToolReceived" => Some(2),
        "asked" | "interrupt" => Some(3),
        _ => None,
    }
}

/// The drawing; `link` leads from a bar to its line.
pub fn lanes(lines: &[TimelineLine], link: impl Fn(u64) -> String) -> Markup {
    let mut bars: Vec<(usize, Bar)> = lines
        .iter()
        .filter_map(|line| {
            let (position, to_ms) = (line.position, line.offset_ms);
            Some((lane(line)?, Bar { position, from_ms: to_ms - line.duration_ms?.max(0), to_ms }))
        })
        .collect();
    let left_out = bars.len().saturating_sub(MAX_BARS);
    bars.sort_by_key(|(_, bar)| std::cmp::Reverse(bar.to_ms - bar.from_ms));
    bars.truncate(MAX_BARS);
    bars.sort_by_key(|(_, bar)| (bar.from_ms, bar.position));
    let axis = Axis::of(lines);
    let total = lines.last().map_or(0, |line| line.offset_ms);
    html! {
        figure.lanes {
            figcaption { "Where the time went, " (duration(total)) " in all" }
            @for (index, name) in LANES.iter().enumerate() {
                @let own: Vec<Bar> = bars.iter().filter(|(lane, _)| *lane == index).map(|(_, bar)| *bar).collect();
                @if !own.is_empty() { (one(name, index, &own, &axis, &link)) }
            }
            div.axis aria-hidden="true" { span { "0" } span { (duration(total)) } }
            @if !axis.folds.is_empty() {
                p.hint { "Folded, because nothing was recorded: "
                    @for (index, (from, to)) in axis.folds.iter().take(5).enumerate() { @if index > 0 { ", " } (duration(to - from)) " at " (duration(*from)) }
                    @if axis.folds.len() > 5 { " and " (axis.folds.len() - 5) " more" } "." }
            }
            @if left_out > 0 { p.hint { "The " (left_out) " shortest spans are not drawn." } }
        }
    }
}

fn one(name: &str, index: usize, bars: &[Bar], axis: &Axis, link: &impl Fn(u64) -> String) -> Markup {
    let mut rows: Vec<i64> = Vec::new();
    let placed: Vec<(usize, &Bar)> = bars
        .iter()
        .map(|bar| {
            let free = rows.iter().position(|end| *end <= bar.from_ms);
            let row = free.unwrap_or(rows.len()).min(MAX_ROWS - 1);
            if row == rows.len() {
                rows.push(bar.to_ms);
            } else {
                rows[row] = rows[row].max(bar.to_ms);
            }
            (row, bar)
        })
        .collect();
    let height = rows.len() * ROW;
    let sum: i64 = bars.iter().map(|bar| bar.to_ms - bar.from_ms).sum();
    html! {
        div.lane {
            p.lane-name { (name) " " span.quiet { (bars.len()) "×, " (duration(sum)) } }
            svg viewBox=(format!("0 0 {WIDTH} {height}")) height=(height) preserveAspectRatio="none" role="group"
                aria-label=(format!("{name}: {} spans, {} together", bars.len(), duration(sum))) {
                @for (from, to) in &axis.folds {
                    @let (x, end) = (axis.place(*from), axis.place(*to));
                    rect.fold x=(x) y="0" width=((end - x).max(1)) height=(height) {}
                }
                @for (row, bar) in placed {
                    @let x = axis.place(bar.from_ms);
                    @let width = (axis.place(bar.to_ms) - x).max(WIDTH / 300);
                    a href=(link(bar.position)) tabindex="-1" aria-label=(format!("Event {}: {}", bar.position, duration(bar.to_ms - bar.from_ms))) {
                        rect.(format!("bar lane-{index}")) x=(x.min(WIDTH - width)) y=(row * ROW + 2) width=(width) height=(ROW - 4) {
                            title { "Event " (bar.position) ": " (duration(bar.to_ms - bar.from_ms)) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::Timestamp;

    fn line(offset_ms: i64, duration_ms: Option<i64>, event_type: &str) -> TimelineLine {
        TimelineLine {
            position: u64::try_from(offset_ms).expect("positive") + 1,
            recorded_at: Timestamp::from_micros(0),
            offset_ms,
            duration_ms,
            ended: duration_ms.map(|_| "sent".to_owned()),
            actor: String::new(),
            event_type: event_type.to_owned(),
            stream: "thread/t".to_owned(),
            text: String::new(),
            undecodable: false,
        }
    }

    #[test]
    fn an_idle_hour_takes_no_more_room_than_two_seconds_and_order_is_kept() {
        let lines: Vec<_> = [0, 500, 1_000, 3_601_000, 3_601_500].map(|at| line(at, None, "ModelRequested")).into();
        let axis = Axis::of(&lines);
        assert_eq!(axis.folds, [(1_000, 3_601_000)]);
        assert!(axis.length() < 8_000, "{}", axis.length());
        let places: Vec<_> = [0, 250, 500, 1_000, 1_801_000, 3_601_000, 3_601_500].map(|at| axis.place(at)).into();
        assert!(places.is_sorted() && places[0] == 0 && places[6] == WIDTH, "{places:?}");
    }

    #[test]
    fn spans_at_the_same_time_are_drawn_above_each_other() {
        let lines = [
            line(100, Some(100), "ToolResultRecorded"),
            line(120, Some(100), "ToolResultRecorded"),
            line(300, Some(100), "ToolResultRecorded"),
        ];
        let drawn = lanes(&lines, |position| format!("#p{position}")).into_string();
        assert!(drawn.contains("height=\"32\"") && drawn.matches("<rect class=\"bar").count() == 3, "{drawn}");
        assert_eq!(lanes(&[], |_| String::new()).into_string().matches("<svg").count(), 0);
    }
}
