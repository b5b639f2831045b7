//! A disk that is full: SQLite's calls of `pwrite` that would make certain files longer fail in this process.

use std::ffi::{c_int, c_void};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, Once};

use rusqlite::ffi;

/// The files that cannot grow, by their numbers.
static FULL: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Lets no other files run full than these.
pub(crate) fn fill(files: &[&Path]) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: the file system of SQLite is never removed, and `pwrite` has the type of the call that it replaces.
        let code = unsafe {
            let system = ffi::sqlite3_vfs_find(std::ptr::null());
            let set = (*system).xSetSystemCall.expect("that of Unix has it");
            let call =
                std::mem::transmute::<*const (), unsafe extern "C" fn()>(pwrite as *const ());
            set(system, c"pwrite".as_ptr(), Some(call))
        };
        assert_eq!(code, ffi::SQLITE_OK);
    });
    let numbers = files.iter().map(|file| fs::metadata(file).expect("it is there").ino());
    *FULL.lock().expect("no panic") = numbers.collect();
}

unsafe extern "C" fn pwrite(file: c_int, bytes: *const c_void, count: usize, at: i64) -> isize {
    // SAFETY: the arguments are those of SQLite's call, and a `stat` of zeros is one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let is_known = libc::fstat(file, &raw mut stat) == 0;
        let is_full = is_known && FULL.lock().is_ok_and(|full| full.contains(&stat.st_ino));
        if is_full && at.saturating_add_unsigned(count as u64) > stat.st_size {
            *libc::__errno_location() = libc::ENOSPC;
            return -1;
        }
        libc::pwrite(file, bytes, count, at)
    }
}
