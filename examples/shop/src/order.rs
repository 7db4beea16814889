//! A completed order, as the shop sends it.

use serde::{Deserialize, Serialize};

/// The event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderCompleted {
    /// The business id. Two events with one id are one event.
    pub order_id: String,
    /// Who ordered.
    pub user_id: i64,
    /// What was ordered.
    pub items: Vec<Item>,
    /// The sum of the items, in the smallest unit of the currency.
    pub total: i64,
    /// ISO 4217.
    pub currency: String,
    /// RFC 3339, UTC.
    pub placed_at: String,
    /// RFC 3339, UTC.
    pub completed_at: String,
    /// How the payment provider behaves; only in this example.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider_is_flaky: bool,
}

/// A line of an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Item {
    /// The article number.
    pub sku: String,
    /// Its name.
    pub title: String,
    /// How many.
    pub quantity: i64,
    /// In the smallest unit of the currency.
    pub unit_price: i64,
}

impl OrderCompleted {
    /// One point for each whole unit of the currency.
    ///
    /// # Errors
    /// The order contradicts itself; says how.
    pub fn points(&self) -> Result<i64, String> {
        let line = |item: &Item| item.quantity.checked_mul(item.unit_price).filter(|sum| *sum >= 0);
        let sum = self.items.iter().try_fold(0_i64, |sum, item| sum.checked_add(line(item)?));
        if sum != Some(self.total) {
            return Err(format!("order {}: the items do not add up to {}", self.order_id, self.total));
        }
        match self.currency.as_str() {
            "EUR" | "USD" | "CHF" => Ok(self.total / 100),
            "JPY" => Ok(self.total / 150),
            other => Err(format!("order {}: no points for the currency {other:?}", self.order_id)),
        }
    }
}
