//! Prints figures, one a line: `figure <name> <value> <unit> floor <n> <ok|short>`.
//!
//! Arguments are prefixes of names; without any, all figures are measured. Floors are
//! alarms, not aims.

#![allow(clippy::print_stdout, reason = "figures are printed")]

mod figure;
mod memory;

use std::error::Error;
use std::process::ExitCode;

use figure::{Figure, Wanted};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    let wanted = Wanted::from_args();
    match measure(&wanted) {
        Ok(0) => {
            println!("no figure has such a name");
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            println!("not measured: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(wanted: &Wanted) -> Result<usize, Box<dyn Error>> {
    let mut measured = 0;
    let mut print = |figures: Vec<Figure>| {
        for figure in figures.iter().filter(|figure| wanted.has(figure.name)) {
            println!("{figure}");
            measured += 1;
        }
    };
    if wanted.has_any(&memory::ready::NAMES) {
        print(memory::ready::measure()?);
    }
    if wanted.has_any(&memory::inflight::NAMES) {
        print(memory::inflight::measure()?);
    }
    Ok(measured)
}
