//! The concurrency model of the async condvar's waiters: the queue with the signal that tasks use, and
//! threads for executors. A timeout or a cancelled task is a waiter that leaves or is dropped at a
//! moment of its own.

use super::queue::{Entry, Queue};
use super::task::TaskSignal;
#[cfg(loom)]
use crate::primitive::test::finds;
use crate::primitive::test::{Arc, model};
use crate::primitive::{AtomicBool, Ordering, thread};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Waiter = Pin<Box<Entry<'static, TaskSignal>>>;

/// Runs a body with a queue that outlives the threads it joins, and `N` waiters in it, in order.
fn with_waiters<const N: usize>(body: impl FnOnce(&'static Queue<TaskSignal>, [Waiter; N])) {
    let queue = Box::into_raw(Box::new(Queue::new()));
    // SAFETY: freed below, after the body, which joins its threads and drops its waiters.
    let lent: &'static Queue<TaskSignal> = unsafe { &*queue };
    let waiters = std::array::from_fn(|_| {
        let entry = Box::pin(Entry::new(lent));
        entry.as_ref().enter();
        entry
    });
    body(lent, waiters);
    // SAFETY: made above, and nobody refers to it any more.
    drop(unsafe { Box::from_raw(queue) });
}

/// A waker that remembers its call.
struct Bell(Arc<AtomicBool>);

impl Bell {
    fn new() -> Bell {
        Bell(Arc::new(AtomicBool::new(false)))
    }

    fn waker(&self) -> Waker {
        // Std's `Arc` around the model's: `Wake` wants the former.
        struct Ring(Arc<AtomicBool>);
        impl std::task::Wake for Ring {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        std::sync::Arc::new(Ring(self.0.clone())).into()
    }

    fn rang(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll(waiter: &Waiter, bell: &Bell) -> Poll<()> {
    waiter.poll_told(&mut Context::from_waker(&bell.waker()))
}

/// A task is dropped while a notify comes: the notify is the next one's, or nobody was told.
fn drop_against_notify() {
    with_waiters(|queue, [first, second]| {
        let dropper = thread::spawn(move || drop(first));
        assert!(queue.notify_one(), "two were waiting");
        dropper.join().unwrap();
        let told = second.is_told();
        drop(second);
        // The first was taken by the notify and passed it on, or it had left and the second was taken.
        assert!(told, "a notify went with the task that was dropped");
    });
}

#[test]
fn a_dropped_task_passes_its_notify_on() {
    model(drop_against_notify);
}

/// A task moves from one waker to another while a notify comes.
fn move_against_notify() {
    with_waiters(|queue, [waiter]| {
        let (old, new) = (Bell::new(), Bell::new());
        assert!(poll(&waiter, &old).is_pending());
        let notifier = thread::spawn(move || assert!(queue.notify_one()));
        let moved = poll(&waiter, &new);
        notifier.join().unwrap();
        assert!(moved.is_ready() || new.rang(), "a task sleeps for ever on a waker it gave up");
        assert!(waiter.is_told());
        waiter.used();
    });
}

#[test]
fn a_task_that_moves_is_woken_where_it_went() {
    model(move_against_notify);
}

/// A timeout against a notify, with somebody behind: one of the two has the notify.
fn timeout_against_notify() {
    with_waiters(|queue, [first, second]| {
        let notifier = thread::spawn(move || queue.notify_one());
        let told = first.leave();
        if told {
            first.used();
        }
        drop(first);
        assert!(notifier.join().unwrap());
        assert!(told != second.is_told(), "a notify is one waiter's, and not lost");
        second.leave();
        second.used();
        assert_eq!(queue.len(), 0);
    });
}

#[test]
fn a_notify_beats_a_task_s_timeout() {
    model(timeout_against_notify);
}

/// `notify_all` told everybody: one that is dropped has nothing to pass on to those who came later.
fn all_against_a_newcomer() {
    with_waiters(|queue, [first]| {
        let notifier = thread::spawn(move || queue.notify_all());
        let newcomer = Box::pin(Entry::new(queue));
        newcomer.as_ref().enter();
        let told = notifier.join().unwrap();
        drop(first);
        assert_eq!(newcomer.is_told(), told == 2);
        newcomer.leave();
        newcomer.used();
    });
}

#[test]
fn what_was_for_all_is_not_passed_on() {
    model(all_against_a_newcomer);
}

/// A token is cancelled while a task begins to listen.
fn cancel_against_listen() {
    let token = super::CancelToken::new();
    let canceller = thread::spawn({
        let token = token.clone();
        move || token.cancel()
    });
    let bell = Bell::new();
    let mut listening = Box::pin(token.cancelled());
    let polled = listening.as_mut().poll(&mut Context::from_waker(&bell.waker()));
    canceller.join().unwrap();
    assert!(polled.is_ready() || bell.rang(), "a listener missed its token");
}

#[test]
fn a_token_reaches_who_begins_to_listen() {
    model(cancel_against_listen);
}

#[test]
#[cfg(loom)]
fn the_model_finds_planted_bugs() {
    use crate::primitive::plant::Bug;
    finds(Bug::KeepTheNotify, drop_against_notify);
    finds(Bug::WakerFirst, move_against_notify);
}
