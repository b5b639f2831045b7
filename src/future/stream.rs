//! Time as methods of every stream, with the feature `futures-core`: [`StreamTimeExt`].
//!
//! - Each adaptor polls its stream, or its sleep, before it returns `Pending`, so one of them has the waker.
//! - An item leaves the stream only to be returned, or to stay in the chunk. So a `next()` that is dropped
//!   loses no item.
//! - After the end the stream is not polled any more, and no timer is left.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::stream::{FusedStream, Stream};

use crate::Scheduler;
use crate::platform::impls::impl_debug;
use crate::time::Sleep;
use crate::time::error::Elapsed;

/// Time as methods of every stream: limits for its silence, for its rate, and for what is gathered from it.
///
/// The adaptors are streams if the stream is [`Unpin`]. Pin another one first: `Box::pin(stream)`, or
/// [`pin!`](std::pin::pin). An adaptor holds one timer at most, and none after the end of the stream. After the end it
/// returns `None` again, and is a `FusedStream` that is terminated.
///
/// Each keeps its time by a [`Sleep`], so it goes on if the scheduler is closed or full.
///
/// ```
/// use futures_util::{StreamExt, stream};
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::future::StreamTimeExt;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let (start, second) = (scheduler.now(), Duration::from_secs(1));
/// let slowly = stream::iter(0..10).throttle(&scheduler, second);
/// assert_eq!(driver.block_on(slowly.count())?, 10);
/// assert_eq!(scheduler.now() - start, 10 * second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait StreamTimeExt: Stream + Sized {
    /// Reports each silence of the stream: returns an error when nothing has come for `duration`, and then goes on.
    ///
    /// The time counts from this call, and then from each item that was returned. There is one error for each silence,
    /// however long it is: after an error, the next one can only come after an item. An item that is there in the same
    /// poll comes first, so a consumer that is late gets no error for that.
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::future::StreamTimeExt;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let beats = scheduler.interval(Duration::from_secs(60)).take(2);
    /// let mut watched = beats.timeout(&scheduler, Duration::from_secs(45));
    /// driver.block_on(async {
    ///     assert!(watched.next().await.unwrap().is_ok()); // the first beat comes at once
    ///     assert!(watched.next().await.unwrap().is_err()); // 45 s later
    ///     assert!(watched.next().await.unwrap().is_ok()); // at 60 s
    ///     assert!(watched.next().await.is_none());
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn timeout(self, scheduler: &Scheduler, duration: Duration) -> StreamTimeout<Self> {
        StreamTimeout { timed: Timed::new(self, scheduler, duration) }
    }

    /// Returns at most one item in each `period`. The first one comes without a delay.
    ///
    /// No item is lost: the stream is not polled until the period has passed since the item before. So the end of the
    /// stream is also seen only then.
    ///
    /// ```
    /// use futures_util::{StreamExt, stream};
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::future::StreamTimeExt;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let (start, second) = (scheduler.now(), Duration::from_secs(1));
    /// let times = stream::repeat(()).throttle(&scheduler, second).map(|()| scheduler.now() - start);
    /// let times: Vec<_> = driver.block_on(times.take(3).collect())?;
    /// assert_eq!(times, [0 * second, second, 2 * second]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn throttle(self, scheduler: &Scheduler, period: Duration) -> Throttle<Self> {
        let mut timed = Timed::new(self, scheduler, period);
        timed.sleep.end(); // the first item comes without a delay
        Throttle { timed }
    }

    /// Gathers items, and returns them as a `Vec` of at most `max`: as soon as there are `max` of them, or when
    /// `duration` has passed since the first of them came. The end of the stream returns the rest.
    ///
    /// No chunk is empty. If the adaptor is dropped, the items that it has gathered are dropped with it:
    /// [`into_parts`](ChunksTimeout::into_parts) returns them.
    ///
    /// ```
    /// use futures_util::{StreamExt, stream};
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::future::StreamTimeExt;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let lines = stream::iter(["a", "b", "c"]).chain(stream::pending());
    /// let mut chunks = lines.chunks_timeout(&scheduler, 2, Duration::from_secs(1));
    /// driver.block_on(async {
    ///     assert_eq!(chunks.next().await, Some(vec!["a", "b"]));
    ///     assert_eq!(chunks.next().await, Some(vec!["c"])); // a second later
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `max` is zero.
    fn chunks_timeout(
        self,
        scheduler: &Scheduler,
        max: usize,
        duration: Duration,
    ) -> ChunksTimeout<Self> {
        assert!(max > 0, "`max` is zero: give the most items of a chunk, at least 1");
        ChunksTimeout { timed: Timed::new(self, scheduler, duration), max, chunk: Vec::new() }
    }
}

impl<S: Stream> StreamTimeExt for S {}

/// What each adaptor has: a stream until its end, and a time that counts from now and then.
struct Timed<S> {
    stream: S,
    sleep: Sleep,
    duration: Duration,
    is_over: bool,
}

impl<S: Stream> Timed<S> {
    fn new(stream: S, scheduler: &Scheduler, duration: Duration) -> Timed<S> {
        Timed { stream, sleep: scheduler.sleep(duration), duration, is_over: false }
    }

    /// Returns the hint of the stream, or that of one that has ended.
    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_over { (0, Some(0)) } else { self.stream.size_hint() }
    }

    /// Polls the stream, until its end. If `restarts`, the time counts anew from an item on. After the end no timer is left.
    fn poll(&mut self, context: &mut Context<'_>, restarts: bool) -> Poll<Option<S::Item>>
    where
        S: Unpin,
    {
        if self.is_over {
            return Poll::Ready(None);
        }
        let item = ready!(Pin::new(&mut self.stream).poll_next(context));
        if item.is_none() {
            self.is_over = true;
            self.sleep.end();
        } else if restarts {
            self.sleep.move_by(self.duration);
        }
        Poll::Ready(item)
    }
}

/// Writes what all adaptors have.
macro_rules! adaptor {
    ($type:ident) => {
        impl<S: Stream> $type<S> {
            /// Returns a reference to the stream.
            pub fn get_ref(&self) -> &S {
                &self.timed.stream
            }

            /// Returns a mutable reference to the stream.
            pub fn get_mut(&mut self) -> &mut S {
                &mut self.timed.stream
            }
        }

        impl<S: Stream + Unpin> FusedStream for $type<S> {
            fn is_terminated(&self) -> bool {
                self.timed.is_over
            }
        }
    };
}

// ----- timeout -----------------------------------------------------------------------------

/// A stream that reports its silences. Made by [`StreamTimeExt::timeout`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct StreamTimeout<S> {
    /// With the time until the end of the silence that is allowed. It is over once the error of this silence has been
    /// returned, or the stream has ended.
    timed: Timed<S>,
}

impl<S> StreamTimeout<S> {
    /// Returns the stream, without its limit.
    pub fn into_inner(self) -> S {
        self.timed.stream
    }
}

impl<S: Stream + Unpin> Stream for StreamTimeout<S> {
    type Item = Result<S::Item, Elapsed>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Poll::Ready(item) = this.timed.poll(context, true) {
            return Poll::Ready(item.map(Ok));
        }
        if this.timed.sleep.is_over() {
            return Poll::Pending; // the error has been returned, and the stream has the waker
        }
        ready!(Pin::new(&mut this.timed.sleep).poll(context));
        Poll::Ready(Some(Err(Elapsed::NEW)))
    }

    /// Before each item, and before the end, there may be an error.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.timed.size_hint();
        let errors = |items: usize| items.checked_add(usize::from(!self.timed.sleep.is_over()));
        (least, most.and_then(|most| most.checked_add(errors(most)?)))
    }
}

adaptor!(StreamTimeout);

impl_debug!(StreamTimeout<S>, self,
    duration: self.timed.duration,
    is_reported: self.timed.sleep.is_over(),
    is_over: self.timed.is_over
);

// ----- throttle ----------------------------------------------------------------------------

/// A stream of a limited rate. Made by [`StreamTimeExt::throttle`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct Throttle<S> {
    /// With the time until the next item may come.
    timed: Timed<S>,
}

impl<S> Throttle<S> {
    /// Returns the stream, without its limit. No item is lost by this.
    pub fn into_inner(self) -> S {
        self.timed.stream
    }
}

impl<S: Stream + Unpin> Stream for Throttle<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.timed.sleep).poll(context));
        this.timed.poll(context, true)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.timed.size_hint()
    }
}

adaptor!(Throttle);

impl_debug!(Throttle<S>, self,
    period: self.timed.duration,
    is_held: !self.timed.sleep.is_over(),
    is_over: self.timed.is_over
);

// ----- chunks ------------------------------------------------------------------------------

/// How many items one poll gathers at most. Then it looks at the time, and leaves other tasks their turn.
const MOST_AT_ONCE: usize = 256;

/// A stream of chunks. Made by [`StreamTimeExt::chunks_timeout`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct ChunksTimeout<S: Stream> {
    /// With the time until the chunk has to be returned. It counts while the chunk is not empty.
    timed: Timed<S>,
    max: usize,
    /// Fewer than `max`.
    chunk: Vec<S::Item>,
}

/// Items are never pinned.
impl<S: Stream + Unpin> Unpin for ChunksTimeout<S> {}

impl<S: Stream> ChunksTimeout<S> {
    /// Returns the stream, and the items that were gathered for the next chunk.
    pub fn into_parts(self) -> (S, Vec<S::Item>) {
        (self.timed.stream, self.chunk)
    }

    /// Returns the chunk, if there is one, and gives up its timer.
    fn take(&mut self) -> Poll<Option<Vec<S::Item>>> {
        self.timed.sleep.end();
        let chunk = mem::take(&mut self.chunk);
        Poll::Ready((!chunk.is_empty()).then_some(chunk))
    }
}

impl<S: Stream + Unpin> Stream for ChunksTimeout<S> {
    type Item = Vec<S::Item>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let mut has_more = true;
        for _ in 0..MOST_AT_ONCE {
            let Poll::Ready(item) = this.timed.poll(context, this.chunk.is_empty()) else {
                has_more = false;
                break;
            };
            this.chunk.extend(item); // it stays if this `next()` is dropped
            if this.timed.is_over || this.chunk.len() >= this.max {
                return this.take();
            }
        }
        if !this.chunk.is_empty() && Pin::new(&mut this.timed.sleep).poll(context).is_ready() {
            return this.take();
        }
        if has_more {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.timed.size_hint();
        let least = least.saturating_add(self.chunk.len()).div_ceil(self.max);
        // Each item to come may end a chunk of its own, and the end returns what is left of this one.
        (least, most.and_then(|most| most.checked_add(usize::from(!self.chunk.is_empty()))))
    }
}

adaptor!(ChunksTimeout);

impl_debug!(ChunksTimeout<S: Stream>, self,
    gathered: self.chunk.len(),
    max: self.max,
    duration: self.timed.duration,
    is_over: self.timed.is_over
);
