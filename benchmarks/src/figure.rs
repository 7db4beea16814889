//! A measured number and its floor.

use std::fmt;

/// Which side of the floor is good.
#[derive(Debug, Clone, Copy)]
pub enum Floor {
    /// The smaller the better.
    AtMost(f64),
    /// The greater the better.
    AtLeast(f64),
}

/// A measured number.
#[derive(Debug)]
pub struct Figure {
    /// As it is asked for.
    pub name: &'static str,
    /// What was measured.
    pub value: f64,
    /// What the value counts.
    pub unit: &'static str,
    /// What it should not fall short of.
    pub floor: Floor,
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
pub struct Wanted(Vec<String>);

impl Wanted {
    /// The arguments of the program; without any, every figure is wanted.
    pub fn from_args() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    /// Whether this figure is.
    pub fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// Whether one of these is.
    pub fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }
}

/// The middle of several rounds; the machine is noisy.
pub fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
}
