//! A worker: one long-lived task that runs many messages.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::counters::Counters;
use super::deadlines::Deadlines;
use super::keys::{Keys, Turn};
use super::mailbox::{Mail, Mailbox, SharedQueue};
use super::settle::{after_panic, settle};
use super::{Item, Job, Leaving, OrderHash, TopicEnv};
use crate::route::Runner;
use crate::{Delivery, Scope};

/// How many unordered deliveries a worker takes at a time: a blocked one holds no more.
const TAKE_MAX: usize = 32;
/// How many it takes in one poll before it lets others run.
const SLICE_MAX: usize = 1024;

/// The side of a worker that others see.
#[derive(Debug, Default)]
pub(crate) struct WorkerShared {
    pub(crate) mailbox: Mailbox,
    woken: Mutex<Woken>,
    pub(crate) counters: Arc<Counters>,
}

/// The places that were woken since the worker looked, each once.
#[derive(Debug, Default)]
struct Woken {
    list: Vec<u32>,
    listed: Vec<bool>,
}

impl WorkerShared {
    fn woken(&self) -> MutexGuard<'_, Woken> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes one place of one worker. It may outlive the run it was made for; the run that has
/// the place then is polled once for nothing.
#[derive(Debug)]
struct PlaceWaker {
    worker: Arc<WorkerShared>,
    place: u32,
}

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        {
            let woken = &mut *self.worker.woken();
            let Some(listed) = woken.listed.get_mut(self.place as usize) else { return };
            if std::mem::replace(listed, true) {
                return;
            }
            woken.list.push(self.place);
        }
        self.worker.mailbox.wake();
    }
}

/// One topic at one worker.
pub(crate) struct Topic {
    pub(crate) env: Arc<TopicEnv>,
    pub(crate) runner: Box<dyn Runner>,
}

enum Place {
    Free,
    Running { delivery: Delivery, run: u32, order: Option<OrderHash>, leaving: Leaving },
    Waiting { item: Item, next: Option<u32> },
}

pub(crate) struct Worker {
    // Declared before the deliveries: runs are dropped before what they answer for.
    topics: Vec<Topic>,
    places: Vec<Place>,
    wakers: Vec<Waker>,
    free: Vec<u32>,
    keys: Keys,
    deadlines: Deadlines,
    running: usize,
    stopping: bool,
    shared: Arc<WorkerShared>,
    queue: Arc<SharedQueue>,
    mail: Vec<Mail>,
    ready: Vec<u32>,
    taken: Vec<Item>,
}

impl Worker {
    pub(crate) fn new(topics: Vec<Topic>, shared: Arc<WorkerShared>, queue: Arc<SharedQueue>) -> Self {
        Self {
            topics,
            places: Vec::new(),
            wakers: Vec::new(),
            free: Vec::new(),
            keys: Keys::default(),
            deadlines: Deadlines::default(),
            running: 0,
            stopping: false,
            shared,
            queue,
            mail: Vec::new(),
            ready: Vec::new(),
            taken: Vec::new(),
        }
    }

    fn read_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        self.shared.mailbox.take(&mut mail);
        for letter in mail.drain(..) {
            match letter {
                Mail::Item(item) if self.stopping => self.give_back(item),
                Mail::Item(item) => self.admit(item),
                Mail::Revoke(scope) => {
                    self.give_back_waiting(&scope);
                    self.tell_leaving(&scope);
                }
                Mail::Stop => {
                    self.stopping = true;
                    self.give_back_waiting(&Scope::All);
                }
            }
        }
        self.mail = mail;
    }

    /// Takes unordered deliveries from the shared queue. Returns whether more may be there.
    fn take_shared(&mut self) -> bool {
        let mut taken = std::mem::take(&mut self.taken);
        let mut sum = 0;
        while !self.stopping && sum < SLICE_MAX {
            self.queue.take(TAKE_MAX, &mut taken);
            if taken.is_empty() {
                break;
            }
            sum += taken.len();
            for item in taken.drain(..) {
                self.begin(item);
            }
        }
        self.taken = taken;
        sum >= SLICE_MAX
    }

    /// Polls every run that was woken, once.
    fn poll_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        {
            let woken = &mut *self.shared.woken();
            std::mem::swap(&mut woken.list, &mut ready);
            // Woken again while it is polled: polled again in the next pass.
            for place in &ready {
                woken.listed[*place as usize] = false;
            }
        }
        for place in ready.drain(..) {
            self.poll_place(place);
        }
        self.ready = ready;
    }

    /// Starts a delivery, or queues it behind the run of its key.
    fn admit(&mut self, item: Item) {
        let Some(order) = item.order.filter(|order| self.keys.is_busy(*order)) else {
            return self.begin(item);
        };
        let place = self.take_place();
        self.places[place as usize] = Place::Waiting { item, next: None };
        if let Turn::Behind(last) = self.keys.queue(order, place)
            && let Place::Waiting { next, .. } = &mut self.places[last as usize]
        {
            *next = Some(place);
        }
    }

    /// Starts a delivery and every one of its key that becomes free by ready runs.
    fn begin(&mut self, item: Item) {
        let mut next = Some(item);
        while let Some(item) = next {
            next = self.start(item);
        }
    }

    /// Starts one run. A ready one touches neither the places nor the keys. Returns the
    /// next delivery of the key if the run is over.
    fn start(&mut self, item: Item) -> Option<Item> {
        let Item { delivery, key, order } = item;
        let topic = usize::from(delivery.facts().subscription);
        let leaving = Leaving::of(self.topics[topic].env.ordering);
        let (message, facts) = (delivery.message().clone(), delivery.facts());
        let job = Job { message, facts, key, leaving: leaving.clone() };
        let place = self.take_place();
        let run = self.topics[topic].runner.start(job);
        match self.poll_run(topic, run, place, &delivery) {
            Poll::Ready(outcome) => {
                self.free.push(place);
                settle(delivery, outcome, &self.shared.counters);
                order.and_then(|order| self.next_of(order))
            }
            Poll::Pending => {
                if let Some(order) = order {
                    self.keys.occupy(order);
                }
                self.places[place as usize] = Place::Running { delivery, run, order, leaving };
                self.running += 1;
                if let Some(limit) = self.topics[topic].runner.limit() {
                    self.deadlines.arm(limit, place, self.running);
                }
                None
            }
        }
    }

    fn poll_place(&mut self, place: u32) {
        let slot = &mut self.places[place as usize];
        // A waker that outlived its run: the place may be free, or somebody waits in it.
        if !matches!(slot, Place::Running { .. }) {
            return;
        }
        let Place::Running { delivery, run, order, leaving } = std::mem::replace(slot, Place::Free) else {
            return;
        };
        let topic = usize::from(delivery.facts().subscription);
        match self.poll_run(topic, run, place, &delivery) {
            Poll::Pending => self.places[place as usize] = Place::Running { delivery, run, order, leaving },
            Poll::Ready(outcome) => self.finish(place, delivery, order, outcome),
        }
    }

    /// Settles a run that was pending and starts the next delivery of its key.
    fn finish(&mut self, place: u32, delivery: Delivery, order: Option<OrderHash>, outcome: super::Outcome) {
        self.running -= 1;
        self.deadlines.disarm(place);
        self.free.push(place);
        settle(delivery, outcome, &self.shared.counters);
        if let Some(next) = order.and_then(|order| self.next_of(order)) {
            self.begin(next);
        }
    }

    /// Ends the runs whose time is up.
    fn expire(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(place) = self.deadlines.poll_due(cx) {
            let slot = &mut self.places[place as usize];
            let Place::Running { delivery, run, order, .. } = std::mem::replace(slot, Place::Free) else {
                continue;
            };
            let topic = usize::from(delivery.facts().subscription);
            let Topic { env, runner } = &mut self.topics[topic];
            let expired = catch_unwind(AssertUnwindSafe(|| runner.expire(run, &delivery)));
            let outcome = expired.unwrap_or_else(|_| after_panic(env, delivery.message(), delivery.facts()));
            self.finish(place, delivery, order, outcome);
        }
    }

    fn poll_run(&mut self, topic: usize, run: u32, place: u32, delivery: &Delivery) -> Poll<super::Outcome> {
        let Topic { env, runner } = &mut self.topics[topic];
        let mut cx = Context::from_waker(&self.wakers[place as usize]);
        match catch_unwind(AssertUnwindSafe(|| runner.poll(run, delivery, &mut cx))) {
            Ok(poll) => poll,
            Err(_) => {
                // The run was half dropped; what is left of it must not end the worker.
                let _ = catch_unwind(AssertUnwindSafe(|| runner.cancel(run)));
                Poll::Ready(after_panic(env, delivery.message(), delivery.facts()))
            }
        }
    }

    /// The next delivery that waits for this key.
    fn next_of(&mut self, order: OrderHash) -> Option<Item> {
        let places = &self.places;
        let follower = |place: u32| match places[place as usize] {
            Place::Waiting { next, .. } => next,
            _ => None,
        };
        let place = self.keys.advance(order, follower)?;
        match std::mem::replace(&mut self.places[place as usize], Place::Free) {
            Place::Waiting { item, .. } => {
                self.free.push(place);
                Some(item)
            }
            _ => None,
        }
    }

    fn take_place(&mut self) -> u32 {
        if let Some(place) = self.free.pop() {
            return place;
        }
        let place = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        let waker = Arc::new(PlaceWaker { worker: self.shared.clone(), place });
        self.places.push(Place::Free);
        self.wakers.push(Waker::from(waker));
        self.shared.woken().listed.push(false);
        place
    }

    fn give_back(&self, item: Item) {
        self.shared.counters.release(item.delivery.message().size());
        drop(item);
    }

    /// Gives back what waits of a scope and rebuilds the FIFOs of what stays.
    fn give_back_waiting(&mut self, scope: &Scope) {
        let mut stay = Vec::new();
        for place in self.waiting_in_order() {
            let Place::Waiting { item, .. } =
                std::mem::replace(&mut self.places[place as usize], Place::Free)
            else {
                continue;
            };
            self.free.push(place);
            if scope.contains(item.delivery.message().origin()) {
                self.give_back(item);
            } else {
                stay.push(item);
            }
        }
        for item in stay {
            self.admit(item);
        }
    }

    /// Tells the runs of a scope that it leaves. What waits behind them has gone back before,
    /// so none of it starts when they end.
    fn tell_leaving(&self, scope: &Scope) {
        for (place, waker) in self.places.iter().zip(&self.wakers) {
            if let Place::Running { delivery, leaving, .. } = place
                && scope.contains(delivery.message().origin())
            {
                leaving.say();
                waker.wake_by_ref();
            }
        }
    }

    /// Every waiting place, each key's in its order; the FIFOs are empty afterwards.
    fn waiting_in_order(&mut self) -> Vec<u32> {
        let mut heads = Vec::new();
        let mut running = Vec::new();
        for place in &self.places {
            if let Place::Running { order: Some(order), .. } = place {
                running.push(*order);
            }
        }
        for order in &running {
            let places = &self.places;
            let follower = |place: u32| match places[place as usize] {
                Place::Waiting { next, .. } => next,
                _ => None,
            };
            while let Some(place) = self.keys.advance(*order, follower) {
                heads.push(place);
            }
        }
        self.keys.clear();
        for order in running {
            self.keys.occupy(order);
        }
        heads
    }
}

/// What still runs when the worker is dropped goes back, and is counted as given back.
impl Drop for Worker {
    fn drop(&mut self) {
        for place in &self.places {
            let delivery = match place {
                Place::Free => continue,
                Place::Running { delivery, .. } => delivery,
                Place::Waiting { item, .. } => &item.delivery,
            };
            self.shared.counters.release(delivery.message().size());
        }
    }
}

impl Future for Worker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &mut *self;
        worker.read_mail();
        worker.poll_ready();
        let more = worker.take_shared();
        // After everything that starts runs: the timer must know their deadlines too.
        worker.expire(cx);
        if worker.stopping && worker.running == 0 {
            return Poll::Ready(());
        }
        // From here on anything new wakes the task; what came before is looked for again.
        worker.shared.mailbox.fall_asleep(cx.waker());
        let ready = !worker.shared.woken().list.is_empty();
        let missed = more
            || ready
            || !worker.shared.mailbox.is_empty()
            || (!worker.stopping && !worker.queue.is_empty());
        if missed {
            worker.shared.mailbox.wake();
        }
        Poll::Pending
    }
}
