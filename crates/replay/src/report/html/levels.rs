//! The plots: seats of all levels together, then each level with its load, seats, waits and
//! rejections. Pure.

use crate::report::html::plot::{Plot, PlotLine, TimeAxis};
use crate::report::html::text::{count, escape, milliseconds, number, section};
use crate::report::model::{LevelSeries, Report, RunReport, SeriesReport};
use weir_kubernetes::numeric::to_f64;

/// Levels with a colour of their own in the first plot. The others are one area.
const COLOURED_LEVELS: usize = 5;

/// Levels with plots of their own. A cluster with more has many that nothing happens in.
const MAX_SECTIONS: usize = 40;

/// The classes of the first and the second configuration.
const RUNS: [&str; 2] = ["one", "two"];

/// The seats of all levels, one plot for each configuration on one scale.
pub(super) fn overview(report: &Report) -> String {
    let names = busiest_levels(report);
    let totals = report.runs.iter().map(|run| total_seats(&run.series));
    let greatest = totals
        .flat_map(|total| total.into_iter().reduce(f64::max))
        .fold(0.0, f64::max);
    let mut html = section("Seats in use by level", "stacked; the same scale for all");
    html.push_str("<div class=\"key\">");
    for (n, name) in names.iter().enumerate() {
        html.push_str(&format!(
            "<span class=\"k{n}\"><em>{}</em></span>",
            escape(name)
        ));
    }
    html.push_str("<span class=\"k5\"><em>others</em></span></div>\n<div class=\"plots\">\n");
    for run in &report.runs {
        let plot = Plot {
            title: &run.policies,
            lines: stacked(&run.series, &names),
            at_least: greatest,
            unit: number,
        };
        html.push_str(&plot.render(&axis(&run.series)));
    }
    html.push_str("</div></section>\n");
    html
}

/// The plots of each level in which something happened, worst first.
pub(super) fn sections(report: &Report) -> String {
    let mut names: Vec<&str> = Vec::new();
    for run in &report.runs {
        let seen = run.series.levels.iter().map(|level| level.name.as_str());
        for name in seen {
            if !names.contains(&name) && arrivals(report, name) > 0 {
                names.push(name);
            }
        }
    }
    names.sort_by_key(|name| std::cmp::Reverse(badness(report, name)));
    let left_out = names.len().saturating_sub(MAX_SECTIONS);
    let mut html: String = names
        .iter()
        .take(MAX_SECTIONS)
        .map(|name| level_section(report, name))
        .collect();
    if left_out > 0 {
        html.push_str(&format!(
            "<p class=\"empty\">{left_out} more levels are in the table only.</p>\n"
        ));
    }
    html
}

fn level_section(report: &Report, name: &str) -> String {
    let rejected = totals_of(report, name).map(|(_, rejected)| count(rejected));
    let note = format!("{} rejected", rejected.collect::<Vec<_>>().join(" → "));
    let mut html = section(name, &note);
    html.push_str(&key(report));
    html.push_str("<div class=\"plots\">\n");
    let per_second = |level: &LevelSeries, counts: &[u64], step: f64| {
        let _ = level;
        let counts = counts.iter();
        counts
            .map(|n| to_f64(*n) / step.max(1e-9))
            .collect::<Vec<_>>()
    };
    let plots: [LevelPlot<'_>; 4] = [
        (
            "Seats in use, and the limit (dashed)",
            number,
            &|level, _| vec![level.seats_in_use.clone(), level.seats_limit.clone()],
        ),
        ("Requests waiting", number, &|level, _| {
            vec![level.waiting.iter().map(|n| to_f64(*n)).collect()]
        }),
        ("Longest wait", milliseconds, &|level, _| {
            vec![level.longest_wait_ms.clone()]
        }),
        (
            "Arrivals a second, and rejections (dashed)",
            number,
            &|level, step| {
                vec![
                    per_second(level, &level.arrivals, step),
                    per_second(level, &level.rejected, step),
                ]
            },
        ),
    ];
    for (title, unit, lines_of) in plots {
        html.push_str(&level_plot(report, name, title, unit, lines_of));
    }
    html.push_str("</div></section>\n");
    html
}

/// The lines of a level: the first is an area, a second one is dashed.
type LinesOf<'f> = &'f dyn Fn(&LevelSeries, f64) -> Vec<Vec<f64>>;

/// A plot of a level: its title, the unit and the lines.
type LevelPlot<'p> = (&'p str, fn(f64) -> String, LinesOf<'p>);

fn level_plot(
    report: &Report,
    name: &str,
    title: &str,
    unit: fn(f64) -> String,
    lines_of: LinesOf<'_>,
) -> String {
    let mut lines = Vec::new();
    let mut time = None;
    for (run, class) in report.runs.iter().zip(RUNS) {
        let level = run.series.levels.iter().find(|level| level.name == name);
        let Some(level) = level else { continue };
        time.get_or_insert_with(|| axis(&run.series));
        let mut all = lines_of(level, run.series.step_s).into_iter();
        if let Some(first) = all.next() {
            if class == "one" {
                lines.push(PlotLine::area("onearea", first.clone()));
            }
            lines.push(PlotLine::line(class, first));
        }
        lines.extend(all.map(|values| PlotLine::line(&format!("{class}cap"), values)));
    }
    let plot = Plot {
        title,
        lines,
        at_least: 0.0,
        unit,
    };
    time.map_or_else(String::new, |time| plot.render(&time))
}

/// Which colour is which configuration.
fn key(report: &Report) -> String {
    let [first, second, ..] = &report.runs[..] else {
        return String::new();
    };
    let name = |run: &RunReport| escape(&run.policies);
    format!(
        "<div class=\"key\"><span class=\"k0\"><em>{}</em></span><span class=\"k2\"><em>{}</em></span></div>\n",
        name(first),
        name(second)
    )
}

fn axis(series: &SeriesReport) -> TimeAxis {
    let steps = series.levels.iter().map(|level| level.arrivals.len());
    let steps = steps.max().unwrap_or_default();
    TimeAxis {
        start: series.start.clone(),
        seconds: series.step_s * to_f64(u64::try_from(steps).unwrap_or_default()),
    }
}

/// Rejections and waits count most; then the number of requests.
fn badness(report: &Report, name: &str) -> (u64, u64) {
    let rejected = totals_of(report, name).map(|(_, rejected)| rejected).max();
    (rejected.unwrap_or_default(), arrivals(report, name))
}

fn arrivals(report: &Report, name: &str) -> u64 {
    let arrivals = totals_of(report, name).map(|(arrivals, _)| arrivals).max();
    arrivals.unwrap_or_default()
}

/// Arrivals and rejections of a level, for each configuration.
fn totals_of<'r>(report: &'r Report, name: &'r str) -> impl Iterator<Item = (u64, u64)> + 'r {
    let level = move |run: &'r RunReport| {
        let mut levels = run.levels.iter();
        let level = levels.find(|level| level.requests.name == name);
        level.map_or((0, 0), |level| {
            (level.requests.arrivals, level.requests.rejected)
        })
    };
    report.runs.iter().map(level)
}

fn busiest_levels(report: &Report) -> Vec<String> {
    let levels = report.runs.iter().flat_map(|run| &run.levels);
    let mut by_work: Vec<(f64, &str)> = Vec::new();
    for level in levels {
        let (work, name) = (level.requests.seat_seconds, level.requests.name.as_str());
        match by_work.iter_mut().find(|(_, known)| *known == name) {
            Some((known, _)) => *known = known.max(work),
            None => by_work.push((work, name)),
        }
    }
    by_work.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let names = by_work.into_iter().take(COLOURED_LEVELS);
    names.map(|(_, name)| name.to_owned()).collect()
}

fn total_seats(series: &SeriesReport) -> Vec<f64> {
    let all = series.levels.iter().map(|level| &level.seats_in_use[..]);
    all.fold(Vec::new(), |total, seats| sum(&total, seats))
}

/// Areas on top of each other: the others at the bottom.
fn stacked(series: &SeriesReport, names: &[String]) -> Vec<PlotLine> {
    let is_named = |level: &&LevelSeries| names.contains(&level.name);
    let others = series.levels.iter().filter(|level| !is_named(level));
    let others = others.fold(Vec::new(), |total, level| sum(&total, &level.seats_in_use));
    let mut base = others.clone();
    let mut lines = vec![PlotLine::area("l5", others)];
    for (n, name) in names.iter().enumerate() {
        let level = series.levels.iter().find(|level| level.name == *name);
        let Some(level) = level else { continue };
        let top = sum(&base, &level.seats_in_use);
        lines.push(PlotLine {
            base: Some(std::mem::replace(&mut base, top.clone())),
            ..PlotLine::area(&format!("l{n}"), top)
        });
    }
    lines
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    let value = |values: &[f64], n: usize| values.get(n).copied().unwrap_or_default();
    let length = a.len().max(b.len());
    (0..length).map(|n| value(a, n) + value(b, n)).collect()
}
