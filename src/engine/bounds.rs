//! No step of a turn goes on for as long as there is work (S19). Each constant here bounds a loop of a turn. They are
//! in the order of the steps, and each names its unit first. `slots::trim` has bounds of its own. Three things have no
//! constant: the advance of the wheel, which costs as much as it gives out, because due entries have to leave the
//! wheel, and after a jump as much as the group has in which it lands; some looks, which cost a step per lane or per
//! executor that refuses, and in the last turn a step per task of the process; and user code (inline tasks, wakers,
//! clocks, observers).

/// Tasks: how many are taken in. This is some 3 ms of work. A driven engine hands over nothing before all are in, so
/// there it only slices that work.
pub(super) const TAKE_IN: usize = 64 * 1024;
/// Tasks: while more are due and not handed over, a thread takes in none.
pub(super) const MOST_DUE: usize = 64 * 1024;
/// Tasks: like [`MOST_DUE`], while the first due task is more than [`LATE_NANOS`] late.
pub(super) const MOST_LATE: usize = 8 * 1024;
pub(super) const LATE_NANOS: u64 = 50_000_000;
/// Tasks: how many a batch has at most.
pub(super) const BATCH: usize = 256;
/// Tasks: the minimum that a turn hands over, and that it retries with one executor, even if its time is up.
pub(super) const HAND_OVER: usize = 4 * BATCH;
/// Nanoseconds since the turn began: until then a turn may hand over as many more tasks as it has taken in, and may retry
/// up to [`TAKE_IN`] with one executor.
pub(super) const SHARE_NANOS: u64 = 4_000_000;
/// Stale entries: how many are dropped per turn at the head of the ready queue, and per offer at the head of a retry queue.
pub(super) const SKIP: usize = 1024;
/// Entries: how many a sweep looks at. A sweep of the wheel looks at two more for each task that has come in,
/// so it ends even in a flood.
pub(super) const SWEEP: usize = 2048;
/// Entries: how many move from far to near ahead of their time, and one more for each task that has come in.
pub(super) const SETTLE: usize = 2048;
/// Entries: how many a turn looks at to find the next live one. If all of those are stale, it may come back early.
/// So it is for the first task of more than 256 in a half-turn, or in a group of half-turns that is still far. With
/// 4096 a churn of timeouts, whose earliest is always the one that was just cancelled, cost the tick thread 60 ns more
/// per task.
pub(super) const LOOK_AHEAD: usize = 256;
/// Blocks of the wheel's memory: how many go back to the system. `slots::trim` bounds what slots give back.
pub(super) const GIVE_BACK: usize = 1024;

// ----- sizes and thresholds that bound no loop -------------------------------------------

/// How many entries that come in are filed at a time.
pub(super) const INCOMING: usize = 512;
/// One entry in so many that come in is looked at, to find whether most of them are stale.
pub(super) const SAMPLE: usize = 16;
/// With so few stale entries a sweep is not worth it.
pub(super) const STALE: usize = 4096;
/// A wheel with more buckets than this is no faster.
pub(super) const MOST_BUCKETS: usize = 1 << 22;
/// How many retry queues a check of the invariants looks at.
pub(super) const RETRY_QUEUES: usize = 64;
/// How many entries and buckets a check of the wheel's invariants looks at, per turn on average and at a time.
pub(super) const CHECK: usize = 8;
pub(super) const MOST_CHECKED: usize = 16 * 1024;
/// Nanoseconds: the longest pause of an executor that takes nothing. It is asked ten times a second.
pub(super) const LONGEST_PAUSE_NANOS: u64 = 100_000_000;
