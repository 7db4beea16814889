//! When the time of pending runs is up.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The deadlines of one worker's pending runs: a queue for each limit, one timer for all.
/// A ready run never comes here.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    queues: Vec<Queue>,
    /// Counts the runs of each place: a deadline of an older run is void.
    runs: Vec<u32>,
    timer: Option<Pin<Box<Sleep>>>,
    entries: usize,
    /// What the milliseconds of the entries count from.
    start: Option<Instant>,
}

/// Deadlines with one limit come due in the order they were armed.
#[derive(Debug)]
struct Queue {
    limit: Duration,
    due: VecDeque<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Milliseconds after the first deadline was armed: as fine as the timer, in half the
    /// room of an instant.
    at_ms: u64,
    place: u32,
    run: u32,
}

impl Deadlines {
    /// Gives the run at a place this long from now. `running` bounds what is remembered of
    /// runs that ended in time.
    pub(crate) fn arm(&mut self, limit: Duration, place: u32, running: usize) {
        let index = place as usize;
        if self.runs.len() <= index {
            self.runs.resize(index + 1, 0);
        }
        let now = Instant::now();
        let since = now.duration_since(*self.start.get_or_insert(now));
        let at_ms = u64::try_from(since.saturating_add(limit).as_millis()).unwrap_or(u64::MAX);
        let entry = Entry { at_ms, place, run: self.runs[index] };
        match self.queues.iter_mut().find(|queue| queue.limit == limit) {
            Some(queue) => queue.due.push_back(entry),
            None => self.queues.push(Queue { limit, due: VecDeque::from([entry]) }),
        }
        self.entries += 1;
        if self.entries > 2 * running + 1024 {
            self.forget_void();
        }
    }

    /// The run at a place has ended.
    pub(crate) fn disarm(&mut self, place: u32) {
        if let Some(run) = self.runs.get_mut(place as usize) {
            *run = run.wrapping_add(1);
        }
    }

    /// The place of a run whose time is up; it is disarmed by the caller's end of the run.
    /// Pending with the timer set otherwise.
    pub(crate) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<u32> {
        let Some((index, first)) = self.first() else {
            return Poll::Pending;
        };
        let due = self.instant(first.at_ms);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        std::task::ready!(timer.as_mut().poll(cx));
        self.queues[index].due.pop_front();
        self.entries -= 1;
        Poll::Ready(first.place)
    }

    /// A deadline beyond what the clock can name is as good as none.
    fn instant(&self, at_ms: u64) -> Instant {
        let start = self.start.unwrap_or_else(Instant::now);
        start.checked_add(Duration::from_millis(at_ms)).unwrap_or_else(|| start + FAR)
    }

    /// The earliest deadline that is not void.
    fn first(&mut self) -> Option<(usize, Entry)> {
        let mut first: Option<(usize, Entry)> = None;
        for (index, queue) in self.queues.iter_mut().enumerate() {
            while let Some(entry) = queue.due.front() {
                if self.runs[entry.place as usize] == entry.run {
                    break;
                }
                queue.due.pop_front();
                self.entries -= 1;
            }
            if let Some(entry) = queue.due.front()
                && first.is_none_or(|(_, earliest)| entry.at_ms < earliest.at_ms)
            {
                first = Some((index, *entry));
            }
        }
        first
    }

    fn forget_void(&mut self) {
        for queue in &mut self.queues {
            queue.due.retain(|entry| self.runs[entry.place as usize] == entry.run);
        }
        self.entries = self.queues.iter().map(|queue| queue.due.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn due(deadlines: &mut Deadlines) -> u32 {
        std::future::poll_fn(|cx| deadlines.poll_due(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_run_that_still_runs_is_due_first() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(Duration::from_secs(9), 0, 3);
        deadlines.arm(Duration::from_secs(1), 1, 3);
        deadlines.arm(Duration::from_secs(1), 2, 3);
        deadlines.disarm(1);
        let start = Instant::now();
        assert_eq!(due(&mut deadlines).await, 2);
        assert_eq!(start.elapsed().as_secs(), 1);
        deadlines.disarm(2);
        assert_eq!(due(&mut deadlines).await, 0);
        assert_eq!(start.elapsed().as_secs(), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_without_end_is_no_limit() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(Duration::MAX, 0, 2);
        deadlines.arm(Duration::from_secs(1), 1, 2);
        assert_eq!(due(&mut deadlines).await, 1);
        deadlines.disarm(1);
        let never = tokio::time::timeout(Duration::from_secs(3600), due(&mut deadlines));
        assert!(never.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn runs_that_ended_in_time_are_forgotten_though_a_slow_one_is_in_front() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(Duration::from_secs(60), 0, 1);
        for _ in 0..100_000 {
            deadlines.arm(Duration::from_secs(60), 1, 2);
            deadlines.disarm(1);
        }
        assert!(deadlines.entries < 2_000, "{} deadlines are kept", deadlines.entries);
        assert_eq!(due(&mut deadlines).await, 0);
    }
}
