use super::*;

#[test]
fn er1_sqlstates_decide() {
    for (code, trouble) in [
        ("40001", Trouble::Redo),
        ("40P01", Trouble::Redo),
        ("40002", Trouble::Aborted),
        ("08006", Trouble::Broken),
        ("57P01", Trouble::Broken),
        ("57P03", Trouble::Broken),
        ("25P03", Trouble::Broken),
        ("57014", Trouble::Aborted),
        ("55P03", Trouble::Aborted),
        ("25P02", Trouble::Aborted),
        ("23505", Trouble::Aborted),
        ("22001", Trouble::Aborted),
        ("42P01", Trouble::Aborted),
        ("53100", Trouble::Aborted),
        ("XX000", Trouble::Aborted),
        ("", Trouble::Aborted),
    ] {
        assert_eq!(judge_code(code), trouble, "{code}");
    }
    for (error, trouble) in [
        (sqlx::Error::PoolTimedOut, Trouble::Broken),
        (sqlx::Error::Protocol("x".into()), Trouble::Broken),
        (sqlx::Error::RowNotFound, Trouble::Harmless),
        (sqlx::Error::Io(std::io::Error::other("x")), Trouble::Broken),
    ] {
        assert_eq!(Postgres::judge(&error), trouble, "{error}");
    }
}

#[test]
fn a_unit_is_bounded_on_the_server() {
    let server = Server { watches_client: true, may_delete: true };
    let text = Postgres::begin_text(&server, "sp", Duration::from_secs(35));
    assert!(text.contains("statement_timeout = 35000"), "{text}");
    assert!(text.contains("idle_in_transaction_session_timeout = 35000"), "{text}");
    assert!(text.contains("lock_timeout = 1000"), "{text}");
    assert!(text.ends_with("SAVEPOINT sp"), "{text}");
    // Zero would mean no limit.
    let text = Postgres::begin_text(&server, "sp", Duration::ZERO);
    assert!(text.contains("statement_timeout = 1;"), "{text}");
}
