//! Accounts that may do little.

use oncemq_core::{Class, Failed, Marks, Record, Topology};
use oncemq_idempotency::{Inbox, Purge};
use sqlx::postgres::PgPoolOptions;

use crate::common::{Outcome, claimed, deliver, entry};
use crate::support::{Fixture, cases, effect};

cases![an_account_without_delete_and_ddl_works];

async fn an_account_without_delete_and_ddl_works(f: Fixture) {
    let Ok(admin) = std::env::var("ONCEMQ_POSTGRES_ADMIN_URL") else {
        panic!("ONCEMQ_POSTGRES_ADMIN_URL is not set: making another account needs it");
    };
    let role = format!("{}_role", f.schema);
    let database = f.options.get_database().unwrap();
    let admin: sqlx::postgres::PgConnectOptions = admin.parse().unwrap();
    let admin = PgPoolOptions::new().max_connections(1).connect_with(admin.database(database)).await.unwrap();
    crate::support::execute(&admin, format!("CREATE ROLE {role} LOGIN PASSWORD 'weak'")).await;
    let weak = f.options.clone().username(&role).password("weak");
    let weak_pool = PgPoolOptions::new().max_connections(4).connect_with(weak).await.unwrap();
    f.execute(format!("GRANT USAGE ON SCHEMA {} TO {role}", f.schema)).await;
    // Nothing is there, and this account may not make it.
    let error = Inbox::open(weak_pool.clone()).await.unwrap_err();
    assert!(error.to_string().contains("schema()"), "{error}");
    f.inbox(2).await;
    f.execute(format!("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {} TO {role}", f.schema)).await;
    for topology in [Topology::Verify, Topology::Declare] {
        let key = format!("{topology:?}");
        let builder = Inbox::builder(weak_pool.clone()).topology(topology).purge(Purge::Off);
        let inbox = builder.open().await.unwrap();
        assert_eq!(deliver(&inbox, &entry(&key), effect).await, Outcome::Done);
        assert_eq!(deliver(&inbox, &entry(&key), effect).await, Outcome::Duplicate);
        let note = entry(format!("note {key}"));
        assert_eq!(inbox.mark(&note.trail.id, 1).await.unwrap().unwrap().marks, 1);
        inbox.unmark(&note.trail.id, Marks::All).await.unwrap();
        inbox.charge(&note.trail.id, 2).await.unwrap();
        assert!(inbox.fail(&note, &Failed::now(Class::System, "x")).await.unwrap());
        let (unit, verdict) = claimed(&inbox, &note).await;
        drop(unit);
        assert_eq!(verdict.note.unwrap().attempts, 2);
        inbox.probe().await.unwrap();
        assert!(inbox.purge().await.is_err(), "purged without the right to");
    }
    weak_pool.close().await;
    crate::support::execute(&admin, format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
