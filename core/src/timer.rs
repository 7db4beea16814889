//! Waiting for a time inside of a poll function.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer for [`Source::poll_events`](crate::Source::poll_events) of adapters, where the next
/// moment that brings something changes from poll to poll. It is armed again only when it does.
#[derive(Debug, Default)]
pub struct Timer {
    armed: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Timer {
    /// Whether this moment has come. If not, the task is woken then. `None` never comes.
    pub fn poll(&mut self, cx: &mut Context<'_>, due: Option<Instant>) -> Poll<()> {
        let Some(due) = due else { return Poll::Pending };
        let (at, sleep) = self.armed.get_or_insert_with(|| (due, Box::pin(sleep_until(due))));
        if *at != due {
            *at = due;
            sleep.as_mut().reset(due);
        }
        sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_wakes_at_the_moment_that_was_asked_for_last() {
        let (mut timer, begin) = (Timer::default(), Instant::now());
        let at = |millis| Some(begin + Duration::from_millis(millis));
        let polled =
            poll_fn(|cx| Poll::Ready(timer.poll(cx, None).is_ready() || timer.poll(cx, at(900)).is_ready()));
        assert!(!polled.await);
        poll_fn(|cx| timer.poll(cx, at(300))).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(300));
        poll_fn(|cx| timer.poll(cx, at(200))).await;
        poll_fn(|cx| timer.poll(cx, at(500))).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(500));
    }
}
