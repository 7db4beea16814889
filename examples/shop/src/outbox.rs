//! The orders of the shop, written to a table before anything is sent.

use sqlx::{PgPool, Postgres, Transaction};

use crate::Error;
use crate::database::USERS;
use crate::order::{Item, OrderCompleted};

/// What is to become of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its points are booked, once.
    Booked,
    /// A dead letter: nobody has this account.
    UnknownUser,
    /// A dead letter: it is not JSON.
    Undecodable,
    /// A dead letter: without an id nobody can tell it from a resend.
    WithoutId,
}

impl Fate {
    /// As it stands in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Fate::Booked => "booked",
            Fate::UnknownUser => "unknown user",
            Fate::Undecodable => "undecodable",
            Fate::WithoutId => "without id",
        }
    }
}

/// A row of the outbox.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its place in the order of sending, which the table gives it.
    pub position: i64,
    /// The id of the message, the same each time it is sent.
    pub message_id: String,
    /// Who ordered: the key of the message.
    pub user_id: i64,
    /// The payload.
    pub body: Vec<u8>,
}

/// Adds this many new orders.
///
/// # Errors
/// The database refuses.
pub async fn add_orders(pool: &PgPool, count: i64) -> Result<(), Error> {
    let first = last(pool).await? + 1;
    let mut tx = pool.begin().await?;
    for number in first..first + count {
        let event = Event::of(number)?;
        // The shop's own retry wrote one of five events twice.
        for _ in 0..event.copies() {
            event.add(&mut tx, false).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}

/// The number of the last event.
///
/// # Errors
/// The database does not answer.
pub async fn last_number(pool: &PgPool) -> Result<Option<i64>, Error> {
    let text = "SELECT split_part(message_id, '/', 2)::bigint FROM outbox ORDER BY position DESC LIMIT 1";
    Ok(sqlx::query_scalar(text).fetch_optional(pool).await?)
}

/// The last position, behind which numbers are new.
///
/// # Errors
/// The database does not answer.
pub async fn last(pool: &PgPool) -> Result<i64, Error> {
    Ok(sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM outbox").fetch_one(pool).await?)
}

/// What is to be told of an order.
#[derive(Debug, Clone)]
pub struct Event {
    number: i64,
    /// The id of the message, the same each time it is sent.
    pub message_id: String,
    /// Who ordered: the key of the message.
    pub user_id: i64,
    /// The payload.
    pub body: Vec<u8>,
    order_id: Option<String>,
    fate: Fate,
}

impl Event {
    /// The event of a number.
    ///
    /// # Errors
    /// None that a number could cause.
    pub fn of(number: i64) -> Result<Self, Error> {
        let (order, fate) = order(number);
        let body = body(&order, fate)?;
        let is_named = fate != Fate::WithoutId && fate != Fate::Undecodable;
        Ok(Self {
            number,
            message_id: format!("order-completed/{number}"),
            user_id: order.user_id,
            body,
            order_id: is_named.then_some(order.order_id),
            fate,
        })
    }

    /// How often a shop sends it that sees no answer to one of five.
    pub fn copies(&self) -> usize {
        if self.number % 5 == 0 { 2 } else { 1 }
    }

    /// Writes a row for it, which somebody is still to send, or which is as good as sent.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn add(&self, tx: &mut Transaction<'_, Postgres>, is_sent: bool) -> Result<(), Error> {
        let text = "INSERT INTO outbox (message_id, user_id, order_id, fate, body, confirmed_at)
                    VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN now() END)";
        sqlx::query(text)
            .bind(&self.message_id)
            .bind(self.user_id)
            .bind(&self.order_id)
            .bind(self.fate.as_str())
            .bind(&self.body)
            .bind(is_sent)
            .execute(&mut **tx)
            .await?;
        Ok(())
    }
}

/// The order of a number: ordinary ones, and everything that goes wrong in a shop.
fn order(number: i64) -> (OrderCompleted, Fate) {
    let fate = match number % 100 {
        17 => Fate::Undecodable,
        42 => Fate::WithoutId,
        66 => Fate::UnknownUser,
        _ => Fate::Booked,
    };
    let order_id = match number % 10 {
        // Differ in letter case only from the number before.
        3 => format!("web-{:06}-a", number - 1),
        2 => format!("WEB-{number:06}-A"),
        4 => format!("markt-{number:06}-\u{1f9fe}"),
        _ => format!("app-{number:06}"),
    };
    let user_id = if fate == Fate::UnknownUser { 900_000 + number } else { 1 + number % USERS };
    let currency = ["EUR", "EUR", "USD", "CHF", "JPY"][usize::try_from(number % 5).unwrap_or_default()];
    let items = items(number);
    let total = items.iter().map(|item| item.quantity * item.unit_price).sum();
    let minute = number % 60;
    let order = OrderCompleted {
        order_id,
        user_id,
        items,
        total,
        currency: currency.into(),
        placed_at: format!("2026-03-{:02}T09:{minute:02}:12.480Z", 1 + number % 28),
        completed_at: format!("2026-03-{:02}T10:{minute:02}:55.003Z", 1 + number % 28),
        provider_is_flaky: number % 50 == 8,
    };
    (order, fate)
}

fn items(number: i64) -> Vec<Item> {
    const GOODS: [(&str, &str, i64); 4] = [
        ("TEA-0042", "Grüner Tee, 100 g", 890),
        ("CUP-0007", "Becher \u{1f375} \u{201e}Zeit\u{201c}", 1450),
        ("BOOK-1984", "\u{5409}\u{7965}\u{306e}\u{672c}", 2200),
        ("GIFT-0001", "Gift card", 5000),
    ];
    let kinds = 1 + usize::try_from(number % 3).unwrap_or_default();
    let goods = GOODS.iter().cycle().skip(usize::try_from(number % 4).unwrap_or_default()).take(kinds);
    goods
        .map(|(sku, title, unit_price)| Item {
            sku: (*sku).into(),
            title: (*title).into(),
            quantity: 1 + number % 2,
            unit_price: *unit_price,
        })
        .collect()
}

fn body(order: &OrderCompleted, fate: Fate) -> Result<Vec<u8>, Error> {
    let mut value = serde_json::to_value(order)?;
    if let (Fate::WithoutId, Some(fields)) = (fate, value.as_object_mut()) {
        fields.remove("order_id");
    }
    let mut body = serde_json::to_vec(&value)?;
    if fate == Fate::Undecodable {
        // Cut off on its way through an old gateway, in the middle of a character.
        body.truncate(body.len() / 2);
        body.push(0xf0);
    }
    Ok(body)
}

/// The next rows that no confirm was seen for.
///
/// # Errors
/// The database does not answer.
pub async fn unsent(pool: &PgPool, count: i64) -> Result<Vec<Row>, Error> {
    let text = "SELECT position, message_id, user_id, body FROM outbox WHERE confirmed_at IS NULL
                ORDER BY position LIMIT $1";
    let rows: Vec<(i64, String, i64, Vec<u8>)> = sqlx::query_as(text).bind(count).fetch_all(pool).await?;
    let row = |(position, message_id, user_id, body)| Row { position, message_id, user_id, body };
    Ok(rows.into_iter().map(row).collect())
}

/// Notes confirmed rows.
///
/// # Errors
/// The database does not answer. They will be sent again, which does no harm.
pub async fn confirmed(pool: &PgPool, positions: &[i64]) -> Result<(), Error> {
    sqlx::query("UPDATE outbox SET confirmed_at = now() WHERE position = ANY ($1)")
        .bind(positions)
        .execute(pool)
        .await?;
    Ok(())
}
