//! Sleeps that end on time. By default, Linux may delay the end of a timed wait by another 50 us (the timer slack of the
//! thread), so that it can wake several threads at once. On other systems these functions do nothing.

/// Makes the sleeps of the calling thread end on time.
pub(crate) fn wake_on_time() {
    set_slack(1);
}

/// Sets the default timer slack. A thread that was started by one which is woken on time has inherited that.
pub(crate) fn wake_as_usual() {
    set_slack(50_000);
}

/// Makes one sleep end on time, and then restores the timer slack of the thread. That takes up to three system calls; a
/// sleep costs a hundred times as much.
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

/// Returns the timer slack of the calling thread in nanoseconds, or zero if it is unknown.
#[allow(unsafe_code, reason = "a system call")]
fn slack() -> u32 {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))))]
    // SAFETY: the call reads a number of the calling thread, and touches no memory of ours.
    return u32::try_from(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }).unwrap_or(0);
    #[cfg(not(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom)))))]
    0
}

#[allow(unsafe_code, reason = "a system call")]
#[allow(unused_variables, reason = "only Linux has the call")]
fn set_slack(nanos: u32) {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))))]
    // SAFETY: the call sets a number of the calling thread, and touches no memory of ours.
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
