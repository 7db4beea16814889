//! Making, checking and versioning the tables.

use oncemq_core::{ErrorKind, Topology};
use oncemq_idempotency::{Inbox, Purge};

use crate::common::{Outcome, deliver, entry};
use crate::support::{Fixture, cases, effect, until};

cases![
    pg7_replicas_race_on_creation,
    pg7_a_migration_of_another_tool_races_too,
    verify_names_all_that_is_missing,
    a_newer_schema_is_refused_unless_it_allows_us,
    printed_statements_make_the_same_tables,
    names_are_settable_and_found_again,
    bad_settings_are_refused,
];

async fn pg7_replicas_race_on_creation(f: Fixture) {
    for round in 0..20 {
        let name = format!("{}_{round}", f.schema);
        // A pool each is a process each, as far as the server can tell.
        let mut processes = tokio::task::JoinSet::new();
        let gate = std::sync::Arc::new(tokio::sync::Barrier::new(8));
        for _ in 0..8 {
            let (pool, name, gate) = (f.pool(1).await, name.clone(), gate.clone());
            processes.spawn(async move {
                gate.wait().await;
                let opened = Inbox::builder(pool.clone()).schema(name).purge(Purge::Off).open().await;
                pool.close().await;
                opened.map(|_| ())
            });
        }
        for opened in processes.join_all().await {
            opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        let tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'oncemq_inbox' AND schemaname = ";
        assert_eq!(f.int(&format!("{tables}'{name}'")).await, 1);
        assert_eq!(f.int(&format!("SELECT count(*) FROM {name}.oncemq_inbox_schema")).await, 1);
        f.execute(format!("DROP SCHEMA {name} CASCADE")).await;
    }
}

/// The other tool does not take our lock: its tables appear while ours are being made.
async fn pg7_a_migration_of_another_tool_races_too(f: Fixture) {
    let text = f.inbox(2).await.schema();
    for commits in [true, false] {
        f.execute("DROP TABLE oncemq_inbox, oncemq_inbox_note, oncemq_inbox_schema").await;
        let mut migration = f.admin.begin().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(text.clone())).execute(&mut *migration).await.unwrap();
        let ends = async {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                         AND application_name = current_setting('application_name')";
            until(std::time::Duration::from_secs(10), "we run into it", async || f.int(waits).await > 0)
                .await;
            match commits {
                true => migration.commit().await.unwrap(),
                false => migration.rollback().await.unwrap(),
            }
        };
        let (opened, ()) = tokio::join!(async { Inbox::open(f.pool(2).await).await }, ends);
        let inbox = opened.unwrap();
        assert_eq!(deliver(&inbox, &entry("a"), |_| async { Ok(()) }).await, Outcome::Done);
    }
}

async fn verify_names_all_that_is_missing(f: Fixture) {
    let verify = || async { Inbox::builder(f.pool(2).await).topology(Topology::Verify).open().await };
    let error = verify().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    let text = error.to_string();
    assert!(text.contains("oncemq_inbox,") && text.contains("oncemq_inbox_note"), "{text}");
    assert!(text.contains("schema()"), "{text}");
    f.inbox(2).await;
    verify().await.unwrap();
    f.execute("ALTER TABLE oncemq_inbox DROP COLUMN outcome, DROP COLUMN conflict").await;
    for opened in [verify().await, Inbox::open(f.pool(2).await).await] {
        let text = opened.unwrap_err().to_string();
        assert!(text.contains("column outcome") && text.contains("column conflict"), "{text}");
    }
    let trusting = Inbox::builder(f.pool(2).await).topology(Topology::Trust).open().await;
    assert!(trusting.is_ok());
}

async fn a_newer_schema_is_refused_unless_it_allows_us(f: Fixture) {
    f.inbox(2).await;
    f.execute("UPDATE oncemq_inbox_schema SET version = 7, oldest_reader = 1").await;
    let inbox = f.inbox(4).await;
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    f.execute("UPDATE oncemq_inbox_schema SET oldest_reader = 2").await;
    f.execute("ALTER TABLE oncemq_inbox DROP COLUMN conflict").await;
    let error = Inbox::open(f.pool(2).await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    let text = error.to_string();
    assert!(text.contains("version 7") && text.contains("update oncemq"), "{text}");
}

async fn printed_statements_make_the_same_tables(f: Fixture) {
    let printed = Inbox::builder(f.pool(2).await).table_prefix("x_").open().await.unwrap().schema();
    f.execute("DROP TABLE x_inbox, x_inbox_note, x_inbox_schema").await;
    f.execute(printed.clone()).await;
    f.execute(printed).await;
    let inbox =
        Inbox::builder(f.pool(4).await).table_prefix("x_").topology(Topology::Verify).open().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    assert_eq!(f.int("SELECT count(*) FROM x_inbox").await, 1);
}

async fn names_are_settable_and_found_again(f: Fixture) {
    let other = format!("{}_Other", f.schema);
    let inbox =
        Inbox::builder(f.pool(4).await).schema(other.as_str()).table_prefix("My_").open().await.unwrap();
    assert_eq!(deliver(&inbox, &entry("a"), effect).await, Outcome::Done);
    assert_eq!(f.int(&format!("SELECT count(*) FROM \"{other}\".\"My_inbox\"")).await, 1);
    // Another inbox of the database is another memory.
    let second = f.inbox(4).await;
    assert_eq!(deliver(&second, &entry("a"), |_| async { Ok(()) }).await, Outcome::Done);
    // A handler that changes the search path does not lead the inbox astray.
    assert_eq!(
        deliver(&second, &entry("b"), |mut tx| async move {
            sqlx::Executor::execute(tx.db(), "SET LOCAL search_path = pg_catalog").await?;
            Ok(())
        })
        .await,
        Outcome::Done
    );
    f.execute(format!("DROP SCHEMA \"{other}\" CASCADE")).await;
}

async fn bad_settings_are_refused(f: Fixture) {
    use std::time::Duration;
    let pool = f.pool(2).await;
    let builder = || Inbox::builder(pool.clone());
    for (what, builder) in [
        ("no retention", builder().retention(Duration::ZERO)),
        ("an endless retention", builder().retention(Duration::MAX)),
        ("no units", builder().max_units(0)),
        ("steps of nothing", builder().purge(Purge::Batch(0))),
        ("a bad prefix", builder().table_prefix("a b")),
        ("a bad schema", builder().schema("a\"b")),
    ] {
        let error = builder.open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
    }
}
