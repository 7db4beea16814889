//! Looks at a handler's SQL before it is sent.
//!
//! The end of a unit is checked by the database; this only turns the usual mistakes into an
//! error at the place where they are made.

/// What a text may do to the transaction around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    Ordinary,
    /// It goes back to a savepoint, which heals an aborted transaction.
    RollbackTo,
}

/// Refuses texts that would begin or end the unit, or touch its own savepoint.
pub(crate) fn check(sql: &str, secret: &str) -> Result<Kind, String> {
    if sql.contains(secret) {
        return Err("the savepoint around the handler is not the handler's".into());
    }
    let mut kind = Kind::Ordinary;
    let mut rest = sql;
    loop {
        let words = first_words(rest);
        let [first, second, third] = [0, 1, 2].map(|i| words.get(i).map_or("", String::as_str));
        match first {
            // A body of statements may follow, as of a trigger.
            "CREATE" => return Ok(kind),
            "ROLLBACK" if second == "TO" || third == "TO" => kind = Kind::RollbackTo,
            "BEGIN" | "COMMIT" | "ROLLBACK" | "ABORT" | "END" => return Err(ends(first)),
            "START" | "PREPARE" if second == "TRANSACTION" => return Err(ends(first)),
            _ => {}
        }
        match after_statement(rest) {
            Some(next) => rest = next,
            None => return Ok(kind),
        }
    }
}

fn ends(word: &str) -> String {
    format!("{word} is not the handler's: the inbox begins and ends the transaction; use savepoint()")
}

/// Up to three words at the start, upper case, white space and comments skipped.
fn first_words(sql: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = sql;
    while words.len() < 3 {
        rest = skip_blank(rest);
        let end = rest.find(|c: char| !c.is_ascii_alphabetic() && c != '_').unwrap_or(rest.len());
        if end == 0 {
            break;
        }
        words.push(rest[..end].to_ascii_uppercase());
        rest = &rest[end..];
    }
    words
}

/// Skips white space, comments and empty statements.
fn skip_blank(mut rest: &str) -> &str {
    loop {
        let before = rest.len();
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == '(');
        if rest.starts_with("--") || rest.starts_with("/*") {
            rest = after_comment(rest);
        }
        if rest.len() == before {
            return rest;
        }
    }
}

fn after_comment(rest: &str) -> &str {
    if rest.starts_with("--") {
        return rest.find('\n').map_or("", |at| &rest[at..]);
    }
    let bytes = rest.as_bytes();
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    rest.get(at..).unwrap_or("")
}

/// What follows the first statement, if it ends with a semicolon.
fn after_statement(sql: &str) -> Option<&str> {
    let mut rest = sql;
    loop {
        let at = rest.find([';', '\'', '"', '`', '$', '-', '/'])?;
        let here = &rest[at..];
        rest = match here.as_bytes() {
            [b';', ..] => return Some(&here[1..]),
            [quote @ (b'\'' | b'"' | b'`'), ..] => {
                let escapes = *quote == b'\'' && rest[..at].ends_with(['e', 'E']);
                after_quoted(here, *quote, escapes)
            }
            [b'-', b'-', ..] | [b'/', b'*', ..] => after_comment(here),
            [b'$', ..] => after_dollar(here),
            _ => &here[1..],
        };
    }
}

fn after_quoted(here: &str, quote: u8, escapes: bool) -> &str {
    let bytes = here.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        if bytes[at] == b'\\' && escapes {
            at += 2;
        } else if bytes[at] == quote {
            return &here[at + 1..];
        } else {
            at += 1;
        }
    }
    ""
}

/// Skips `$tag$ … $tag$`, or only the sign of a numbered argument.
fn after_dollar(here: &str) -> &str {
    let tag_end = here[1..].find('$').map(|at| at + 2);
    let Some(tag) = tag_end.and_then(|end| here.get(..end)) else { return &here[1..] };
    let inner = &tag[1..tag.len() - 1];
    let is_tag = !inner.starts_with(|c: char| c.is_ascii_digit())
        && inner.chars().all(|c| c.is_alphanumeric() || c == '_');
    if !is_tag {
        return &here[1..];
    }
    let body = &here[tag.len()..];
    body.find(tag).map_or("", |at| &body[at + tag.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(sql: &str) -> Result<Kind, String> {
        check(sql, "secret_sp")
    }

    #[test]
    fn texts_that_end_or_begin_a_transaction_are_refused() {
        for sql in [
            "COMMIT",
            " commit ;",
            "-- done\n COMMIT",
            "/* a /* nested */ one */ rollback",
            "ROLLBACK WORK",
            "ABORT",
            "END",
            "begin immediate",
            "START TRANSACTION",
            "PREPARE TRANSACTION 'x'",
            "UPDATE t SET a = ';' ; COMMIT AND CHAIN",
            "SELECT $1; COMMIT",
            "SELECT E'\\''; COMMIT",
            "SELECT $tag$ ; $tag$; COMMIT",
            "RELEASE SAVEPOINT secret_sp",
            "ROLLBACK TO secret_sp",
        ] {
            assert!(kind(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn other_texts_pass() {
        for sql in [
            "UPDATE account SET points = points + $1 WHERE user_id = $2",
            "INSERT INTO commit_log VALUES ('; COMMIT')",
            "SELECT \"; COMMIT\" FROM t",
            "SELECT 1 -- ; COMMIT",
            "SELECT /* ; COMMIT */ 1;",
            "SELECT $$ ; COMMIT $$",
            "SELECT E'\\'; COMMIT'",
            "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; END",
            "PREPARE p AS SELECT 1",
            "SAVEPOINT mine",
            "RELEASE mine",
            "",
            "é; ü",
        ] {
            assert_eq!(kind(sql), Ok(Kind::Ordinary), "{sql}");
        }
        assert_eq!(kind("ROLLBACK TO mine"), Ok(Kind::RollbackTo));
        assert_eq!(kind("rollback transaction to savepoint mine"), Ok(Kind::RollbackTo));
    }
}
