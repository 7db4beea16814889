//! A measured number and its floor.

use std::fmt;

/// Which side of the floor is good.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Floor {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) floor: Floor,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (floor, ok) = match self.floor {
            Floor::AtMost(floor) => (floor, self.value <= floor),
            Floor::AtLeast(floor) => (floor, self.value >= floor),
        };
        let verdict = if ok { "ok" } else { "short" };
        write!(f, "figure {} {:.2} {} floor {floor} {verdict}", self.name, self.value, self.unit)
    }
}

/// Prefixes of the figures that are asked for.
#[derive(Debug)]
pub(crate) struct Wanted(Vec<String>);

impl Wanted {
    pub(crate) fn from_args() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    pub(crate) fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }
}

/// The middle of several rounds; the machine is noisy.
pub(crate) fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
}
