//! How it works, in words: the life of a task, sleep and wake, memory, shutdown, and why it is
//! built like this. No code lives here.
//!
//! # The life of a task
//!
//! 1. **Admitted** (`hub.rs`). `schedule_once` reads the clock, adds the delay, and has its deadline
//!    before anything else can take time: that is why nothing is ever early (S1), however long the
//!    way to the wheel is. Akka's scheduler reads the clock when the tick thread drains, one reading
//!    for the whole drain, and fires early under load.
//! 2. **Held** (`task/`). The closure goes into a holder: a cache line from the calling thread's own
//!    magazine of free slots, without an atomic. Up to 32 bytes lie inline. Filling ends with one
//!    store to the holder's word: *pending, generation g*.
//! 3. **Announced** (`intake/`). A record of deadline, stamp and name goes into the calling thread's
//!    lane, published by one swap: the only read-modify-write of a schedule. If the tick thread
//!    sleeps towards something later, it is woken (`parking.rs`).
//! 4. **Filed** (`engine.rs`, `wheel/`). A turn gathers the lanes, in order of the stamps, and puts
//!    sixteen-byte entries into the wheel. The holder is not touched: it would be a cache miss.
//! 5. **Given out.** When the task's tick has passed, its bucket goes to the front (`front.rs`),
//!    sorted by deadline. With `Precision::Exact` the bucket goes there a tick ahead, and each entry
//!    waits for its own deadline.
//! 6. **Handed over** (`executor/`). In batches of up to 256 names, to the executor. It is still
//!    pending, and can still be cancelled.
//! 7. **Claimed and run** (`hub.rs`). Whoever runs it moves the word from pending to running by a
//!    compare-exchange. A one-shot is moved out of its holder and called; a series is called in place
//!    and goes back to step 3 under the same name.
//! 8. **Over.** The word becomes *free, generation g + 1*, and the slot goes into the magazine of the
//!    thread that ran it.
//!
//! A cancel may come between 2 and 7. It is one compare-exchange, from *pending g* to *free g + 1*;
//! the winner owns the closure and drops it, and the slot goes into the canceller's magazine. The
//! entry stays in the wheel, names a generation that is over, and is dropped by whoever meets it. When
//! such entries outnumber the live ones two to one they are swept, some thousands per turn.
//!
//! # What a handle can and cannot know
//!
//! A handle is a slot number and a generation: no count, no pointer that must be kept alive. It can
//! always tell whether its task is over, because the generation has moved on. It cannot tell from the
//! slot *how* it ended once the slot was used five times more, so a cancel that wins is noted in the
//! handle, and the clones of a handle share that note. The one thing that is forgotten: a leftover
//! that was cancelled by [`PendingTask::cancel`](crate::PendingTask::cancel), of which an old handle,
//! when the slot has been used again more than four times, says only that it is done.
//!
//! # Sleep and wake
//!
//! The tick thread has no period. After each turn it asks the wheel for the earliest live deadline,
//! writes that as a threshold into the doorbell, looks once more for news, and sleeps. A producer
//! publishes, then reads the threshold, and wakes only when its own deadline is earlier. All four
//! steps are sequentially consistent, so one of the two always sees the other.
//!
//! Two things wake the thread although nothing is due. A producer that has scheduled 8192 tasks since,
//! all of them later than the threshold, wakes it so that its lane stays bounded; and so does a
//! canceller with its 8192nd cancel, so that stale entries do. Both are bounds on memory, at a
//! ten-thousandth of a wake-up per task.
//!
//! # Order
//!
//! Equal deadlines run in the order of scheduling (S3), also across threads, if one schedule had
//! returned before the other began. A queue that all producers share would give that for free, and
//! cost them a fight over its tail; lanes avoid the fight and need a tie-breaker. The clock has been
//! read anyway, so that is the stamp. On a clock that stands still (a `ManualClock`) a shared counter
//! takes its place.
//!
//! Prototypes of three queues were measured in one run: what a push costs its thread with its clock
//! reading, CPU ns, medians of five, and what taking a record out costs the reader.
//!
//! | queue | 1 producer | 2 producers | reader |
//! | --- | --- | --- | --- |
//! | the clock alone | 34 | 37 | |
//! | `SegQueue`, entries by value | 48 | 77 | 25 |
//! | one ring, places given out by a shared count | 39 | 64 | 12 |
//! | a lane per thread | 42 | 43 | 11 |
//!
//! The ring is as cheap for one producer, but its producers share the count, and wait when it is full.
//!
//! # Memory
//!
//! **Holders** are shared by all schedulers of the process. They live in chunks of 1024 (64 KiB), and
//! a thread has up to two magazines of 128 free slots of its own; the rest is in a depot. In the
//! steady state a schedule takes a slot from a magazine and the end of a task gives one back, whole
//! magazines travel from the threads that run to the threads that schedule, and nothing is
//! allocated. After a peak, when more slots are free than in use and have been for a second, the tick
//! thread of any scheduler, when it has nothing else to do, sorts free slots by chunk, a bounded share
//! per turn, and frees chunks that are wholly free. That is safe although handles carry no count:
//! whoever looks into a chunk that it owns no slot of first names the chunk in its thread's guard
//! (`task/memory.rs`, M3). A chunk with one task in it stays, and so does what threads keep in their
//! magazines: up to 256 slots a thread.
//!
//! **Entries** are sixteen bytes in the wheel's blocks of 32; the blocks are used again, and freed when
//! more than a thousand are free beyond those in use. **Lanes** keep up to 64 blocks of 128 records
//! each, as many as their thread has needed. At a close, wheel, lanes and front go with the tick thread;
//! the holders go back to the depot, for other schedulers, or to the allocator as above.
//!
//! # Shutdown
//!
//! A stop raises a flag and rings. The tick thread closes every lane by setting a bit in the very word
//! that producers publish with, so each schedule that races with the close learns from its own swap on
//! which side it fell: taken, or refused (S20). Then it collects what is pending, marks each task as
//! returned, and fulfils the oneshot. A series whose run is in progress on another thread at that moment
//! ends with that run.
//!
//! # What was measured
//!
//! See `benches/core.rs`, which prints each figure beside the floor `F`: the cost of a `malloc` and
//! `free` of 48 bytes and of an uncontended swap.
