//! Names of the tables: validated once, quoted always.

use oncemq_core::{Error, ErrorKind};

const DEFAULT_PREFIX: &str = "oncemq_";
/// PostgreSQL cuts names at 63 bytes without a word; the longest suffix is `inbox_note_key`.
const NAME_MAX: usize = 40;

/// Where the tables are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct Names {
    schema: Option<String>,
    prefix: String,
}

impl Names {
    pub(crate) fn new(schema: Option<String>, prefix: Option<String>) -> Result<Self, Error> {
        let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.into());
        if let Some(schema) = &schema {
            check("schema", schema)?;
        }
        if !prefix.is_empty() {
            check("table prefix", &prefix)?;
        }
        Ok(Self { schema, prefix })
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The same tables in a schema that the server named.
    #[cfg(feature = "postgres")]
    pub(crate) fn in_schema(&self, schema: String) -> Self {
        Self { schema: Some(schema), prefix: self.prefix.clone() }
    }

    /// Done rows, by key.
    pub(crate) fn inbox(&self) -> String {
        self.table("inbox")
    }

    /// Notes, by message.
    pub(crate) fn note(&self) -> String {
        self.table("inbox_note")
    }

    /// Decisions, by transaction.
    pub(crate) fn decision(&self) -> String {
        self.table("decision")
    }

    pub(crate) fn table(&self, name: &str) -> String {
        let table = quoted(&self.bare(name));
        match &self.schema {
            Some(schema) => format!("{}.{table}", quoted(schema)),
            None => table,
        }
    }

    /// An index; it lives where its table does.
    pub(crate) fn index(&self, name: &str) -> String {
        quoted(&self.bare(name))
    }

    /// A table's name without quotes and schema.
    pub(crate) fn bare(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn check(what: &str, name: &str) -> Result<(), Error> {
    let mut chars = name.chars();
    let head = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if head && name.len() <= NAME_MAX && chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        format!("the {what} {name:?} is not usable: up to {NAME_MAX} letters, digits and _, no digit first"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        let names = Names::new(Some("Shop".into()), None).unwrap();
        assert_eq!(names.note(), "\"Shop\".\"oncemq_inbox_note\"");
        assert_eq!(Names::new(None, Some(String::new())).unwrap().inbox(), "\"inbox\"");
        for bad in ["1a", "a b", "a\"b", "a;b", "ä", &"x".repeat(41)] {
            let error = Names::new(None, Some(bad.to_owned())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
        }
        assert!(Names::new(Some(String::new()), None).is_err());
    }
}
