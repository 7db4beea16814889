//! What must hold when a history is over.

use std::collections::{BTreeMap, BTreeSet};

use oncemq_core::sim::SimStore;
use oncemq_memory::MemoryBroker;

use crate::orders::{CONSUMER, Order, TOPIC};

/// No key lost, none doubled, effect ⇔ record, and every bad key in the dead letters.
pub(crate) fn check(what: &str, orders: &[Order], store: &SimStore, broker: &MemoryBroker) {
    let effects = store.effects();
    for (key, times) in &effects {
        assert_eq!(*times, 1, "{what}: {} doubled", String::from_utf8_lossy(key));
    }
    let applied: BTreeSet<Vec<u8>> = effects.into_keys().collect();
    let good: BTreeSet<Vec<u8>> = ids(orders, true);
    assert_eq!(text(&applied), text(&good), "{what}: effects against good keys");
    let done: BTreeSet<Vec<u8>> = store.done_keys().into_iter().map(|key| key[1..].to_vec()).collect();
    assert_eq!(text(&done), text(&applied), "{what}: records against effects");
    let dead = dead_ids(broker);
    let dead_keys: BTreeSet<Vec<u8>> = dead.keys().cloned().collect();
    let missing: BTreeSet<_> = ids(orders, false).difference(&dead_keys).cloned().collect();
    assert!(missing.is_empty(), "{what}: bad keys without a dead letter: {:?}", text(&missing));
    let wrong: BTreeSet<_> = dead_keys.intersection(&good).cloned().collect();
    assert!(wrong.is_empty(), "{what}: good keys in the dead letters: {:?}", text(&wrong));
}

fn ids(orders: &[Order], good: bool) -> BTreeSet<Vec<u8>> {
    orders
        .iter()
        .filter(|order| order.fate.is_good() == good)
        .map(|order| order.id.clone().into_bytes())
        .collect()
}

/// The ids in the dead letters, and how often each stands there.
pub(crate) fn dead_ids(broker: &MemoryBroker) -> BTreeMap<Vec<u8>, usize> {
    let mut dead = BTreeMap::new();
    for letter in broker.dead_letters(CONSUMER, TOPIC) {
        let order: Order = serde_json::from_slice(letter.body()).unwrap();
        *dead.entry(order.id.into_bytes()).or_default() += 1;
    }
    dead
}

fn text(keys: &BTreeSet<Vec<u8>>) -> Vec<String> {
    keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}
