//! What is asked of the operating system beside threads and memory.

/// Asks for the calling thread's sleeps to end when they should. Linux else lets them last fifty
/// microseconds longer, so that it can wake several threads at once. A wish: elsewhere it is nothing.
pub(crate) fn wake_on_time() {
    set_slack(1);
}

/// What is usual: for a thread that was started by one that is woken on time, and would inherit that.
pub(crate) fn wake_as_usual() {
    set_slack(50_000);
}

/// Has a sleep end when it should, and leaves the thread as it was. A call or three of the system, for a
/// sleep that costs a hundred times as much.
pub(crate) fn on_time<T>(sleep: impl FnOnce() -> T) -> T {
    let usual = slack();
    if usual <= 1 {
        return sleep();
    }
    let _restored = Restored(usual);
    wake_on_time();
    sleep()
}

struct Restored(u32);

impl Drop for Restored {
    fn drop(&mut self) {
        set_slack(self.0);
    }
}

/// By how many nanoseconds the calling thread's sleeps may be late; zero if nobody knows.
#[allow(unsafe_code, reason = "a call of the system's")]
fn slack() -> u32 {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))))]
    // SAFETY: it reads a number of the calling thread and touches no memory of ours.
    return u32::try_from(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }).unwrap_or(0);
    #[cfg(not(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom)))))]
    0
}

#[allow(unsafe_code, reason = "a call of the system's")]
#[allow(unused_variables, reason = "only Linux can be asked")]
fn set_slack(nanos: u32) {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))))]
    // SAFETY: it sets a number of the calling thread and touches no memory of ours.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_ulong::from(nanos));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_on_time_leaves_the_thread_as_it_was() {
        set_slack(70_000);
        let before = slack();
        assert!(before == 70_000 || before == 0, "{before}");
        on_time(|| assert!(slack() <= 1));
        assert_eq!(slack(), before);
        let thrown = std::panic::catch_unwind(|| on_time(|| std::panic::panic_any(())));
        assert!(thrown.is_err() && slack() == before);
    }
}
