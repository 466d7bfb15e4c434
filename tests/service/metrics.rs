//! What Prometheus gets of weir: the names and the page about them, the formats, the bound on series, and the dashboard.

mod dashboard;
mod otlp;
mod page;
mod prometheus;
mod scrape;
mod series;
