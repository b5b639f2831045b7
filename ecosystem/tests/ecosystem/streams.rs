//! `StreamTimeExt`: limits of time for streams, on virtual time; and in real time where the scheduler does not keep it.

#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a time that goes below zero is a mistake in a test"
)]

use std::collections::VecDeque;
use std::marker::PhantomPinned;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use crate::common::{driven, silence, until};
use futures_util::stream::FusedStream;
use futures_util::{Stream, StreamExt, stream};
use tickwheel::Scheduler;
use tickwheel::future::{ChunksTimeout, StreamTimeExt, StreamTimeout, Throttle, block_on};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A stream whose items a test puts in by hand. Clones are the same stream.
#[derive(Clone, Default)]
struct Source(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    items: VecDeque<u32>,
    is_ended: bool,
    waker: Option<Waker>,
    polls: usize,
}

impl Source {
    fn put(&self, items: impl IntoIterator<Item = u32>) {
        let mut state = self.0.lock().expect("no panic");
        state.items.extend(items);
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    fn end(&self) {
        self.0.lock().expect("no panic").is_ended = true;
        self.put([]);
    }

    fn polls(&self) -> usize {
        self.0.lock().expect("no panic").polls
    }
}

impl Stream for Source {
    type Item = u32;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u32>> {
        let mut state = self.0.lock().expect("no panic");
        state.polls += 1;
        match state.items.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None if state.is_ended => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let state = self.0.lock().expect("no panic");
        (state.items.len(), state.is_ended.then_some(state.items.len()))
    }
}

/// A stream of numbers, each of which comes after a pause.
fn after_pauses(scheduler: &Scheduler, pauses: &[u32]) -> impl Stream<Item = u32> + use<> {
    let (scheduler, pauses) = (scheduler.clone(), pauses.to_vec());
    stream::iter(pauses).then(move |pause| {
        let sleep = scheduler.sleep(SECOND * pause);
        async move {
            sleep.await;
            pause
        }
    })
}

/// Polls for the next item. The future is dropped, as by a `select!` that something else has won.
fn next<S: Stream + Unpin + ?Sized>(task: &Poller, stream: &mut S) -> Poll<Option<S::Item>> {
    task.poll(&mut stream.next())
}

// ----- timeout -----------------------------------------------------------------------------

#[test]
fn each_silence_is_one_error_and_the_stream_goes_on() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    // The sleep of each item begins when the one before has come.
    let items = Box::pin(after_pauses(&scheduler, &[1, 7, 2, 30]));
    let seen = items.timeout(&scheduler, SECOND * 5).map(|item| {
        let at = (scheduler.now() - start).as_secs();
        (at, item.map_err(drop))
    });
    let seen: Vec<_> = driver.block_on(seen.collect()).expect("it ends");
    let silence = Err(());
    let expected = [(1, Ok(1)), (6, silence), (8, Ok(7)), (10, Ok(2)), (15, silence), (40, Ok(30))];
    assert_eq!(seen, expected);
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn an_item_that_is_there_comes_before_the_error_of_a_late_poll() {
    let ((scheduler, driver), task, source) = (driven(), Poller::new(), Source::default());
    let mut watched = source.clone().timeout(&scheduler, SECOND);
    assert!(next(&task, &mut watched).is_pending());
    source.put([1]);
    driver.advance(SECOND * 10);
    assert_eq!(next(&task, &mut watched), Poll::Ready(Some(Ok(1))));
    assert!(next(&task, &mut watched).is_pending(), "the time counts from the item's return");
    driver.advance(SECOND - MILLI);
    assert!(next(&task, &mut watched).is_pending());
    driver.advance(MILLI);
    assert!(matches!(next(&task, &mut watched), Poll::Ready(Some(Err(_)))));
    for _ in 0..3 {
        assert!(next(&task, &mut watched).is_pending(), "one error for one silence");
    }
    assert_eq!(scheduler.pending(), 0);
    source.end();
    assert_eq!(next(&task, &mut watched), Poll::Ready(None));
}

#[test]
fn a_timeout_of_zero_does_not_spin() {
    let ((scheduler, _driver), task, source) = (driven(), Poller::new(), Source::default());
    let mut watched = source.clone().timeout(&scheduler, Duration::ZERO);
    assert!(matches!(next(&task, &mut watched), Poll::Ready(Some(Err(_)))));
    assert!(next(&task, &mut watched).is_pending());
    assert_eq!(task.woken(), 0);
}

// ----- throttle ----------------------------------------------------------------------------

#[test]
fn a_throttle_lets_one_item_pass_in_each_period_and_loses_none() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let slowly = stream::iter(0..5).throttle(&scheduler, SECOND * 2);
    let seen = slowly.map(|item| (item, (scheduler.now() - start).as_secs()));
    let seen: Vec<_> = driver.block_on(seen.collect()).expect("it ends");
    assert_eq!(seen, [(0, 0), (1, 2), (2, 4), (3, 6), (4, 8)]);
    // What comes slowly anyway is not held back.
    let start = scheduler.now();
    let items = scheduler.interval_at(start + SECOND * 3, SECOND * 3).take(3);
    let seen = items.throttle(&scheduler, SECOND * 2).map(|_| (scheduler.now() - start).as_secs());
    assert_eq!(driver.block_on(seen.collect::<Vec<_>>()), Ok(vec![3, 6, 9]));
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn a_throttle_does_not_poll_its_stream_before_the_time() {
    let ((scheduler, driver), task, source) = (driven(), Poller::new(), Source::default());
    source.put(1..=3);
    let mut slowly = source.clone().throttle(&scheduler, SECOND);
    assert_eq!(next(&task, &mut slowly), Poll::Ready(Some(1)));
    for _ in 0..3 {
        assert!(next(&task, &mut slowly).is_pending());
    }
    assert_eq!((source.polls(), slowly.size_hint()), (1, (2, None)));
    driver.advance(SECOND - MILLI);
    assert!(next(&task, &mut slowly).is_pending() && task.woken() == 0);
    driver.advance(MILLI);
    assert_eq!((task.woken(), next(&task, &mut slowly)), (1, Poll::Ready(Some(2))));
    assert_eq!(slowly.into_inner().0.lock().expect("no panic").items, [3], "nothing is lost");
}

// ----- chunks ------------------------------------------------------------------------------

#[test]
fn a_chunk_is_returned_when_it_is_full_or_its_time_is_up_or_at_the_end() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let items = Box::pin(after_pauses(&scheduler, &[1, 0, 0, 1, 2, 9, 0, 3]));
    let chunks = items.chunks_timeout(&scheduler, 3, SECOND * 5);
    let seen = chunks.map(|chunk| (chunk, (scheduler.now() - start).as_secs()));
    let seen: Vec<_> = driver.block_on(seen.collect()).expect("it ends");
    // Full at once; five seconds after its first item, which came at two; full at sixteen.
    let expected = [(vec![1, 0, 0], 1), (vec![1, 2], 7), (vec![9, 0, 3], 16)];
    assert_eq!(seen, expected);

    let rest = stream::iter(0..7).chunks_timeout(&scheduler, 3, SECOND);
    let rest: Vec<_> = driver.block_on(rest.collect()).expect("it ends");
    assert_eq!(rest, [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn the_time_of_a_chunk_counts_from_its_first_item() {
    let ((scheduler, driver), task, source) = (driven(), Poller::new(), Source::default());
    let mut chunks = source.clone().chunks_timeout(&scheduler, 10, SECOND);
    assert!(next(&task, &mut chunks).is_pending());
    driver.advance(SECOND * 10);
    assert_eq!((scheduler.pending(), task.woken()), (0, 0), "an empty chunk has no timer");
    source.put([1]);
    assert!(next(&task, &mut chunks).is_pending());
    for item in 2..=4 {
        driver.advance(SECOND / 4);
        source.put([item]);
        assert!(next(&task, &mut chunks).is_pending(), "further items put nothing off");
    }
    driver.advance(SECOND / 4);
    assert_eq!(next(&task, &mut chunks), Poll::Ready(Some(vec![1, 2, 3, 4])));
    assert_eq!(scheduler.pending(), 0);
    // The next chunk has a time of its own.
    source.put([5]);
    assert!(next(&task, &mut chunks).is_pending());
    driver.advance(SECOND - MILLI);
    assert!(next(&task, &mut chunks).is_pending());
    // What has been gathered can be had without the end of the time.
    let (_, gathered) = chunks.into_parts();
    assert_eq!((gathered, scheduler.pending()), (vec![5], 0));
}

#[test]
fn a_stream_that_always_has_more_leaves_others_their_turn() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut endless = stream::repeat(1).chunks_timeout(&scheduler, usize::MAX, SECOND);
    assert!(next(&task, &mut endless).is_pending());
    assert_eq!(task.woken(), 1, "it wants to go on");
    driver.advance(SECOND);
    let Poll::Ready(Some(chunk)) = next(&task, &mut endless) else { panic!("its time is up") };
    assert_eq!(chunk.len(), 512);
    let mut at_once = stream::repeat(1).chunks_timeout(&scheduler, usize::MAX, Duration::ZERO);
    assert!(matches!(next(&task, &mut at_once), Poll::Ready(Some(chunk)) if chunk.len() == 256));
}

#[test]
fn s27_a_chunk_of_no_items_is_a_mistake_that_is_told() {
    silence();
    let (scheduler, _driver) = driven();
    let made = || drop(stream::repeat(1).chunks_timeout(&scheduler, 0, SECOND));
    let panic = catch_unwind(std::panic::AssertUnwindSafe(made)).expect_err("it is refused");
    let message = panic.downcast_ref::<&str>().expect("words");
    assert!(message.contains("at least 1"), "{message}");
}

// ----- all of them -------------------------------------------------------------------------

/// Each adaptor over the same source, as a stream of the number of items that each step returns.
fn all(source: &Source, scheduler: &Scheduler, time: Duration) -> Vec<Box<dyn Counts>> {
    vec![
        Box::new(source.clone().timeout(scheduler, time).map(|item| usize::from(item.is_ok()))),
        Box::new(source.clone().throttle(scheduler, time).map(|_| 1)),
        Box::new(source.clone().chunks_timeout(scheduler, 4, time).map(|chunk| chunk.len())),
    ]
}

trait Counts: FusedStream<Item = usize> + Unpin {}
impl<S: FusedStream<Item = usize> + Unpin> Counts for S {}

#[test]
fn after_the_end_they_are_terminated_and_hold_no_timer() {
    let (scheduler, driver) = driven();
    for which in 0..3 {
        let (task, source) = (Poller::new(), Source::default());
        let mut stream = all(&source, &scheduler, SECOND).swap_remove(which);
        source.put(1..=6);
        source.end();
        let mut items = 0;
        while let Some(count) = driver.block_on(stream.next()).expect("it goes on") {
            items += count;
            assert!(!stream.is_terminated() || items == 6);
        }
        let polls = source.polls();
        assert_eq!((items, stream.is_terminated(), scheduler.pending()), (6, true, 0));
        for _ in 0..2 {
            assert_eq!(next(&task, &mut stream), Poll::Ready(None));
        }
        assert_eq!((source.polls(), stream.size_hint()), (polls, (0, Some(0))));
    }
}

#[test]
fn s09_to_drop_one_frees_its_timer_and_its_waker() {
    let (scheduler, _driver) = driven();
    for which in 0..3 {
        let (task, source) = (Poller::new(), Source::default());
        let mut stream = all(&source, &scheduler, SECOND).swap_remove(which);
        source.put([1]);
        while next(&task, &mut stream).is_ready() {}
        assert!(scheduler.pending() == 1 && task.wakers() > 0);
        drop(stream);
        source.put([]); // the source has kept a waker too, which is its own affair
        assert_eq!((scheduler.pending(), task.wakers()), (0, 0));
    }
}

#[test]
fn without_a_scheduler_that_keeps_the_time_they_neither_spin_nor_hang() {
    const STEP: Duration = Duration::from_millis(10);
    let (closed, driver) = driven();
    drop(driver);
    let full = Scheduler::builder().max_pending(1).build().expect("good settings");
    let _held = full.schedule_once(SECOND * 3600, || ()).expect("the first");
    for scheduler in [&closed, &full] {
        let (task, source) = (Poller::new(), Source::default());
        let mut polls = 0;
        let mut wait = |stream: &mut dyn Counts| {
            let start = Instant::now();
            loop {
                polls += 1;
                let woken = task.woken();
                if let Poll::Ready(item) = next(&task, stream) {
                    return (item, start.elapsed());
                }
                until("it is woken", || task.woken() > woken);
            }
        };
        let mut streams = all(&source, scheduler, STEP).into_iter();
        let mut adaptor = || streams.next().expect("three");

        let silence = wait(&mut adaptor());
        assert!(silence.0 == Some(0) && silence.1 >= STEP / 2, "{silence:?}");
        source.put(1..=3);
        let mut slowly = adaptor();
        assert_eq!(wait(&mut slowly).0, Some(1));
        let second = wait(&mut slowly);
        assert!(second.0 == Some(1) && second.1 >= STEP / 2, "{second:?}");
        let chunk = wait(&mut adaptor());
        assert!(chunk.0 == Some(1) && chunk.1 >= STEP / 2, "{chunk:?}");
        assert!(polls <= 12, "{polls} polls");
    }
}

#[test]
fn they_go_on_when_the_scheduler_closes_in_the_midst_of_it() {
    let scheduler = Scheduler::new();
    let (start, step) = (Instant::now(), MILLI * 10);
    let slowly = stream::iter(0..4).throttle(&scheduler, step).enumerate().map(|(n, item)| {
        if n == 1 {
            drop(scheduler.close().expect("in time"));
        }
        item
    });
    assert_eq!(block_on(slowly.collect::<Vec<_>>()), [0, 1, 2, 3]);
    assert!(start.elapsed() >= step * 3);
}

#[test]
fn hints_are_those_of_what_is_left() {
    let ((scheduler, _driver), task) = (driven(), Poller::new());
    let four = || stream::iter(0..4);
    let mut watched = four().timeout(&scheduler, SECOND);
    assert_eq!(watched.size_hint(), (4, Some(9)));
    assert!(next(&task, &mut watched).is_ready());
    assert_eq!(watched.size_hint(), (3, Some(7)));
    let mut silent = stream::pending::<()>().timeout(&scheduler, Duration::ZERO);
    assert_eq!(silent.size_hint(), (0, Some(1)));
    assert!(next(&task, &mut silent).is_ready());
    assert_eq!(silent.size_hint(), (0, Some(0)));
    assert_eq!(four().throttle(&scheduler, SECOND).size_hint(), (4, Some(4)));
    assert_eq!(four().chunks_timeout(&scheduler, 3, SECOND).size_hint(), (2, Some(4)));
    let mut half = four().chain(stream::pending()).chunks_timeout(&scheduler, 3, SECOND);
    assert!(next(&task, &mut half).is_ready() && next(&task, &mut half).is_pending());
    assert_eq!(half.size_hint(), (1, Some(1)), "what was gathered is still to come");
    let endless = stream::repeat(1);
    assert_eq!(endless.clone().timeout(&scheduler, SECOND).size_hint(), (usize::MAX, None));
    assert_eq!(
        endless.chunks_timeout(&scheduler, 2, SECOND).size_hint(),
        (usize::MAX / 2 + 1, None)
    );
}

#[test]
fn s27_they_have_names_and_say_what_they_are() {
    type Bare = stream::Pending<PhantomPinned>;
    fn is<T: Stream + Unpin + Send + std::fmt::Debug>(_: &T) {}
    let (scheduler, _driver) = driven();
    let watched: StreamTimeout<Bare> = stream::pending().timeout(&scheduler, SECOND);
    let mut slowly: Throttle<Bare> = stream::pending().throttle(&scheduler, SECOND);
    let chunks: ChunksTimeout<Bare> = stream::pending().chunks_timeout(&scheduler, 3, SECOND);
    is(&watched);
    is(&slowly);
    is(&chunks);
    assert!(format!("{watched:?}").contains("duration: 1s"));
    assert!(format!("{slowly:?}").contains("period: 1s"));
    assert!(format!("{chunks:?}").contains("gathered: 0, max: 3"));
    assert!(watched.get_ref().size_hint() == slowly.get_mut().size_hint());
    assert!(chunks.into_parts().1.is_empty());
}
