//! What a run does while its store is down.

/// Repeats a step on the store until it succeeds. While it fails the gate is shut, nothing
/// is settled and nothing is charged.
macro_rules! until_up {
    ($run:expr, $step:expr) => {{
        let mut tries = 0;
        loop {
            match $step.await {
                Ok(value) => break value,
                Err(error) => {
                    $run.parts.topic.shared.gate.wait(&error, tries, || $run.parts.record.probe()).await;
                    tries += 1;
                }
            }
        }
    }};
}
pub(super) use until_up;
