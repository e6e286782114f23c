//! A parsed scrape of `/metrics`.

/// The text.
pub(crate) struct Scrape(String);

/// A line: name, labels, value.
pub(crate) struct MetricSample<'s> {
    pub(crate) name: &'s str,
    labels: &'s str,
    pub(crate) value: f64,
}

impl<'s> MetricSample<'s> {
    fn parse(line: &'s str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some(Self {
            name,
            labels: labels.trim_end_matches('}'),
            value: value.parse().ok()?,
        })
    }

    /// The labels. Label values in these tests have no commas.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&'s str, &'s str)> {
        let pairs = self.labels.split(',').filter(|pair| !pair.is_empty());
        pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap();
            (name, value.trim_matches('"'))
        })
    }
}

impl Scrape {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn samples(&self) -> impl Iterator<Item = MetricSample<'_>> {
        let lines = self.0.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(MetricSample::parse)
    }

    /// The sum of the series of this name that have all these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &MetricSample<'_>| {
            let all = |wanted: &(&str, &str)| sample.labels().any(|label| label == *wanted);
            sample.name == name && labels.iter().all(all)
        };
        let found = self.samples().filter(has);
        found.fold(0.0, |sum, sample| sum + sample.value)
    }

    /// As [`Scrape::sum`], for a metric of priority and fairness by its priority level.
    pub(crate) fn level_sum(&self, name: &str, level: &str) -> f64 {
        let name = format!("apiserver_flowcontrol_{name}");
        self.sum(&name, &[("priority_level", level)])
    }
}
