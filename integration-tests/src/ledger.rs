//! Whether the guarantee held, asked of the database.

use std::fmt;

use crate::database::Database;

/// The state of the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// Events whose effect is to be there.
    pub expected: i64,
    /// Effects that are there.
    pub effects: i64,
    /// Expected events without an effect.
    pub lost: i64,
    /// Events with more than one effect.
    pub doubled: i64,
    /// Effects that nobody expects.
    pub strange: i64,
    /// Points on all accounts.
    pub balance: i64,
    /// Points of all effects.
    pub booked: i64,
    /// Effects without a record, and records without an effect.
    pub apart: i64,
}

impl Ledger {
    /// Reads the books.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn read(database: &Database) -> Result<Self, sqlx::Error> {
        Ok(Self {
            expected: database.number("SELECT count(*) FROM expected").await?,
            effects: database.number("SELECT count(*) FROM effect").await?,
            lost: database
                .number("SELECT count(*) FROM expected WHERE id NOT IN (SELECT id FROM effect)")
                .await?,
            doubled: database
                .number(
                    "SELECT count(*) FROM (SELECT id FROM effect GROUP BY id HAVING count(*) > 1) AS twice",
                )
                .await?,
            strange: database
                .number("SELECT count(*) FROM effect WHERE id NOT IN (SELECT id FROM expected)")
                .await?,
            balance: database.number("SELECT CAST(coalesce(sum(points), 0) AS BIGINT) FROM account").await?,
            booked: database.number("SELECT CAST(coalesce(sum(points), 0) AS BIGINT) FROM effect").await?,
            apart: database
                .number(
                    "SELECT (SELECT count(*) FROM effect WHERE id NOT IN (SELECT key_text FROM oncemq_inbox))
                     + (SELECT count(*) FROM oncemq_inbox WHERE key_text NOT IN (SELECT id FROM effect))",
                )
                .await?,
        })
    }

    /// Whether nothing is lost so far and only more of the same can come.
    pub fn is_complete(&self) -> bool {
        self.lost == 0
    }

    /// Whether everything is right.
    pub fn is_right(&self) -> bool {
        let empty = [self.lost, self.doubled, self.strange, self.apart];
        empty == [0; 4] && self.effects == self.expected && self.balance == self.booked
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "lost {} doubled {}, {} effects of {} expected and {} strange, balance {} = {} booked, \
             {} records and effects apart",
            self.lost,
            self.doubled,
            self.effects,
            self.expected,
            self.strange,
            self.balance,
            self.booked,
            self.apart
        )
    }
}
