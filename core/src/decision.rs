//! How a local transaction ended.

/// How a local transaction ended, for whoever acts on it afterwards: a broker that keeps a
/// message back until it knows, say. A store that remembers it answers with this, and an
/// adapter that asks takes it; neither knows the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// It is committed.
    Committed,
    /// It is rolled back, or it can never commit any more.
    RolledBack,
    /// Neither yet. Ask again later.
    Open,
}
