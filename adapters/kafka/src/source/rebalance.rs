//! Partitions that come and go.
//!
//! ```text
//! assigned ─► committed offsets are read ─► Opening ─ a commit takes back "clean" ─► Held
//! revoked  ─► Leaving: what runs finishes ─► Committing ─► Done ─► the client lets go
//! ```
//!
//! Nothing here waits inside a callback of the client, so the partitions that stay go on.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use oncemq_core::partitions::{Assignment, Assignments};
use oncemq_core::{Event, Health, Scope};
use rdkafka::consumer::{Consumer, RebalanceProtocol};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::commits::Request;
use super::context::{Change, Client, Partition, assign, list_of, unassign};
use super::metadata::Note;
use super::part::{Begin, Member, Pace, Part, Place, Stage};
use super::shared::Shared;
use crate::config::{Config, Start};

/// The longest a question to the broker may keep the thread from polling.
const ASK: Duration = Duration::from_secs(5);
/// After this time a broker that has just started knows its partitions.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// What the last commit of a partition may take beyond its deadline.
const COMMIT: Duration = Duration::from_secs(5);

pub(crate) struct Rebalance {
    config: Arc<Config>,
    member: Member,
    cluster: String,
    pace: Pace,
    /// Assigned, but not begun: the broker did not tell the committed offsets yet.
    assigning: Option<Vec<Partition>>,
    leaving: Option<Leaving>,
    index: Index,
}

/// What leaves, and whether the client waits to hear that it has.
struct Leaving {
    parts: Vec<Assignment>,
    list: Option<Vec<Partition>>,
}

impl Rebalance {
    pub(crate) fn new(config: Arc<Config>, member: Member, cluster: String, in_flight: usize) -> Self {
        let pace = Pace { in_flight, commit_each: config.commit_each };
        Self { config, member, cluster, pace, assigning: None, leaving: None, index: Index::default() }
    }

    pub(crate) fn index(&mut self) -> &mut Index {
        &mut self.index
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether partitions came whose committed offsets are not known yet.
    pub(crate) fn is_beginning(&self) -> bool {
        self.assigning.is_some()
    }

    /// Does what can be done now.
    pub(crate) fn go_on(
        &mut self,
        client: &Client,
        shared: &Shared,
        topics: &HashMap<String, Place>,
        commits: &Sender<Request>,
    ) {
        if self.leaving.is_some() {
            if client.assignment_lost() {
                self.give_up(shared);
            }
            self.leave(client, shared, commits);
        }
        // The client makes one change at a time.
        if self.leaving.is_none() && self.assigning.is_none() {
            match client.context().next_change() {
                Some(Change::Assign(list)) => self.assigning = Some(list),
                Some(Change::Revoke { partitions, lost }) => self.revoked(shared, partitions, lost),
                None => {}
            }
        }
        if let Some(list) = self.assigning.take() {
            match self.begin(client, shared, topics, &list) {
                Ok(()) => {
                    shared.broker_health(self.member, Health::Up);
                    let _ = commits.send(Request::Now(None));
                }
                Err(why) => {
                    shared.broker_lost(self.member, self.config.address(), &why);
                    self.assigning = Some(list);
                }
            }
        }
    }

    fn begin(
        &mut self,
        client: &Client,
        shared: &Shared,
        topics: &HashMap<String, Place>,
        list: &[Partition],
    ) -> KafkaResult<()> {
        let mut begins = Vec::with_capacity(list.len());
        let committed = match list {
            [] => TopicPartitionList::new(),
            _ => client.committed_offsets(list_of(list), ASK)?,
        };
        for one in committed.elements() {
            let Some(place) = topics.get(one.topic()) else { continue };
            one.error()?;
            let begin = match one.offset() {
                // The client panics at a text that is not UTF-8, which is nobody's of ours.
                Offset::Offset(offset) => {
                    let text =
                        catch_unwind(AssertUnwindSafe(|| one.metadata().to_owned())).unwrap_or_default();
                    Begin { offset, committed: Some(Note::read(&text, &self.cluster, offset)) }
                }
                _ => Begin {
                    offset: self.first_offset(client, one.topic(), one.partition())?,
                    committed: None,
                },
            };
            begins.push((place, one.partition(), begin));
        }
        let mut assigned = TopicPartitionList::with_capacity(begins.len());
        for (place, number, begin) in &begins {
            assigned.add_partition_offset(&place.topic, *number, Offset::Offset(begin.offset))?;
        }
        assign(client, &assigned)?;
        let mut state = shared.state();
        for (place, number, begin) in begins {
            state.parts.add(Part::new(place, number, begin, self.pace));
        }
        self.index.renew(self.member, &state.parts);
        Ok(())
    }

    fn first_offset(&self, client: &Client, topic: &str, number: i32) -> KafkaResult<i64> {
        let (low, high) = bounds(client, topic, number)?;
        Ok(match self.config.start {
            Start::Earliest => low,
            Start::Latest => high,
        })
    }

    fn revoked(&mut self, shared: &Shared, list: Vec<Partition>, lost: bool) {
        let deadline = Instant::now() + if lost { Duration::ZERO } else { self.config.revoke_timeout };
        let leaves =
            |part: &Part| list.iter().any(|(topic, number)| part.number == *number && **topic == *part.topic);
        let parts = start_leaving(shared, deadline, leaves);
        self.leaving = Some(Leaving { parts, list: Some(list) });
        if lost {
            self.give_up(shared);
        }
    }

    /// Lets everything go, because the consumer ends: it has waited for what runs already.
    pub(crate) fn leave_all(&mut self, shared: &Shared) {
        if self.leaving.is_none() {
            let parts = start_leaving(shared, Instant::now(), |part| part.member == self.member);
            self.leaving = Some(Leaving { parts, list: None });
        }
    }

    /// Whether everything that was to leave has left.
    pub(crate) fn is_left(&mut self, shared: &Shared, commits: &Sender<Request>) -> bool {
        self.advance(shared, commits)
    }

    fn leave(&mut self, client: &Client, shared: &Shared, commits: &Sender<Request>) {
        if !self.advance(shared, commits) {
            return;
        }
        let Some(left) = self.leaving.take() else { return };
        let mut state = shared.state();
        for which in left.parts {
            state.parts.remove(which);
        }
        self.index.renew(self.member, &state.parts);
        drop(state);
        if let Some(list) = left.list {
            // Refused only when the group has gone on without this member, which the next
            // poll tells.
            let _ = unassign(client, &list_of(&list));
        }
    }

    /// Moves what leaves from stage to stage. Returns whether all of it is done.
    fn advance(&mut self, shared: &Shared, commits: &Sender<Request>) -> bool {
        let Some(leaving) = &self.leaving else { return true };
        let (now, mut asked, mut done) = (Instant::now(), false, true);
        let mut state = shared.settled();
        for which in &leaving.parts {
            let Some(part) = state.parts.get_mut(*which) else { continue };
            match part.stage {
                Stage::Leaving { deadline } if part.progress.out() == 0 || now >= deadline => {
                    part.stage = Stage::Committing { deadline: now.max(deadline) + COMMIT };
                    asked = true;
                }
                Stage::Committing { deadline } if now >= deadline => part.stage = Stage::Done,
                _ => {}
            }
            done &= part.stage == Stage::Done;
        }
        drop(state);
        if asked {
            let _ = commits.send(Request::Now(None));
        }
        done
    }

    /// What leaves is gone already: nothing of it can be committed.
    fn give_up(&mut self, shared: &Shared) {
        let Some(leaving) = &self.leaving else { return };
        let mut state = shared.state();
        for which in &leaving.parts {
            if let Some(part) = state.parts.get_mut(*which) {
                part.stage = Stage::Done;
            }
        }
    }

    /// An offset was not there any more: finds the partitions it may have been, tells what is
    /// missing, and goes on with the first message that is there.
    pub(crate) fn mend_positions(&mut self, client: &Client, shared: &Shared) -> KafkaResult<()> {
        let held: Vec<_> = {
            let state = shared.state();
            let ours = state.parts.iter().filter(|(_, part)| part.member == self.member);
            ours.map(|(which, part)| (which, part.topic.clone(), part.number, part.position())).collect()
        };
        let mut found = false;
        for (which, topic, number, position) in held {
            let (mut low, mut high) = bounds(client, &topic, number)?;
            if position > high {
                // A broker that has just started may not know yet how far it had come.
                std::thread::sleep(SECOND_LOOK);
                (low, high) = bounds(client, &topic, number)?;
            }
            if (low..=high).contains(&position) {
                continue;
            }
            found = true;
            let mut state = shared.state();
            if let Some(part) = state.parts.get_mut(which) {
                // Beyond the end the partition was made anew or cut: what is there has another
                // history, and begins at its beginning.
                if position < low {
                    part.progress.skip_to(low);
                } else {
                    part.start_again(low);
                    self.renew(&mut state.parts, which);
                }
            }
            state.tell(Event::Gap {
                topic: topic.to_string(),
                server: None,
                partition: number,
                from: position,
                to: low,
            });
            drop(state);
            shared.answers.wake();
            begin_again(client, shared, self.member, Some((&topic, number)))?;
        }
        if !found {
            // All of them are there by now, but the client fetches one of them no more.
            begin_again(client, shared, self.member, None)?;
        }
        Ok(())
    }

    /// Makes answers for what a partition was before void.
    fn renew(&mut self, parts: &mut Assignments<Part>, which: Assignment) {
        let Some(next) = parts.renew(which) else { return };
        let leaving = self.leaving.iter_mut().flat_map(|leaving| &mut leaving.parts);
        leaving.filter(|one| **one == which).for_each(|one| *one = next);
        self.index.renew(self.member, parts);
    }
}

/// Has the client fetch a partition anew that it has given up, or every one: it would refuse a
/// seek.
fn begin_again(
    client: &Client,
    shared: &Shared,
    member: Member,
    which: Option<(&str, i32)>,
) -> KafkaResult<()> {
    let cooperative = matches!(client.rebalance_protocol(), RebalanceProtocol::Cooperative);
    let mut list = TopicPartitionList::new();
    for part in shared.state().held().filter(|part| part.member == member) {
        // An eager client only takes all partitions at once.
        let is_it = |(topic, number): (&str, i32)| part.number == number && *part.topic == *topic;
        if !cooperative || which.is_none_or(is_it) {
            list.add_partition_offset(&part.topic, part.number, Offset::Offset(part.position()))?;
        }
    }
    if cooperative {
        unassign(client, &list)?;
    }
    assign(client, &list)
}

fn start_leaving(shared: &Shared, deadline: Instant, leaves: impl Fn(&Part) -> bool) -> Vec<Assignment> {
    let mut state = shared.state();
    let (mut leaving, mut scope) = (Vec::new(), Vec::new());
    for (which, part) in state.parts.iter_mut().filter(|(_, part)| leaves(part)) {
        part.stage = Stage::Leaving { deadline };
        leaving.push(which);
        scope.push((part.topic.to_string(), part.number));
    }
    if !scope.is_empty() {
        state.tell(Event::Revoking { scope: Scope::Partitions(scope), deadline });
    }
    drop(state);
    shared.answers.wake();
    leaving
}

/// The first offset of a partition, and the one after the last.
fn bounds(client: &Client, topic: &str, number: i32) -> KafkaResult<(i64, i64)> {
    client.fetch_watermarks(topic, number, ASK)
}

/// The assignments by name, for the thread that alone adds and removes them.
#[derive(Debug, Default)]
pub(crate) struct Index {
    entries: Vec<(Arc<str>, i32, Assignment)>,
    /// The last one found: messages come in runs.
    last: usize,
}

impl Index {
    fn renew(&mut self, member: Member, parts: &Assignments<Part>) {
        let ours = parts.iter().filter(|(_, part)| part.member == member);
        self.entries = ours.map(|(which, part)| (part.topic.clone(), part.number, which)).collect();
        self.last = 0;
    }

    /// The assignment of a partition.
    pub(crate) fn find(&mut self, topic: &str, number: i32) -> Option<Assignment> {
        let is_it = |entry: &(Arc<str>, i32, Assignment)| entry.1 == number && *entry.0 == *topic;
        if !self.entries.get(self.last).is_some_and(is_it) {
            self.last = self.entries.iter().position(is_it)?;
        }
        Some(self.entries[self.last].2)
    }
}
