//! Sleep and wake: how a thread or a task sleeps until a deadline, how it is woken for an earlier one, and why no wake-up
//! is lost. This page has no code.
//!
//! # One protocol
//!
//! A **sleeper** waits for the earliest of some deadlines. A **producer** adds a deadline, or moves one. It must wake the
//! sleeper if its deadline is earlier than the time until which the sleeper sleeps. It must leave the sleeper alone
//! otherwise (S7), because a wake-up costs some microseconds, and a schedule only about 0.1. And between "nothing to do" and
//! "asleep" no deadline may slip through.
//!
//! ```text
//!              looks, and finds nothing due: says until when
//!    AWAKE ────────────────────────────────────────────────────> ASLEEP(until) ──> sleeps until then, or until its token
//!      ^                                                             │
//!      ├──── the sleeper: its sleep has ended ───────────────────────┤
//!      └──── a producer whose deadline is before `until` ────────────┘
//!            marks it, and only then leaves a token
//! ```
//!
//! - WAKE-2 Whenever the lock is free, the sleeper is awake, or sleeps until the earliest deadline at the latest. The
//!   sleeper looks at the deadlines and says until when it sleeps under one hold of the lock. A producer adds its deadline,
//!   and asks whom it has to wake, under one hold of the same lock. So the one that comes second sees what the first has
//!   done. If the producer has to wake the sleeper, it marks it as awake before it releases the lock, and wakes it
//!   afterwards. So a burst of ever earlier deadlines costs one wake-up. A deadline that goes away makes the earliest one
//!   later, which breaks nothing, and wakes nobody. The sleeper then wakes up once in vain. To wake it for each deadline
//!   that goes away would cost more, because most timeouts are cancelled.
//! - WAKE-3 A wake leaves a token, and a token ends the sleep that comes next. So a wake that comes between the look and the
//!   sleep is not lost. The `Parker` sets the token, and takes it, under the lock that its condition variable releases, so
//!   there is no gap between the look at the token and the wait. A [`Sleeper`](crate::Sleeper) passes this on to clocks: a
//!   clock may hand out the waker first and sleep afterwards. For a task, the runtime keeps the token: a wake during a poll
//!   leads to another poll.
//!
//! No user code runs under the lock: clocks are read before, and wakers called, cloned and dropped before or after (S11).
//!
//! | sleeper | state | lock | sleeps in |
//! | --- | --- | --- | --- |
//! | a message loop | `SleepState` in `wake/mod.rs` | that of the inbox | its pump: see `message_loop/inbox.rs`. The default pump looks for a wake for a moment before it sleeps, if a wake has ended its last sleep |
//! | a thread in [`DelayedWorkQueue::take`](crate::pool::DelayedWorkQueue::take), and so a worker of a pool, the thread of an [`rx::SingleThreadScheduler`](crate::rx::SingleThreadScheduler), and one that drains a trampoline | the same, in a `WaitList` | that of the queue | [`Clock::sleep`](crate::Clock::sleep) |
//! | a taker of a [`DelayQueue`](crate::delay::DelayQueue) | the same, in a `WaitList` | that of the takers, which an insert takes only if a word says so: see `delay/shared.rs` | a task, with an alarm of its scheduler |
//! | the thread that turns an engine | the threshold of a `Doorbell` | none: an order of four accesses | [`Clock::sleep`](crate::Clock::sleep), or a driver's caller |
//!
//! # A leader and its followers
//!
//! If several sleepers wait for the same deadlines, one of them is enough for the earliest. A `WaitList` has them in the
//! order in which they came. The first is the **leader**. It sleeps until the earliest deadline, the **head**. The others are
//! **followers**: each sleeps until it is woken, or until its own time is up.
//!
//! - WAKE-6 If anybody waits, exactly one waiter leads, until it leaves: with an item or without, because its time is up, its
//!   future is dropped, or its clock has panicked. Whoever takes a waiter off the list hands the leader's duty on under the
//!   same hold of the lock: if the waiter that leads from then on would sleep past the head, it is marked as awake, and woken
//!   afterwards (WAKE-2). So each item has a waiter as long as anybody waits, and a waiter that was woken and leaves without
//!   an item has spent no wake-up.
//!
//! | event | woken |
//! | --- | --- |
//! | an offer, or a reset, becomes the head | the leader, if it would sleep past the new head |
//! | the leader leaves | the next leader, if it would sleep past the head |
//! | a follower leaves | nobody |
//! | the head is removed, drained, or taken by a thread that did not wait | nobody |
//! | the queue is closed, or the last item leaves a queue that ends when it is empty: of a trampoline, or of a pool that was shut down | all |
//!
//! # The thread that turns an engine
//!
//! A scheduler's engine is turned by its tick thread, or by the thread that calls a [`Driver`](crate::Driver). From here on
//! both are the sleeper, and every thread that schedules is a producer. A schedule takes no lock, so the sleeper's state is
//! one word, and an order of accesses takes the place of WAKE-2.
//!
//! ## The parts
//!
//! | part | where | what it is |
//! | --- | --- | --- |
//! | threshold | `Doorbell` in `wake/doorbell.rs` | one word. `AWAKE`: nobody rings. Otherwise a moment: a task that is due before it rings. With `NEVER` every task that has a deadline rings |
//! | token | `Parker` in `clock/parking.rs` | a flag under a lock, with a condition variable, or a timer of the system where that is more exact: ends this sleep, or the next one |
//! | `published` | `Lane` in `engine/intake/lane.rs` | how many records a producer has written into its lane |
//! | `listed` | the same | the lane is on the ready list, or the sleeper is about to look at it |
//! | ready list | `Signals` in `engine/intake/lane.rs` | the lanes that have something new |
//! | `is_closing` | `Termination` in `engine/termination.rs` | the scheduler has been stopped |
//!
//! ## The states
//!
//! ```text
//!   sleeper                                            producer
//!
//!   TURNING    takes in, advances, hands over          FILLING    fills a slot, writes a record
//!      |  next deadline is t                              |
//!      v                                                  |  P1  published: swap             SeqCst
//!   TELLING    computes t and the threshold               v
//!      |                                               PUBLISHED
//!      |  T1  threshold: store t          SeqCst          |  P2  listed: load                SeqCst
//!      v                                                  |      if clear: listed = true     Relaxed
//!   ARMED                                                 |  P3            head: exchange    SeqCst
//!      |  T2  is_closing: load            SeqCst          v
//!      |  T3  head: load                  SeqCst       LISTED
//!      |      if set: head: swap          Acquire         |  P4  threshold: load             SeqCst
//!      |  T4    listed: store false       SeqCst          |
//!      |  T5    published: load           SeqCst          +--> AWAKE, or not before it: done
//!      |                                                  v
//!      +--> something cannot wait: disarm, TURNING     RINGING
//!      v                                                  |  P5  threshold: t -> AWAKE       Relaxed
//!   PARKED     until the token, or until t                |      by compare-exchange
//!      |  T6  token: taken                lock            |  P6  token: set                  lock
//!      |  T7  threshold: AWAKE            Relaxed         v
//!      v                                               done
//!   TURNING
//! ```
//!
//! The sleeper runs T3 to T5 in every turn as well, then with the threshold at `AWAKE`. A producer whose lane is listed
//! goes from P2 to P4.
//!
//! ## The races that must not be
//!
//! **The lost ring.** The producer looks at the threshold, finds `AWAKE`, and goes. The sleeper has looked at the ready
//! list before, found nothing, arms, and sleeps. Nobody wakes it, and the task runs when something else is due.
//!
//! - WAKE-1 A producer first publishes its task, and then loads the threshold. A sleeper first stores the threshold,
//!   and then looks for published tasks. All four accesses are `SeqCst`, so they have one order that all threads agree
//!   on. Either the producer's load comes after the sleeper's store, and the producer rings, or the sleeper's look
//!   comes after the producer's publication, and the sleeper sees it.
//!
//! Acquire and Release would not do: each thread writes one word and reads another, and both could read the old value.
//! The producer's write is the exchange P3 on the ready list, or, if its lane was listed, the swap P1.
//!
//! **The herd.** A thousand producers with earlier deadlines find the same threshold and all wake the sleeper.
//!
//! Only the producer that turns the threshold from `t` to `AWAKE` wakes the sleeper. A burst of earlier deadlines costs one
//! wake-up. The exchange is Relaxed, because it only decides which thread wakes the sleeper. If it fails, the sleeper arms
//! the bell after the producer's load, and its next look finds the task (WAKE-1).
//!
//! **The wake before the sleep.** The producer rings between the last look T5 and the sleep. The token ends that sleep
//! (WAKE-3).
//!
//! **The lane that nobody looks at.** The producer finds `listed` set and pushes nothing, while the sleeper has looked
//! at the lane for the last time. From then on every record of this thread goes into a lane that nobody looks at. An
//! earlier intake, whose lanes shared a word of bits, had this fault on weak memory. `scripts/litmus.py` keeps it as
//! `signals-old`.
//!
//! - WAKE-4 A producer first raises `published`, and then looks at `listed`. The sleeper first clears `listed`, and
//!   then looks at `published`. All four are `SeqCst`. So if a producer finds `listed` set, either the lane is still on
//!   the ready list, where T3 finds it, or the sleeper clears `listed` afterwards, and its look T5 finds the record.
//!
//! A lane that is closed refuses its producer by the swap P1 itself (LANE-3 in `engine/intake/lane.rs`), so it needs no
//! wake-up.
//!
//! ## What can wait
//!
//! A sleeper that stayed awake for each task that comes in between its turn and its sleep would never sleep under a flow of
//! timeouts. It takes such tasks in, and sleeps anyway if none of them would have rung.
//!
//! - WAKE-5 After it has armed the bell the sleeper takes in what is there. It sleeps only if all of it is due at or
//!   after the threshold (the test by which a producer decides to ring), and if no record that it has seen is left in a
//!   lane. It does not compute a new threshold, because what it has taken in is due no earlier than the old one.
//!
//! **What is left.** The last look takes in only records that are stamped before its cut. A record that it has seen and not
//! taken may have been published before the arming, so that it did not ring: its stamp does not tell, for example on a
//! clock with coarse steps. So the sleeper stays awake for another turn. Such a record has come in between the reading of the
//! clock and the look, so under a flow there is one in some of the looks, and no flow keeps the thread awake for long.
//!
//! **The threshold** is not the deadline. With [`Precision::Tick`](crate::Precision::Tick) everything that is due
//! within the tick that ends at `t` is served at `t`, so only what is due before that tick rings. A task that is due
//! now rings at any threshold.
//!
//! **Cancelled in the meantime.** A tick thread that was woken for a task which is cancelled by then sleeps towards
//! that task's deadline anyway, until it has passed: once for nothing. Programs that set a timeout and cancel it a microsecond later
//! would otherwise find the thread asleep without a deadline each time, and wake it each time.
//!
//! ## Wake-ups for which nothing is due
//!
//! Memory wakes the sleeper whatever the deadlines are: a producer that fills a block while more than 256
//! full blocks of all lanes (32,768 records) wait, or while slots run short, and the canceller of each 8192nd task of a thread. So
//! few calls cost a look at the threshold. Producers that are held back because they are far ahead ring before each of their
//! looks. If such a wake-up were lost, only a sweep would be late, or a producer would add slots itself, and no task would be late.
//!
//! The sleeper may also set itself a time, if it has a thread: for memory that stayed free, for executors that have
//! refused, and for far entries that have to be brought near.
//!
//! ## Stop
//!
//! A stop first sets `is_closing`, and then rings, whatever the threshold is. A sleeper that has missed the flag at T2 finds the
//! token of this ring. A stop happens once, so it need not spare a wake-up.
//!
//! ## Drivers
//!
//! A driver has no thread that parks. It tells its caller when to come back, and the caller sleeps as it likes: in a
//! poll of sockets, say. [`Driver::wake_with`](crate::Driver::wake_with) names a waker that takes the place of the
//! token, and has to keep WAKE-3 itself: a wake that comes before the sleep must end it.
//!
//! A driver disarms when a turn begins. When the turn is over it arms, and then looks. If something is there, of whatever
//! deadline, it rings the waker itself, and answers with the present. So a loop that trusts the waker and a loop that
//! trusts the answer are both right.
//!
//! # Where a wake-up could be lost
//!
//! If a scheduler hangs, `Scheduler::dump()` (hidden, for people) shows threshold, ready list and lanes. A lane that
//! stays listed while the ready list is empty is one that nobody looks at. A threshold that stays later than the deadline
//! of a pending task is a lost ring. This is the code to look at:
//!
//! | code | what would go wrong |
//! | --- | --- |
//! | `LaneWriter::push` in `engine/intake/lane.rs` | the look at `listed` before the swap, or weaker than `SeqCst`: a lane that nobody looks at |
//! | `Lane::enlist`, the same | a push by another than the writer, or of a lane that is listed: a loop in the list |
//! | `IntakeReader::open_ready` in `engine/intake/reader.rs` | `listed` cleared before `next` is read, or after the look at the lane |
//! | `IntakeReader::has_more`, the same | forgets lanes that are still open, or a look weaker than `SeqCst` |
//! | `Publication` in `engine/admit.rs`, and its callers: `admit` and `admit_leftover` there, `reset_there` in `engine/handles.rs`, `rearm`, `put_off` and `hand_over_again` in `engine/run.rs` | `ring` before `publish`, or not at all: a lost ring. Those that publish while they hold the task ring after that |
//! | `Doorbell::arm` in `wake/doorbell.rs` | weaker than `SeqCst`, or called after the last look |
//! | `Doorbell::answer`, the same | rings although the exchange has failed (a herd), or does not although it has succeeded |
//! | `Sleeper::sleep` in `clock/parking.rs` | takes the token without looking at it first |
//! | `Parker::park_on_condvar` in `clock/parking.rs` | says that it sleeps on the condition variable, under the lock that this releases |
//! | `Parker::park_on_timer`, the same | says that it sleeps on the timer before the timer is set, or after the lock is released |
//! | `sleep` in `engine/tick_thread.rs` | another order than arm, look, sleep |
//! | `Engine::can_wait` in `engine/next_wakeup.rs` | looks at what it has taken in, and not at what it has left |
//! | `Engine::next`, the same | answers with a time later than the earliest live deadline |
//! | `Engine::arm`, the same | does not agree with `served_at`: a task of the same tick rings, or an earlier one does not |
//! | `Driver::turn` in `scheduler/driver.rs` | looks before it arms |
//! | `Shared::stop` in `engine/shared.rs` | rings before `is_closing` is set |
//! | `SleepState::wake_for` in `wake/mod.rs` | returns what wakes a sleeper and does not mark it, or the other way round |
//! | `WaitList::leave` in `wake/wait_list.rs` | hands nothing on |
//! | `DelayedWorkQueue::wait` in `pool/queue.rs` | releases the lock between the look and `set_asleep` |
//! | `look_before_sleep` in `delay/shared.rs` | looks at the shards before it has stored that all deadlines ask at the line |
//! | `Shared::rest` in `message_loop/inbox.rs` | the same as in the queue, or is not the loop's last step |
//! | [`Clock::sleep`](crate::Clock::sleep) of a user's clock | ignores the sleeper, or sleeps without looking at its token |
//!
//! The models `tests/models/takers.rs`, `delays.rs`, `loops.rs`, `sleep.rs`, `lanes.rs` and `whole.rs` try all interleavings
//! of the real code, and `scripts/litmus.py` all executions of the protocols `doorbell`, `ready-list` and `close` on weak
//! memory. `PROOF.md` lists which of them fails without which ordering.
