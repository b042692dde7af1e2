//! What stands in for the metrics without the feature `metrics`: nothing.

/// See `metrics::Metric`.
pub(crate) type Metric = (&'static str, Unit, &'static str);

/// See `metrics::Labels`.
#[derive(Debug)]
pub(crate) struct Labels;

#[derive(Debug)]
pub(crate) struct Nothing;

pub(crate) type Counter = Nothing;
pub(crate) type Gauge = Nothing;
pub(crate) type Histogram = Nothing;

#[derive(Debug)]
pub(crate) enum Unit {
    Count,
    Bytes,
    Seconds,
}

impl Labels {
    pub(crate) fn of_client(_: Option<&str>) -> Self {
        Self
    }

    pub(crate) fn with(&self, _: &'static str, _: &str) -> Self {
        Self
    }

    pub(crate) fn counter(&self, _: Metric) -> Counter {
        Nothing
    }

    pub(crate) fn gauge(&self, _: Metric) -> Gauge {
        Nothing
    }

    pub(crate) fn histogram(&self, _: Metric) -> Histogram {
        Nothing
    }
}

impl Nothing {
    pub(crate) fn noop() -> Self {
        Self
    }

    pub(crate) fn increment<T>(&self, _: T) {}

    pub(crate) fn decrement<T>(&self, _: T) {}

    pub(crate) fn record<T>(&self, _: T) {}
}
