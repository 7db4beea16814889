//! Who has which partition, and how a partition changes hands.

use oncemq_core::{Event, Scope};
use tokio::time::Instant;

use crate::attached::{Attached, Place};
use crate::hub::{Clock, Wakes};
use crate::logs::Logs;
use crate::source::SourceId;

/// The members of a consumer on one topic, the oldest first, and the topic's partitions as
/// this consumer knows them.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) parts: Vec<u32>,
    pub(crate) members: Vec<SourceId>,
}

/// What changing owners needs beside the partitions.
pub(crate) struct Board<'a> {
    pub(crate) sources: &'a mut Vec<Attached>,
    pub(crate) last_epoch: &'a mut u64,
    pub(crate) wakes: &'a mut Wakes,
    pub(crate) clock: &'a mut Clock,
}

impl Logs {
    /// A source joins the groups of its subscriptions.
    pub(crate) fn join(&mut self, id: SourceId, board: &mut Board<'_>) {
        for key in keys(&board.sources[id as usize]) {
            if let Some(group) = self.groups.get_mut(&key) {
                group.members.push(id);
                self.rebalance(&key, board);
            }
        }
    }

    /// A source leaves: its partitions go to the others at once.
    pub(crate) fn leave(&mut self, id: SourceId, clean: bool, board: &mut Board<'_>) {
        for key in keys(&board.sources[id as usize]) {
            if let Some(group) = self.groups.get_mut(&key) {
                group.members.retain(|member| *member != id);
            }
        }
        for place in std::mem::take(&mut board.sources[id as usize].places) {
            self.parts[place.index as usize].release(clean, self.uncommitted);
            self.leaving.retain(|index| *index != place.index);
        }
        for key in keys(&board.sources[id as usize]) {
            self.rebalance(&key, board);
        }
    }

    /// A source lost its connection and keeps its partitions under new epochs.
    pub(crate) fn restart(&mut self, id: SourceId, board: &mut Board<'_>) {
        for place in std::mem::take(&mut board.sources[id as usize].places) {
            self.parts[place.index as usize].release(false, self.uncommitted);
            self.leaving.retain(|index| *index != place.index);
            self.give(place.index, board);
        }
    }

    /// Spreads the partitions evenly and moves as few as possible.
    fn rebalance(&mut self, key: &(std::sync::Arc<str>, std::sync::Arc<str>), board: &mut Board<'_>) {
        let Some(group) = self.groups.get(key) else { return };
        let (parts, members) = (group.parts.clone(), group.members.clone());
        if members.is_empty() {
            return parts.iter().for_each(|index| self.parts[*index as usize].target = None);
        }
        let (each, extra) = (parts.len() / members.len(), parts.len() % members.len());
        let mut room: Vec<_> = (0..members.len()).map(|i| each + usize::from(i < extra)).collect();
        let mut homeless = Vec::new();
        for index in &parts {
            let part = &mut self.parts[*index as usize];
            part.target = None;
            match members.iter().position(|member| part.owner == Some(*member)) {
                Some(member) if room[member] > 0 => {
                    room[member] -= 1;
                    part.target = part.owner;
                }
                _ => homeless.push(*index),
            }
        }
        for index in homeless {
            if let Some(member) = room.iter().position(|room| *room > 0) {
                room[member] -= 1;
                self.parts[index as usize].target = Some(members[member]);
            }
        }
        self.revoke(&members, &parts, board);
        for index in parts {
            if self.parts[index as usize].owner.is_none() || self.is_let_go(index) {
                self.hand_over(index, board);
            }
        }
    }

    /// Tells owners what they lose.
    fn revoke(&mut self, members: &[SourceId], parts: &[u32], board: &mut Board<'_>) {
        for member in members {
            let source = &board.sources[*member as usize];
            let deadline = board.clock.after(source.revoke_limit);
            let mut lost = Vec::new();
            for index in parts {
                let part = &mut self.parts[*index as usize];
                if part.owner != Some(*member) || part.target == part.owner || part.leaving.is_some() {
                    continue;
                }
                part.leaving = Some(deadline);
                self.leaving.push(*index);
                let part = &self.parts[*index as usize];
                let number = i32::try_from(part.number).unwrap_or(i32::MAX);
                lost.push((self.topic_name(part).to_string(), number));
                lost.push((part.lane_topic().to_owned(), number));
            }
            if !lost.is_empty() {
                let event = Event::Revoking { scope: Scope::Partitions(lost), deadline };
                board.sources[*member as usize].notices.push_back(event);
                board.wakes.ids.push(*member);
            }
        }
    }

    /// Moves a partition whose owner has let it go, or must.
    pub(crate) fn hand_over(&mut self, index: u32, board: &mut Board<'_>) {
        let part = &mut self.parts[index as usize];
        let owner = part.owner;
        let out = part.release(true, self.uncommitted);
        self.leaving.retain(|leaving| *leaving != index);
        if let Some(source) = owner.and_then(|owner| board.sources.get_mut(owner as usize)) {
            source.places.retain(|place| place.index != index);
            source.settled(out);
            board.wakes.ids.extend(owner);
        }
        self.give(index, board);
    }

    /// Gives a free partition to the one it is meant for.
    fn give(&mut self, index: u32, board: &mut Board<'_>) {
        let part = &self.parts[index as usize];
        let (Some(target), topic) = (part.target, self.topic_name(part).clone()) else { return };
        let source = &mut board.sources[target as usize];
        let subscription = source.topics.iter().position(|known| *known == topic).unwrap_or_default();
        let subscription = u16::try_from(subscription).unwrap_or(u16::MAX);
        *board.last_epoch += 1;
        self.parts[index as usize].assign(target, *board.last_epoch, source.in_flight);
        source.places.push(Place { index, subscription });
        board.wakes.ids.push(target);
    }

    /// Moves what is overdue.
    pub(crate) fn enforce_deadlines(&mut self, board: &mut Board<'_>) {
        if self.leaving.is_empty() {
            return;
        }
        let now = board.clock.now();
        for index in self.leaving.clone() {
            if self.parts[index as usize].leaving.is_some_and(|deadline| deadline <= now) {
                self.hand_over(index, board);
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.leaving.iter().filter_map(|index| self.parts[*index as usize].leaving).min()
    }
}

/// The groups of a source.
fn keys(source: &Attached) -> Vec<(std::sync::Arc<str>, std::sync::Arc<str>)> {
    source.topics.iter().map(|topic| (source.consumer.clone(), topic.clone())).collect()
}
