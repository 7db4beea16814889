//! Transactions that a decision can be written into.

use std::future::Future;

use sqlx::{Executor, Transaction};

use crate::dialect::{DecisionTexts, Dialect, Value};
use crate::execute::{Statement, collect};
use crate::tx::Tx;

/// A transaction that a decision can be written into: one of sqlx, or the [`Tx`] of a handler.
/// A bare connection or a pool is none: there the row would be committed by itself.
pub trait LocalTransaction<DB: Dialect>: sealed::Sealed + Send {
    #[doc(hidden)]
    fn write(
        &mut self,
        texts: &DecisionTexts,
        values: Vec<Value>,
        named: bool,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl<DB: Dialect> LocalTransaction<DB> for Transaction<'_, DB> {
    async fn write(
        &mut self,
        texts: &DecisionTexts,
        values: Vec<Value>,
        named: bool,
    ) -> Result<(), sqlx::Error> {
        collect::<DB>(self, &texts.commit, values, named).await.map(drop)
    }
}

impl<DB: Dialect> LocalTransaction<DB> for Tx<DB> {
    async fn write(
        &mut self,
        texts: &DecisionTexts,
        values: Vec<Value>,
        named: bool,
    ) -> Result<(), sqlx::Error> {
        let statement = Statement::<DB>::bound(&texts.commit_in_unit, values, named)?;
        self.db().execute(statement).await.map(drop)
    }
}

mod sealed {
    pub trait Sealed {}
    impl<DB: sqlx::Database> Sealed for sqlx::Transaction<'_, DB> {}
    impl<DB: crate::dialect::Dialect> Sealed for crate::tx::Tx<DB> {}
}
