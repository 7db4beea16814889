//! Figures of oncemq, one a line: `figure <name> <value> <unit> floor <n> <ok|short>`.
//!
//! Arguments are prefixes of names; without any, all figures are measured. Floors are
//! alarms, not aims. Each program measures one part, so that what one needs (a broker, an
//! allocator that counts) costs the others nothing.

#![allow(clippy::print_stdout, reason = "figures are printed")]

mod figure;

use std::error::Error;
use std::process::ExitCode;

pub use figure::{Figure, Floor, Wanted, median};

/// Prints figures as they are measured.
#[derive(Debug)]
pub struct Printer {
    wanted: Wanted,
    printed: usize,
}

/// The exit status of a program that has no figure of the names it is asked for; another
/// one may have it.
const NONE_WANTED: u8 = 3;

impl Printer {
    /// Measures a group of figures and prints those that are wanted; nothing is measured if
    /// none is.
    ///
    /// # Errors
    /// Those of the measurement.
    pub fn group<F>(&mut self, names: &[&str], measure: F) -> Result<(), Box<dyn Error>>
    where
        F: FnOnce() -> Result<Vec<Figure>, Box<dyn Error>>,
    {
        if self.wanted.has_any(names) {
            for figure in measure()?.iter().filter(|figure| self.wanted.has(figure.name)) {
                println!("{figure}");
                self.printed += 1;
            }
        }
        Ok(())
    }
}

/// The whole of a program: measures what its arguments ask for.
pub fn main(measure: impl FnOnce(&mut Printer) -> Result<(), Box<dyn Error>>) -> ExitCode {
    let mut printer = Printer { wanted: Wanted::from_args(), printed: 0 };
    match measure(&mut printer) {
        Ok(()) if printer.printed == 0 => ExitCode::from(NONE_WANTED),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("not measured: {error}");
            ExitCode::FAILURE
        }
    }
}
