//! The counterpart of each call of other timers: here, or on the page of the module that has the same shape. This page has
//! no code.
//!
//! | from | where |
//! | --- | --- |
//! | threads that sleep, channels with a timeout | [below](#plain-threads) |
//! | Go | [below](#go) |
//! | Akka, Pekko | [below](#akka-pekko) |
//! | Netty | [below](#netty) |
//! | `java.util.Timer`, `CompletableFuture`, `ExecutorService` | [below](#javautiltimer-completablefuture-executorservice) |
//! | JavaScript, asio, libuv | [below](#javascript-asio-libuv) |
//! | `tokio::time`, tokio-util, tokio-stream | [below](#tokio); how to begin: [`adopting`](crate::adopting) |
//! | `java.util.concurrent` | [`pool`](crate::pool) |
//! | `RxJava`'s schedulers, not its `Observable`s | [`rx`](crate::rx) |
//! | Android, Chromium | [`message_loop`](crate::message_loop) |
//! | Quartz, db-scheduler, Sidekiq, graphile-worker | the crate `tickwheel-durable` |
//! | tokio-util's and Java's `DelayQueue`; expiry of Guava, Caffeine, moka | [`delay`](crate::delay) |
//!
//! # Plain threads
//!
//! | there | here |
//! | --- | --- |
//! | `thread::spawn(\|\| loop { work(); sleep(gap) })` | [`schedule_with_fixed_delay(Duration::ZERO, gap, work)`](crate::Scheduler::schedule_with_fixed_delay): it needs no thread of its own, and its handle ends it |
//! | the same loop, with `next += period` to stay in step | [`schedule_repeatedly(Duration::ZERO, period, work)`](crate::Scheduler::schedule_repeatedly) |
//! | the same loop, with a gap that grows | [`schedule_self_paced`](crate::Scheduler::schedule_self_paced) |
//! | `thread::spawn(move \|\| { sleep(delay); f() })` | [`schedule_once(delay, f)`](crate::Scheduler::schedule_once) |
//! | an `AtomicBool` that ends the loop, after one more sleep | [`cancel`](crate::Cancellable::cancel), at once; from inside, `Break` |
//! | `JoinHandle::join` for the result | [`ScheduledThreadPool::schedule`](crate::pool::ScheduledThreadPool::schedule), [`join`](crate::pool::ScheduledFuture::join) |
//! | `recv_timeout` in a loop that handles messages and timers | a [`LoopThread`](crate::message_loop::LoopThread): [`post`](crate::message_loop::TaskRunner::post), [`post_delayed`](crate::message_loop::TaskRunner::post_delayed) |
//! | `Condvar::wait_timeout` until the first of many deadlines | [`DelayQueue::recv`](crate::delay::DelayQueue::recv) |
//! | `crossbeam_channel::after(d)` | `schedule_once(d, move \|\| _ = sender.send(()))` |
//! | `crossbeam_channel::tick(period)` | [`schedule_periodic`](crate::Scheduler::schedule_periodic) with [`MissedTicks::Skip`](crate::MissedTicks::Skip), and `sender.try_send(Instant::now())` in it |
//!
//! # Go
//!
//! | there | here |
//! | --- | --- |
//! | `time.AfterFunc(d, f)` | [`schedule_once(d, f)`](crate::Scheduler::schedule_once) |
//! | `Timer.Stop()` | [`cancel`](crate::Cancellable::cancel), which returns the same |
//! | `Timer.Reset(d)` | [`reset(d)`](crate::Cancellable::reset); if it returns false, the task has started or was cancelled, and stays so: schedule a new one |
//! | `time.NewTicker(d)`, `C` | [`time::interval(d)`](crate::time::interval()), [`tick`](crate::time::Interval::tick); or [`schedule_periodic`](crate::Scheduler::schedule_periodic) with [`MissedTicks::Skip`](crate::MissedTicks::Skip) |
//! | `Ticker.Stop()`, `Ticker.Reset(d)` | drop it, and make a new one; [`Interval::reset`](crate::time::Interval::reset) keeps the period |
//! | `time.Sleep(d)`, `time.After(d)` in a `select` | [`time::sleep(d)`](crate::time::sleep()) in a task, or in a `select!` |
//! | `context.WithTimeout(ctx, d)` | [`time::timeout(d, future)`](crate::time::timeout()) |
//! | `context.AfterFunc`, `cancel()` of a tree of work | [`CompositeCancellable`](crate::rx::CompositeCancellable), [`Worker::dispose`](crate::rx::Worker::dispose) |
//! | `testing/synctest` | [`Driver::block_on`](crate::Driver::block_on), [`Driver::advance`](crate::Driver::advance) |
//!
//! # Akka, Pekko
//!
//! | there | here |
//! | --- | --- |
//! | `system.scheduler` | a [`Scheduler`](crate::Scheduler); [`Scheduler::global`](crate::Scheduler::global) |
//! | `scheduleOnce(delay)(f)`, `scheduleOnce(delay, runnable)` | [`schedule_once(delay, f)`](crate::Scheduler::schedule_once) |
//! | `scheduleOnce(Duration.Zero)(f)` runs on the `ExecutionContext` at once, its `RejectedExecutionException` reaches the caller, and its handle cancels nothing | `schedule_once(Duration::ZERO, f)` goes through the tick thread, which runs an [`Inline`](crate::Inline) task to its end before. The call returns `Ok` even if the executor then refuses: the task is offered again. The handle cancels the task until it starts. To run something now, hand it to the executor: [`DueTask::new`](crate::DueTask::new), [`Executor::execute`](crate::Executor::execute) |
//! | `scheduleOnce(delay, receiver, message)` | `schedule_once(delay, move \|\| receiver.send(message))`, with the channel of the receiver |
//! | `scheduleAtFixedRate(initial, interval)(f)` | [`schedule_repeatedly(initial, period, f)`](crate::Scheduler::schedule_repeatedly) |
//! | `scheduleWithFixedDelay(initial, delay)(f)` | [`schedule_with_fixed_delay(initial, delay, f)`](crate::Scheduler::schedule_with_fixed_delay) |
//! | `scheduleAtFixedRate(initial, interval, receiver, message)` ends when the receiver has stopped | a series ends only when its closure says so, and stays pending until then: return `Break`, or `None` instead of `Some(period)`, if the channel is closed |
//! | missed runs of a fixed rate are caught up | the same by default; or [`MissedTicks::Skip`](crate::MissedTicks::Skip), [`Delay`](crate::MissedTicks::Delay) |
//! | a task that throws ends its series | the same, and the panic is reported: [`Builder::on_panic`](crate::Builder::on_panic) |
//! | `implicit ExecutionContext` | [`Builder::executor`](crate::Builder::executor); for some tasks [`with_executor`](crate::Scheduler::with_executor) |
//! | `Cancellable.cancel()`, `isCancelled` | [`cancel`](crate::Cancellable::cancel); [`is_cancelled`](crate::Cancellable::is_cancelled) for a cancel, [`is_done`](crate::Cancellable::is_done) for any end |
//! | `Cancellable.alreadyCancelled` | [`Cancellable::already_cancelled`](crate::Cancellable::already_cancelled) |
//! | `akka.pattern.after(delay)(f)` | [`call_after(delay, f)`](crate::Scheduler::call_after); or [`sleep(delay).await`](crate::Scheduler::sleep) |
//! | `FutureTimeoutSupport`, `ask` with a `Timeout` | [`timeout(d, future)`](crate::Scheduler::timeout) |
//! | `timers.startSingleTimer(key, ..)`, `cancel(key)` | a [`DelayQueue`](crate::delay::DelayQueue) with messages as values, or the handles in a map of your own; a [`Worker`](crate::rx::Worker) for an actor runs its timers in order with its messages |
//! | `timers.cancelAll()`, the end of an actor | [`Worker::dispose`](crate::rx::Worker::dispose), or a [`CompositeCancellable`](crate::rx::CompositeCancellable) |
//! | `context.setReceiveTimeout(d)` | a task that is [`reset`](crate::Cancellable::reset) with each message; in async code a [`Sleep`](crate::time::Sleep::reset) |
//! | `scheduler.close()` | [`close`](crate::Scheduler::close) returns what was pending; [`close_and_run`](crate::Scheduler::close_and_run) runs it, as Akka did before 2.6 |
//! | `SchedulerTask.cancelled()` | put the clean-up into the `Drop` of a value that the closure owns; one that is added later goes into its [`Cleanups`](crate::rx::Cleanups) |
//! | `IllegalStateException: cannot enqueue after timer shutdown` | [`ScheduleError::Closed`](crate::ScheduleError::Closed) |
//! | `akka.scheduler.tick-duration`, `ticks-per-wheel`, `shutdown-timeout` | [`Builder::tick`](crate::Builder::tick), [`wheel_size`](crate::Builder::wheel_size), [`shutdown_timeout`](crate::Builder::shutdown_timeout) |
//! | `maxFrequency`; `delay` of more than 2^31 ticks is an error | any period above zero; any delay |
//! | `ExplicitlyTriggeredScheduler.timePasses(d)` | [`build_driven`](crate::Builder::build_driven), [`Driver::advance`](crate::Driver::advance) |
//! | may run up to a tick early under load; wakes up a hundred times a second | never early; sleeps until a task is due |
//!
//! # Netty
//!
//! | there | here |
//! | --- | --- |
//! | `new HashedWheelTimer(threadFactory, tickDuration, unit, ticksPerWheel, ..)` | [`Scheduler::builder()`](crate::Scheduler::builder)`.thread_name(..).tick(..).wheel_size(..).build()?` |
//! | `leakDetection`, one instance for a process | [`Scheduler::global`](crate::Scheduler::global); a scheduler that is dropped ends its thread |
//! | `maxPendingTimeouts`, `RejectedExecutionException` | [`max_pending`](crate::Builder::max_pending), [`ScheduleError::Full`](crate::ScheduleError::Full) |
//! | `taskExecutor`; by default the timer's own thread | [`Builder::executor`](crate::Builder::executor); [`Inline`](crate::Inline) is the timer's own thread |
//! | `start()` | not needed: the thread sleeps until a task is due |
//! | `newTimeout(task, delay, unit)` | [`schedule_once(delay, task)`](crate::Scheduler::schedule_once) |
//! | `Timeout.cancel()` | [`cancel`](crate::Cancellable::cancel); the closure is dropped when it returns, not a tick later |
//! | `Timeout.isExpired()`, `isCancelled()` | [`is_done`](crate::Cancellable::is_done), [`is_cancelled`](crate::Cancellable::is_cancelled) |
//! | `Timeout.task()`, `timer()` | not there: store the task's data next to the handle |
//! | `TimerTask.cancelled(timeout)` | put the clean-up into the `Drop` of a value that the closure owns; one that is added later goes into its [`Cleanups`](crate::rx::Cleanups) |
//! | a `TimerTask` that schedules itself again | [`schedule_with_fixed_delay`](crate::Scheduler::schedule_with_fixed_delay): no drift, and nothing allocated; if each delay differs, [`schedule_self_paced`](crate::Scheduler::schedule_self_paced) |
//! | `pendingTimeouts()` | [`pending`](crate::Scheduler::pending), [`stats`](crate::Scheduler::stats) |
//! | `stop()`, a set of what was not processed | [`close`](crate::Scheduler::close): [`Leftovers`](crate::Leftovers), in order of deadlines |
//! | `EventExecutor.schedule(..)`, `ScheduledFuture` | [`pool::ScheduledThreadPool`](crate::pool::ScheduledThreadPool), [`call_after`](crate::Scheduler::call_after) |
//! | `IdleStateHandler`, `ReadTimeoutHandler` | a task that is [`reset`](crate::Cancellable::reset) with each message; in async code a [`Sleep`](crate::time::Sleep::reset) |
//! | wakes up at every tick | sleeps until a task is due |
//!
//! # `java.util.Timer`, `CompletableFuture`, `ExecutorService`
//!
//! | there | here |
//! | --- | --- |
//! | `timer.schedule(task, delay)` | [`schedule_once(delay, task)`](crate::Scheduler::schedule_once) |
//! | `timer.schedule(task, delay, period)` | [`schedule_periodic`](crate::Scheduler::schedule_periodic) with [`MissedTicks::Delay`](crate::MissedTicks::Delay) |
//! | `timer.scheduleAtFixedRate(task, delay, period)` | [`schedule_repeatedly`](crate::Scheduler::schedule_repeatedly) |
//! | `TimerTask.cancel()`, `timer.purge()` | [`cancel`](crate::Cancellable::cancel), which leaves nothing to purge |
//! | `timer.cancel()` | [`close`](crate::Scheduler::close) |
//! | a task that throws ends the timer | it ends its own series |
//! | `future.orTimeout(d)`, `completeOnTimeout(value, d)` | [`time::timeout(d, future)`](crate::time::timeout()), and `.unwrap_or(value)` of what it gives |
//! | `ExecutorService`: `shutdown()`, `awaitTermination` | [`ThreadPool::shutdown`](crate::ThreadPool::shutdown), [`await_termination`](crate::ThreadPool::await_termination) |
//! | `CompletableFuture.delayedExecutor(d)` | [`call_after(d, f)`](crate::Scheduler::call_after) |
//!
//! # JavaScript, asio, libuv
//!
//! | there | here |
//! | --- | --- |
//! | `setTimeout(f, d)`, `clearTimeout` | [`schedule_once(d, f)`](crate::Scheduler::schedule_once), [`cancel`](crate::Cancellable::cancel) |
//! | `setInterval(f, d)`, `clearInterval` | [`schedule_periodic`](crate::Scheduler::schedule_periodic) with [`MissedTicks::Skip`](crate::MissedTicks::Skip) |
//! | one thread that runs all of them | a [`MessageLoop`](crate::message_loop::MessageLoop), or [`Inline`](crate::Inline) |
//! | `steady_timer::async_wait(handler)` | [`schedule_once`](crate::Scheduler::schedule_once); in async code a [`Sleep`](crate::time::Sleep) |
//! | `expires_after(d)`, `uv_timer_again` | [`reset(d)`](crate::Cancellable::reset); [`Sleep::reset`](crate::time::Sleep::reset) |
//! | `timer.cancel()`, and the handler gets `operation_aborted` | [`cancel`](crate::Cancellable::cancel): the closure is dropped, and not called |
//! | `io_context::run`, `uv_run` | [`Driver::turn`](crate::Driver::turn) in an event loop of your own |
//!
//! # tokio
//!
//! | there | here |
//! | --- | --- |
//! | `use tokio::time` | `use tickwheel::time`: the same names, signatures and behaviour; [what differs](crate::time#where-it-differs-from-tokio) |
//! | `sleep`, `sleep_until`, `Sleep::{deadline, is_elapsed, reset}` | [the same](crate::time::Sleep); [`Scheduler::sleep`](crate::Scheduler::sleep) on a scheduler of one's own |
//! | `timeout`, `timeout_at`, `error::Elapsed` | [the same](crate::time::Timeout) |
//! | `interval`, `interval_at`, `MissedTickBehavior` | [the same](crate::time::Interval) |
//! | `pause`, `resume`, `advance` | [the same](crate::time::pause()), for the calling thread |
//! | `#[tokio::test(start_paused = true)]` | [`Driver::block_on`](crate::Driver::block_on), or a runtime with [`advance_when_idle`](crate::time::advance_when_idle) |
//! | `tokio::time::Instant` | [`time::Instant`](crate::time::Instant), or std's |
//! | `tokio_stream::wrappers::IntervalStream` | [`Interval`](crate::time::Interval) itself, with the feature `futures-core` |
//! | `tokio_stream::StreamExt::{timeout, throttle, chunks_timeout}` | the methods of `future::StreamTimeExt`, the same names, with a scheduler as the first argument: [`Scheduler::in_force`](crate::Scheduler::in_force) |
//! | `tokio_util::time::DelayQueue` | [`delay::DelayQueue`](crate::delay::DelayQueue) |
//! | `spawn(async { sleep(d).await; f() })` | [`call_after(d, f)`](crate::Scheduler::call_after), or [`schedule_once`](crate::Scheduler::schedule_once) if nobody waits for the result |
//! | `Runtime::block_on`, without a runtime | [`future::block_on`](crate::future::block_on) |
//!
//! # Debounce, throttle and streams elsewhere
//!
//! | there | here |
//! | --- | --- |
//! | lodash `_.debounce(f, wait, { maxWait })` | [`rx::debounce(schedule, wait, f)`](crate::rx::debounce())`.max_wait(longest)` |
//! | lodash `_.throttle(f, wait)` | [`rx::throttle(schedule, wait, f)`](crate::rx::throttle()) |
//! | lodash `_.throttle(f, wait, { leading: false })` | `rx::debounce(schedule, wait, f).max_wait(wait)` |
//! | lodash `.flush()`, `.cancel()`, `.pending()` | `flush`, `cancel`, `is_pending` |
//! | lodash `leading: true` of `debounce`, `trailing: false` of `throttle`; `RxJava` `throttleFirst` | not there: they drop the last value |
//! | `futures_timer::Delay`, `async_io::Timer` | [`time::Sleep`](crate::time::Sleep) |
//! | Akka Streams' `idleTimeout`, `throttle`, `groupedWithin(n, d)` | `timeout`, `throttle`, `chunks_timeout` of `future::StreamTimeExt` |
