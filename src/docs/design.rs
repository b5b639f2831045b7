//! How the crate works inside, and why it is built like this: the life of a task, order, memory, shutdown, the layers,
//! and what was tried. This page has no code.
//!
//! # The life of a task
//!
//! 1. **Admitted** (`engine`). `schedule_once` reads the clock and adds the delay. So the deadline is fixed before
//!    anything else can take time, and nothing is ever early (S1), however long the way to the wheel is. Akka's
//!    scheduler reads the clock when the tick thread drains its queue, once for the whole drain, and fires early under
//!    load.
//! 2. **Held** (`engine/slots`). The closure goes into a holder of 64 bytes, a cache line, whose slot comes from the
//!    calling thread's own magazine of free slots, without an atomic. Up to 32 bytes of closure lie inline. Then one
//!    store to the holder's word says: *pending, filing n*.
//! 3. **Announced** (`engine/intake`). A record of deadline, stamp and name goes into the calling thread's lane. One
//!    swap publishes it, the only read-modify-write of a schedule. If the tick thread sleeps towards something later,
//!    the caller wakes it (`wake/doorbell.rs`).
//! 4. **Filed** (`engine`, `wheel`). A turn merges the lanes in order of the stamps and puts entries of sixteen bytes
//!    into the wheel. It does not touch the holder, which would be a cache miss.
//! 5. **Given out.** When the task's tick has passed, its bucket goes to the ready queue (`engine/ready.rs`) and is
//!    sorted by deadline. With `Precision::Exact` the bucket goes there a tick ahead, and each entry waits for its own
//!    deadline.
//! 6. **Handed over** (`executor`). The executor gets the task, in batches of up to 256 names. The task is still
//!    pending and can still be cancelled.
//! 7. **Claimed and run** (`engine/run.rs`). The thread that runs the task first moves the word from pending to
//!    running, by a compare-exchange. A one-shot is moved out of its holder and called. A series is called in place and
//!    goes back to step 3, with the next filing number.
//! 8. **Over.** The word becomes *free, n + 1*, and the slot goes into the magazine of the thread that ran
//!    it.
//!
//! A cancel may come between 2 and 7. It is one compare-exchange, from *pending n* to *free n + 1*. The winner owns the
//! closure and drops it, and the slot goes into the canceller's magazine. The entry stays in the wheel. Its number is
//! not the word's any more, so it is dropped when it is found. When such stale entries outnumber the live ones, a sweep
//! removes them, some thousands per turn.
//!
//! # What a handle can and cannot know
//!
//! A handle is a slot number and the number of the task's first filing: it has no count, and no pointer that must be
//! kept alive. It can always tell whether its task is over: the holder is free, or another task was born there. It
//! cannot tell from the slot *how* the task ended once the slot was used again, or its page went back to the system. So a cancel that wins is noted in the handle, and the clones of a handle share that note. One thing is
//! forgotten: if a leftover was cancelled by [`PendingTask::cancel`](crate::PendingTask::cancel), an old handle later
//! says only that the task is done.
//!
//! # Sleep and wake
//!
//! The tick thread has no period. After each turn it asks the wheel for the earliest live deadline, writes that as a
//! threshold into the doorbell, takes in once more what is there, and sleeps. A producer publishes, then reads the
//! threshold, and wakes the thread only if its own deadline is earlier. All four steps are sequentially consistent, so
//! one of the two always sees the other. The page `waking` has the protocol, its races, and the wake-ups for which
//! nothing is due.
//!
//! If the last look finds only tasks that can wait, the thread sleeps anyway. So a flow of tasks that are due later is
//! taken in at the next wake-up, thousands at once. When the thread stayed up for them, turn after turn with two or
//! three tasks each, it spent 80 ns a task instead of 35.
//!
//! If the earliest entry is stale, and its chain is longer than 256 entries, the thread does not search the chain. It
//! sleeps until the deadline of the stale entry, and wakes up for nothing. That happens at most once per half-turn of
//! the wheel, which is two seconds by default, and once per half an hour for what is due later than in an hour.
//!
//! # Order
//!
//! Equal deadlines run in the order of scheduling (S3), also across threads, if one schedule had returned before the
//! other began. A queue that all producers share would give that for free, and they would fight over its tail. Lanes
//! avoid the fight and need a tie-breaker. The clock has been read anyway, so its reading is the stamp. On a clock that
//! stands still (a `ManualClock`) a shared counter takes its place.
//!
//! Prototypes of three queues were measured in one run: what a push costs its thread with its clock reading, CPU ns,
//! medians of five, and what it costs the reader to take a record out.
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
//! **Holders** are shared by all schedulers of the process. They lie in blocks of two megabytes that are never
//! unmapped, so a stale handle can always look: it finds another birth, or zero. That needs no count and no guard.
//! A thread has up to two magazines of 128 free slots of its own. The rest is in a depot, a bitmap from which the
//! lowest are taken first. In the steady state a schedule takes a slot from a magazine, and the end of a task gives one
//! back. Whole magazines go between threads and depot, and nothing is allocated.
//!
//! **After a peak**, when more slots are free than in use for a second, the tick thread of any scheduler that has
//! nothing else to do gives the pages of free holders back to the system, at most 64 of them per turn. The addresses
//! stay. A page (64 holders) with one task in it stays too, and so do the slots in magazines, up to 256 per thread. On
//! systems without such a call the pages stay with the process.
//!
//! **Ahead of a peak**, when few slots are left, the tick thread touches the pages of the next block, because each costs a
//! microsecond when it is touched first. A caller that comes before it touches one page at a time, and
//! writes to each before it reads there. A page that is read first costs two faults, the second of which interrupts all
//! processors (p99.9 of a schedule in a fresh process: 16 us before that, and 4 since).
//!
//! **Entries** are sixteen bytes in the wheel's blocks of 31. Blocks are used again. A second after a peak, those that
//! are free beyond as many as are in use go back to the allocator. **Lanes** keep up to 192 blocks of 128 records each,
//! as many as their thread has needed. At a close, the wheel, the lanes and the ready queue go with the tick thread;
//! the holders go back to the depot for other schedulers, or to the system as above.
//!
//! Together: ten million pending timeouts took 1007 MB, 234 of them the handles. 1.4 seconds after their cancel the
//! process held 168 MB: glibc keeps the wheel's blocks in the arena of the tick thread, for the next thread. Of the
//! heap 13 MB were still in use, most of it the table of the wheel's blocks, and 2.4 after the close. 100,000
//! schedulers made and closed left nothing. `scripts/storms memory` prints these figures.
//!
//! # Shutdown
//!
//! A stop raises a flag and rings. The tick thread closes every lane by setting a bit in the very word that producers
//! publish with, so each schedule that races with the close learns from its own swap on which side it fell: taken, or
//! refused (S20). Then the thread collects what is pending, marks each task as returned, and wakes the threads that
//! wait for the end.
//!
//! **What was handed over.** An executor need not say what it has, and the engine does not remember it. A task stays in its
//! holder until it runs, and the holder says whose it is. So the last turn looks at the holders of all tasks of the
//! process, after it has closed the lanes and emptied its own lists. What is pending there is in the hands of an executor
//! (S29). It claims each by its word, so a task that starts at that moment runs, and all others are leftovers. It may also
//! find a task that a producer has just put there, and whose lane is closed. That is a leftover too, and the schedule is
//! accepted. The look costs three to four nanoseconds for each task of the process, whatever scheduler it belongs to: 0.27 ms
//! beside 100,000 tasks, 4.3 ms beside a million. Before, a list remembered the tasks that executors had taken, sixteen bytes
//! each, and each turn looked at some to forget those that were over: a hand-over took 77 to 99 instructions instead of 37.
//! How far an executor is behind is a count of what it was handed, and one of what it has done.
//!
//! **Series in their runs.** Each run of a series is a filing with a number of its own. So the close can tell a series that
//! has not started since it was handed over from one that has run and is about to be scheduled again. The first is
//! claimed back. The other is in a run, or between its run and the lane that will refuse the next one. It stays on a list
//! until its runner comes, makes it a leftover with the deadline of the next run, and wakes the threads that wait for it.
//!
//! **Leftovers that move** stay in their holders. The word goes from returned to pending, with the number of an
//! executor at the other scheduler. The holder names the scheduler that the task belongs to, beside its birth, so a cancel
//! is counted there. An entry that an executor of the old scheduler still
//! has is stale, because the move is a filing. While the task moves, or has its name read, it is held, and every other
//! thread that wants it spins.
//!
//! **Closes that meet.** A close waits for the runs of series, and a run may call a close: of its own scheduler, or of
//! another whose runs call a close of the first. So a close that is called inside a run does not wait for that run, nor
//! for runs that wait for an end themselves. Those are in one list of the process.
//!
//! # Deadlines that move
//!
//! Most deadlines that move are pushed further, with each packet. So that is a matter of the holder alone: the thread
//! holds the task by an exchange of its word, stores the new deadline, and puts the task back by a store. The entry in
//! the wheel stays. When it comes out, the tick thread sees the later deadline, and files it there. However often a task
//! is moved, that happens once per period of its shortest delay. An earlier deadline needs a new entry, with a new number;
//! then the old one is stale. The time under which an entry is filed that is not the task's deadline lies beside the
//! holder, in the annex of its block, 24 bytes of memory that few tasks ever touch: 64 bytes have no room for two
//! deadlines. The states and the races are in `engine/slots/deadline.rs`.
//!
//! A claim holds the task for the look at its deadline, so an executor that has it in its queue does not run it at its
//! old time, and files it again.
//!
//! If a task is in the cache, `reset_at` moves it to a later time in 10 to 11 ns. `reset` also reads the clock, and takes
//! 28 to 31 ns. If the caller picks the task at random among 100,000, as W11 of `benches/peers` does, `reset_at` takes
//! 24 to 28 ns and `reset` 60 to 79, because each call misses the cache two more times. A move to an earlier time takes 67
//! to 95 ns. A call that schedules a task, measured beside it, takes 71 to 92 ns.
//!
//! The next table has the steps that were tried for a move to a later time. The bench picked tasks at random among
//! 100,000, and each call made only the accesses that the row names:
//!
//! | step | ns |
//! | --- | --- |
//! | a store of the deadline, without any look at who runs the task | 7.0 to 8.6 |
//! | an exchange of the deadline alone: it may hit the next task in the holder, whose deadline is the same | 7.6 to 9.1 |
//! | an exchange of the word, and one of the deadline | 9.7 to 12.4 |
//! | hold, store, put back, with a load of the word before the exchange | 7.3 to 10.9 |
//!
//! The layers keep their own tasks, so each moves them in its own queue, under the lock of the job (`job`). All of them have
//! their delayed tasks in a [`Wheel`](crate::wheel::Wheel), and move them there. A worker's delayed task has a timer of the
//! scheduler beside that, which follows the task. The rows `s28` of `tests/layers/conformance` hold for all of them.
//!
//! # What was tried
//!
//! Nanoseconds of CPU time a task, on two cores of an EPYC in a virtual machine, where `F` was 14 to 17 and the clock
//! 29. `cargo bench --bench costs` prints where it stands now. What did not pay is in `benches/TRIED.md`.
//!
//! | what | before | after | kept |
//! | --- | --- | --- | --- |
//! | free slots in a bitmap, lowest first, instead of lists in the order of ends: schedule after fires | 130 | 92 | yes |
//! | the same, and no guards: cancel after fires | 170 | 21 | yes |
//! | closures written into their holders in place: schedule | 92 | 84 | yes |
//! | instants read by their parts: schedule | 81 | 72 | yes |
//! | a place for each of the next 2048 half-turns instead of a sorted map: tick thread, per schedule | 70 | 45 | yes |
//! | groups of half-turns beyond those: bytes for each of 200,000 tasks of a week | 421 | 122 | yes |
//! | sleeping through what can wait: process, per schedule | 130 to 200 | 115 | yes |
//! | the same, and a look at 256 entries instead of 4096: process, per pair of cancel and schedule | 254 | 150 | yes |
//! | a radix sort of what a tick gives out | 24 | 7 | yes |
//! | that, one clock reading a microsecond, large pages, blocks freed when idle: fire inline | 150 | 102 | yes |
//! | the clock read once for a turn, and no look at the timer slack before a sleep: process, us for each wake-up with five million pending, on a slower machine | 30.0 | 26.7 | yes |
//!
//! The filing number came in place of a generation, the parity of a run, a mark of resets, stamps of resets, and two ways
//! to claim. What became possible with it is counted in instructions by `cargo bench --bench gate`:
//!
//! | operation | before | after | by what |
//! | --- | --- | --- | --- |
//! | schedule | 420 | 293 | its steps are one function for the compiler; an entry is two words, a key one; no outcomes of earlier tasks |
//! | cancel | 238 | 148 | the closure is dropped where it lies, or forgotten if it owns nothing; the holder tells whose the task is; what ends stays in registers |
//! | reset to later | 171 | 146 | its lane is found without a call |
//! | take-in | 163 | 93 | one division; no bitmap where a block has room |
//! | take-in, cancelled | 158 | 44 | a look at the holder as the record is read, once most of a sample were stale; none if a later filing of its slot comes right behind it |
//! | hand-over | 144 | 30 | rows for the scheduler's executor are copied at once, and nothing of them is remembered; what the wheel gives out becomes the ready queue without a copy |
//! | fire inline | 640 | 424 | one claim, one call into the engine for a batch, the closure runs where it lies, far entries are not copied twice |
//! | repetition | 902 | 667 | the same; its record is published without a call |
//! | cancel and schedule | 920 | 487 | the same |
//!
//! In alternating runs of `benches/peers` (medians of four) the process took 74 ns for a schedule (W1) where it had
//! taken 80, 88 in a fresh process (134), 48 for a cancel (W3; 56), and 83 for a pair of cancel and schedule (W4; 95).
//!
//! # The pool
//!
//! `pool` stands beside the engine and not on it. What it promises (leader and followers, one order for all its
//! threads, results) wants one queue under one lock. That queue is a [`Wheel`](crate::wheel::Wheel) with ticks of a nanosecond
//! and 256 buckets of 64 ms. It came in place of a heap with four children, a run for what came in order
//! of deadline, and pages of slots, which were three times its code. The table says what was tried, in nanoseconds. W1, W4, W5
//! and W6 are rows of `benches/peers`, before and after in alternating runs, beside `scheduled-thread-pool` in the same:
//!
//! | what | before | after | the other | kept |
//! | --- | --- | --- | --- | --- |
//! | a wheel in place of the heap and the run: W1, schedule | 141 | 118 | 98 | yes |
//! | the same: W4, a pair of cancel and schedule | 178 | 162 | 132 | yes |
//! | the same: W5, million tasks a second | 1.27 | 1.39 | 1.41 | yes |
//! | the same: remove, offer with 500 items | 22, 27 | 34, 38 | - | yes |
//! | slots in pages of 64, 1024 and 65,536, so that memory goes back although some values stay: D4, on a delay queue | 110 | 145 | - | for the pool alone |
//! | no look for the head while a thread waits for it, and four reference counts less: W1, on a slower machine | 200 | 172 | - | yes |
//! | the system's slack of 50 us set aside while a thread sleeps: W6, late in the median, ms | 0.089 | 0.043 | 0.086 | yes |
//!
//! A schedule costs more than that of `scheduled-thread-pool`, which has no result, and no way to take a task out: it
//! keeps a cancelled closure until its deadline.
//!
//! # The delay queue
//!
//! A [`DelayQueue`](crate::delay::DelayQueue) has a [`Wheel`](crate::wheel::Wheel) of its own, because what it gives
//! out is data. It needs the scheduler for its clock, and for one alarm while a taker waits. The queue is divided into
//! shards, each with a lock, a wheel and a table of keys, because a single lock does not serve two threads. Takers
//! merge the shards: the bounds of all shards play a tournament, and a taker locks the one with the first. An insert or a reset
//! that is earlier than all in its shard sets a bit, by which takers find it. Before that, takers read the bounds of all 32
//! shards twice, and where all items are due in a short time a take cost 2,070 instructions, and then 1,290: 275 to sort what
//! had become due, 160 for the tournament, and some 200 for the key's table and the slot, which are in no cache. In the row
//! `delay-take` of the gate, whose items are due within a minute, it costs 1,433.
//!
//! What was tried, in nanoseconds of the wall for each operation, on two cores of a Xeon in a virtual machine; D1 to D6
//! are those of `benches/peers`, and tokio-util's `DelayQueue` with a `HashMap` took 265 to 285 (D1), 404 to 450 (D1-2),
//! 205 to 275 (D2), 290 to 320 (D2-2), 157 to 180 (D4), 390 to 500 (D4-2) and 84 bytes (D6) in the same runs:
//!
//! | what | D1 | D1-2 | D2 | D2-2 | D4 | D4-2 | D6 |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | one lock, std's map from hashes to keys of the wheel | 297 | 453 | 137 | 517 | 170 | 663 | 93 |
//! | eight shards, and four bytes for a hash, four for a slot | 227 | 259 | 114 | 90 | 183 | 354 | 68 |
//! | an open table in place of std's map: one cache line for a look-up | 211 | 244 | 109 | 87 | 183 | 326 | 66 |
//! | stamps by the clock in place of a count that all threads write | 211 | 245 | 110 | 81 | 178 | 338 | 66 |
//! | 16 shards, which is eight for each processor | 216 | 245 | 113 | 71 | 190 | 293 | 67 |
//! | 32 shards | 240 | 250 | 114 | 69 | 197 | 272 | 68 |
//! | 16 shards, with what each call writes on the first cache lines of a shard | 219 | 222 | 113 | 89 | 203 | 267 | 67 |
//! | 16 shards, and the place in the table is fetched before the clock is read and the lock taken | 189 | 211 | 80 | 62 | 156 | 255 | 67 |
//! | the same, and the first two lines of the shard: those that the other thread has | 193 | 205 | - | - | 151 | 240 | - |
//! | the same, with 32 shards, sixteen for each processor | 214 | 199 | 80 | 55 | 165 | 209 | 68 |
//! | 32 shards with wheels of 32 buckets of 32 ms, in place of 64 of 8 ms | 192 | 190 | 77 | 57 | 173 | 217 | 67 |
//!
//! A reset to a later time costs as much as to find the key: the wheel's entry stays where it is, and moves when it comes
//! up. In D4, where each thread removes and inserts, two threads share all that they write, and the cache lines of a shard
//! go from one processor to the other: the list of free slots, the last block of a bucket, the table.
//!
//! To fetch the place in the table early takes its address without the lock. It may be out of date, which does no harm,
//! because a fetch reads nothing. A remove and an insert together still take four locked instructions, two hashes, one
//! reading of the clock, and one slot that is in no cache (D4). `DelayQueue` has no lock, and is between an eighth behind and
//! an eighth ahead, from one run to the next.
//!
//! # Workers
//!
//! An `rx` worker has two queues, and a flag that says whether a drain is under way. Tasks come in under one lock. The
//! drain works under another, and when it has nothing left the two queues change places. A task that is cancelled loses
//! its closure at once. Its empty entry goes when its turn comes, or when such entries are more than half. So a cancel
//! searches nothing. Earlier, the queues were rings with numbered places, from which an entry left at once; that took
//! two hundred lines more.
//!
//! What was tried, in nanoseconds for each task from schedule to run, a million tasks, one producer, beside a
//! `VecDeque` of boxes under a mutex, which can do nothing but run (`cargo bench -p peers --bench workers`):
//!
//! | what | one worker | a queue under a mutex | 1,000 workers | as many such queues |
//! | --- | --- | --- | --- | --- |
//! | one table of linked rooms, for tasks that wait for their time and for their turn | 296 | 139 | 1220 | 681 |
//! | a ring for turns, a table for times; no count that all threads write | 254 | 165 | 1291 | 1039 |
//! | two rings: the drain looks at tasks under a lock of its own | 166 | 73 | 920 | 950 |
//! | one hand-over less for each batch, on a quiet machine | 155 | 138 | 469 | 848 |
//!
//! The machine was not equally fast in all rows, so compare within one. The difference between a worker and a bare
//! queue is the handle: a task of 80 bytes with a state of its own and two owners, where the other has a box of 16. A
//! drain runs 64 tasks before it gives the thread back.
//!
//! # The message loop
//!
//! Tasks come in under one lock, into an inbox. When the loop has run what it had, it takes all immediate tasks over by a
//! swap. Delayed tasks stay in a wheel under that lock, so a cancel takes its task out, and a reset moves it, on any thread.
//! Earlier they were in a heap of the loop's thread, and a cancelled one stayed there until a sweep. An immediate task that
//! is cancelled is not searched for. Its closure goes at once, and its entry when its turn comes, or with a sweep, which
//! starts as soon as more than half of what waits is cancelled.
//!
//! What was tried, in nanoseconds, alternating with `crossbeam-channel` and a thread (`cargo bench -p peers --bench
//! loops`):
//!
//! | what | before | after | the channel | kept |
//! | --- | --- | --- | --- | --- |
//! | the pump spins for 3 us before it sleeps, if it was woken lately: a round trip between two threads | 35,780 | 2,970 | 3,700 | yes |
//! | the spinning, for posts by 4 threads | 215 | 248 | 110 | yes |
//! | lock and hint on cache lines of their own, for each post | 165 | 170 | 138 | no difference; kept, for the hint is read in each call |
//!
//! Between two threads a post costs more than within one, because the task's memory goes from one processor to the
//! other. A channel saves the handle.
//!
//! # Futures
//!
//! A sleep that is polled sets an [`Alarm`](crate::Alarm): a holder with a waker in it where others have a closure. The
//! tick thread wakes it by itself, whatever the executor is, because waking is less work than handing over. Wakers that
//! are due in a row are moved out of their holders first, up to 256 of them, and woken then. The sleep shares only its
//! name with the alarm, and needs no allocation: whether the alarm has rung, it finds in the holder's word.
//!
//! A future of [`time`](crate::time) takes the scheduler in force where it is made. A thread-local tells which one that
//! is. Mostly it is the global one, and then a look at one flag is enough. Futures of the global scheduler count on
//! nothing. Those of another one count on the handle through which they were made, so that threads with handles of
//! their own share nothing.
//!
//! What was tried, in nanoseconds for a sleep that is made, polled and dropped, on a thread of its own (S1 of
//! `benches/peers`; tokio's took 98 to 141 in the same runs):
//!
//! | what | before | after | kept |
//! | --- | --- | --- | --- |
//! | a thread that was woken for what is cancelled by now sleeps as if it were not; entries of a slot that was used again are dropped unseen | 278 | 155 | yes |
//! | the clock read once, for making and polling | 155 | 125 | yes |
//!
//! The same for a timeout whose future is pending once, so that its timer is set and dropped (one thread, 23 ns of
//! which are the clock):
//!
//! | what | before | after | kept |
//! | --- | --- | --- | --- |
//! | the parts of an alarm are written where they stay; before, they went through memory in pieces of other sizes, for which the processor waits | 109 | 95 | yes |
//! | a cancel of a waker that takes the waker out where it lies, in place of one for all kinds of tasks | 95 | 77 | yes |
//!
//! The same for 100,000 that are due at once, in milliseconds until the last of them was woken (S3, `Precision::Exact`,
//! medians of 12 to 50 alternating runs; tokio's took 4.4 to 5.1 in these, async-io's 3.9 to 4.9):
//!
//! | what | before | after | kept |
//! | --- | --- | --- | --- |
//! | what lies in a holder is told by the address of its table, and by a call only where that differs | 6.1 | 5.2 | yes |
//! | the waker is read where it lies; before, the whole body was moved to the stack first | 5.2 | 5.0 | yes |
//! | wakers in a row leave the ready queue one by one, without a batch in between | 5.1 | 4.6 | yes |
//!
//! Of the 45 ns for each, some nine go into giving the holder back, five into the histogram of lateness, and six into
//! the wake itself.
//!
//! # Scale
//!
//! The cost of a schedule and of a cancel does not depend on how many are pending. A tick of the bare wheel, with tasks
//! spread over an hour, took 25 ns at 1,000 pending, 27 at 100,000, 89 at a million (0.3 due each tick) and 550 at ten
//! million (2.8 due each): by then each task that is brought near or comes due is a miss of the cache and of the page
//! table, which no layout of a gigabyte avoids.
//!
//! **100 million pending.** Slots go up to 268 million. The holders take 6.4 GB, the entries 1.6 GB, the depot's bitmap
//! 12.5 MB. Far entries lie in a chain per half-turn, or per group of half-turns, so filing stays a store at the end of a block. The next
//! bottleneck is the tick thread: at 35 ns to file a task and 60 to 100 to run it inline, one thread does some ten
//! million a second. Beyond, use several schedulers. They share only the depot, whose lock is taken once for 128 tasks.
//!
//! **64 producers.** Each has a lane and counters of its own, so they meet only where they signal, and once in 128
//! tasks where they count a block. A turn visits only the lanes that have something, and merges them by stamp, with a
//! heap of their heads: at most 65,536 records. 10 million records took 28 ns each from one lane and from two, and 30
//! from sixteen (F2 of `benches/peers`). The merge is the next bottleneck: in a flood of 8 threads it is half of the
//! tick thread's work. It could go, as the stamp matters only among equal deadlines, at the price of entries of 24
//! bytes.
//!
//! # Under overload
//!
//! A flood is bounded in three places. Each bound is soft: a producer beyond it sleeps for some milliseconds, and in
//! the meantime the thread that works for it has the processor (`backpressure.rs`). A task of a runtime does
//! not sleep there, because its thread has other tasks: it is woken at once, and polls until it is let in.
//!
//! - **The way in.** Producers may be 262,144 records ahead of the tick thread. The bound is lower as soon as a turn
//!   leaves records that have waited for 50 ms, because then the thread is slow. A producer asks once in 128 tasks.
//! - **What is due.** While more than 65,536 tasks are due and not handed over, or 8192 that are 50 ms late, the thread
//!   takes nothing in, because what it would take in is due later. So a flood of tasks without a delay stays in the
//!   lanes.
//! - **Executors.** When 32,768 tasks of an executor are due and not done, producers of tasks that are due soon wait for
//!   it. The scheduler counts what it has handed to each executor, and what that executor has done.
//!
//! Entries of cancelled tasks are swept at twice the pace at which tasks come in. A thread that is far behind looks at
//! each task's holder before it files it, because by then most have been cancelled.
//!
//! What was tried, in a flood of 8 threads for 4 s that keep 1,000 timeouts each and cancel the oldest, on two cores:
//! the lateness of a task of 10 ms, resident memory, million pairs a second. The first two rows were measured beside
//! other work.
//!
//! | what | median | worst | MB | M/s |
//! | --- | --- | --- | --- | --- |
//! | all lanes sorted together in each turn (for 5 s; most of the tasks never ran) | 9.6 s | 16 s | 1777 | |
//! | a merge, and a bound of a million records | 211 ms | 565 ms | 78 | 5.5 |
//! | half a million; no heap for what comes late in order | 30 ms | 86 ms | 37 | 11.7 |
//! | a quarter of a million, and the bound of 50 ms | 12 ms | 23 ms | 19 | 12.5 |
//!
//! A bound by count alone was not enough: with tasks of 2 us on [`Inline`](crate::Inline) the same number of records is
//! ten times as much time.
//!
//! Before a task of another thread is filed, its record has to cross from one processor's cache to the other's.
//! Fetching records ahead of that took nothing off (127 against 125 ns of the process for each schedule of W1). Filing
//! them some hundred at a time, with the wheel's code in one loop, took 18 off.
