//! What becomes of deliveries.

use oncemq_core::{Ack, ErrorKind, Message, Token, failpoint};
use tokio::time::Instant;

use super::{LINGER, Owner};
use crate::connection::Backoff;
use crate::properties::Native;
use crate::settle::{Copied, Due, Job, Purpose, lane_of};
use crate::source::lane::{Frame, State};

impl Owner {
    pub(super) fn settle(&mut self, token: Token, message: Message, ack: Ack) {
        if !self.is_alive(token) {
            // The broker delivers it again.
            self.shared.free(1);
            return;
        }
        match ack {
            Ack::Accept => self.accept(token),
            Ack::Retry(retry) => {
                let queue = self.lane(token).and_then(|lane| lane.spec.names.rung(retry.after)).cloned();
                match queue {
                    Some(queue) => self.copy(token, message, queue, Purpose::Retry(retry)),
                    // No ladder was asked for, so nobody asks for a rung of it either.
                    None => self.give_back(token),
                }
            }
            Ack::Reject(reject) => {
                if let Some(queue) = self.lane(token).map(|lane| lane.spec.names.dead.clone()) {
                    self.copy(token, message, queue, Purpose::Reject(reject));
                }
            }
            Ack::Defer { after } => self.defer(token, message, after),
            Ack::Discard { .. } => {
                if let Some(frame) = self.lane(token).map(|lane| lane.discard(token.id)) {
                    self.write_alone(token, frame);
                }
            }
            // A word this adapter does not know yet must lose nothing.
            _ => self.give_back(token),
        }
    }

    fn lane(&self, token: Token) -> Option<&crate::source::lane::Lane> {
        self.lanes.get(usize::from(lane_of(token)))
    }

    fn is_alive(&mut self, token: Token) -> bool {
        self.lanes.get_mut(usize::from(lane_of(token))).is_some_and(|lane| lane.up(token.epoch).is_some())
    }

    /// Notes a delivery as done; its frame goes out with others.
    pub(super) fn accept(&mut self, token: Token) {
        let lane = self.lanes.get_mut(usize::from(lane_of(token)));
        let accepted =
            lane.and_then(|lane| lane.up(token.epoch)).is_some_and(|up| up.tracker.accept(token.id));
        if !accepted {
            self.shared.free(1);
        }
    }

    fn give_back(&mut self, token: Token) {
        self.write_alone(token, Frame::Return(token.id));
    }

    /// Sends a frame for one delivery.
    fn write_alone(&mut self, token: Token, frame: Frame) {
        let lane = self.lanes.get_mut(usize::from(lane_of(token)));
        let up = lane.and_then(|lane| lane.up(token.epoch));
        // A tag that was answered for is never sent again.
        let written = up.and_then(|up| up.tracker.take(token.id).then(|| up.write(frame)));
        match written.unwrap_or(Ok(1)) {
            Ok(count) => self.shared.free(count),
            Err(write) => self.writes.push(write),
        }
    }

    /// Sends the acknowledgements that are due: when there are many, or when the first has
    /// waited its time, or when they are asked for. Those above an open tag wait in any case,
    /// since one frame stands for all when the tag below is done meanwhile.
    pub(super) async fn send_acks(&mut self, asked: bool) {
        let all = asked || !self.flushes.is_empty() || self.linger.is_some_and(|end| end <= Instant::now());
        let mut left = false;
        for lane in &mut self.lanes {
            let State::Up(up) = &mut lane.state else { continue };
            let accepted = up.tracker.accepted();
            if accepted == 0 {
                continue;
            }
            if all || accepted >= lane.spec.many() {
                failpoint!("rabbitmq.before_ack");
                up.tracker.flush(all, &mut self.frames);
            }
            left |= up.tracker.accepted() > 0;
            for frame in self.frames.drain(..) {
                match up.write(Frame::Ack(frame)) {
                    Ok(count) => self.shared.free(count),
                    Err(write) => self.writes.push(write),
                }
            }
        }
        self.linger = match self.linger {
            Some(end) if left && !all => Some(end),
            _ if left => Some(Instant::now() + LINGER),
            _ => None,
        };
    }

    /// Keeps a delivery in the process for a while, but not so long that the broker takes
    /// it back. Its place is free meanwhile.
    fn defer(&mut self, token: Token, message: Message, after: std::time::Duration) {
        self.shared.free(1);
        let now = Instant::now();
        let received = Native::of(&message).map_or(now, |native| native.received);
        let latest = (received + self.config.hold_max()).max(now);
        match now.checked_add(after) {
            Some(at) if at < latest => self.held.push(at, Due::Again(token, message)),
            _ => self.held.push(latest, Due::Return(token)),
        }
    }

    fn copy(&mut self, token: Token, message: Message, queue: lapin::types::ShortString, purpose: Purpose) {
        let lane = self.lanes.get_mut(usize::from(lane_of(token)));
        let Some(up) = lane.and_then(|lane| lane.up(token.epoch)) else { return };
        let alive = up.alive.clone();
        self.copies.start(Job { token, message, queue, purpose, backoff: Backoff::default(), alive });
    }

    /// A copy was tried: the original is acknowledged, or the copy is tried again.
    pub(super) fn copied(&mut self, copied: Copied) {
        let Copied { mut job, result } = copied;
        while let Some(waiting) = self.copies.admit() {
            self.start_if_alive(waiting);
        }
        if !self.is_alive(job.token) {
            self.shared.free(1);
        } else {
            match result {
                Ok(()) => {
                    self.copy_error = None;
                    self.accept(job.token);
                }
                Err(error) => {
                    let at = Instant::now() + job.backoff.next();
                    self.held.push(at, Due::Copy(job));
                    if error.kind() != ErrorKind::Closed {
                        self.copy_error = Some(error.to_string());
                    }
                }
            }
        }
        self.report();
    }

    fn start_if_alive(&mut self, job: Job) {
        if self.is_alive(job.token) {
            self.copies.start(job);
        } else {
            self.shared.free(1);
        }
    }

    pub(super) fn due(&mut self, due: Due) {
        match due {
            Due::Again(token, message) => {
                if self.is_alive(token) {
                    self.shared.again(token, message);
                }
            }
            Due::Return(token) => {
                if self.is_alive(token) {
                    // Counted as out until the frame is written, as any other answer.
                    self.shared.occupy(1);
                    self.give_back(token);
                }
            }
            Due::Copy(job) => self.start_if_alive(job),
        }
    }
}
