//! What a consumer will do, worked out before it starts, as data.

use std::fmt;
use std::time::Duration;

use crate::url;

/// What a consumer will do and what it cannot promise, worked out at start.
///
/// `Display` prints it for people; programs read the fields.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Plan {
    /// The consumer's name.
    pub consumer: String,
    /// The broker's name.
    pub broker: String,
    /// One entry a topic.
    pub topics: Vec<TopicPlan>,
    /// Queues, topics and bindings that are declared, verified or trusted.
    pub topology: Vec<String>,
    /// What can be lost or doubled, and when. Empty is what everybody wants.
    pub warnings: Vec<String>,
}

/// The plan of one topic.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TopicPlan {
    /// The topic, under the name it has on this broker.
    pub topic: String,
    /// Asked and actual delay of each rung.
    pub rungs: Vec<Rung>,
    /// What comes at the end of the ladder.
    pub end: String,
    /// `free` or `ordered`.
    pub ordering: String,
    /// The promise in a few words.
    pub guarantee: String,
    /// Where dead letters go, once the adapter knows.
    pub dead_letters: Option<String>,
}

/// One rung of a ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rung {
    /// The delay the policy asks for.
    pub asked: Duration,
    /// The delay the broker gives, never shorter.
    pub actual: Duration,
}

impl Rung {
    /// A rung that the broker gives as asked.
    pub fn exact(asked: Duration) -> Self {
        Self { asked, actual: asked }
    }

    /// A rung that the broker rounds up.
    pub fn rounded(asked: Duration, actual: Duration) -> Self {
        Self { asked, actual }
    }
}

impl Plan {
    /// Adds a line about the topology.
    pub fn topology(&mut self, line: impl Into<String>) {
        self.topology.push(line.into());
    }

    /// Says where the dead letters of a subscription go, by its index in the consumer.
    pub fn dead_letters(&mut self, subscription: usize, place: impl Into<String>) {
        if let Some(topic) = self.topics.get_mut(subscription) {
            topic.dead_letters = Some(place.into());
        }
    }

    /// Adds something that can be lost or doubled, and when.
    pub fn warn(&mut self, line: impl Into<String>) {
        self.warnings.push(line.into());
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "consumer {} on {}", self.consumer, self.broker)?;
        for topic in &self.topics {
            write!(f, "  {}: {}, {};", topic.topic, topic.guarantee, topic.ordering)?;
            f.write_str(if topic.rungs.is_empty() { " no retries," } else { " retries" })?;
            if topic.ordering == "ordered" && !topic.rungs.is_empty() {
                // They are waited for in the process, and spread.
                f.write_str(" after up to")?;
            }
            for rung in &topic.rungs {
                write!(f, " {}", url::Time(rung.asked))?;
                if rung.actual != rung.asked {
                    write!(f, " (really {})", url::Time(rung.actual))?;
                }
            }
            write!(f, " {}", topic.end)?;
            if let Some(place) = &topic.dead_letters {
                let what = if topic.end.ends_with("dead letter") { "" } else { ", dead letters" };
                write!(f, "{what} in {place}")?;
            }
            writeln!(f)?;
        }
        for line in &self.topology {
            writeln!(f, "  {line}")?;
        }
        for line in &self.warnings {
            writeln!(f, "  warning: {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_says_where_its_own_dead_letters_go() {
        let topic = |name: &str| TopicPlan {
            topic: name.to_owned(),
            rungs: Vec::new(),
            end: "then dead letter".to_owned(),
            ordering: "free".to_owned(),
            guarantee: "unguarded".to_owned(),
            dead_letters: None,
        };
        let rung = Rung { asked: Duration::from_secs(1), actual: Duration::from_secs(1) };
        let ordered = TopicPlan { rungs: vec![rung], ordering: "ordered".to_owned(), ..topic("c") };
        let endless =
            TopicPlan { rungs: vec![rung], end: "then the last delay for ever".to_owned(), ..topic("d") };
        let topics = vec![topic("a"), topic("b"), ordered, endless];
        let mut plan = Plan { topics, ..Plan::default() };
        plan.dead_letters(1, "queue b.dead");
        plan.dead_letters(3, "queue d.dead");
        // An adapter that counts wrongly spoils no plan.
        plan.dead_letters(4, "nowhere");
        let text = plan.to_string();
        assert!(text.contains("a: unguarded, free; no retries, then dead letter\n"), "{text}");
        assert!(
            text.contains("b: unguarded, free; no retries, then dead letter in queue b.dead\n"),
            "{text}"
        );
        let end = "retries 1s then the last delay for ever, dead letters in queue d.dead\n";
        assert!(text.contains(end), "{text}");
        assert!(text.contains("c: unguarded, ordered; retries after up to 1s then dead letter\n"), "{text}");
    }
}
