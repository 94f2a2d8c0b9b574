//! Starting a program: vfork and exec, or exec in place.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use rustix::process::Pid;

use super::signals::set_ignored;

/// What to run, in what the system wants to see it as.
pub(crate) struct Program {
    argv: Vec<CString>,
    env: Vec<CString>,
    /// The signal mask it gets.
    pub(crate) mask: SigSet,
    /// Signals it gets ignored or at their default, where this process changed that for itself.
    pub(crate) dispositions: Vec<(Signal, bool)>,
}

/// A child that was started.
pub(crate) struct Started {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

/// Why it was not.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// `before_exec` said no.
    Withdrawn,
    /// No process could be made.
    NoProcess(io::Error),
    /// The program could not be executed.
    NoExec(io::Error),
}

const RUNNING: c_int = 0;
const WITHDRAWN: c_int = -1;

struct Child<'a> {
    program: &'a Program,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    before_exec: &'a mut dyn FnMut() -> bool,
    /// RUNNING, WITHDRAWN, or the errno of exec. Parent and child share memory, so no pipe is needed for it.
    result: c_int,
}

impl Program {
    pub(crate) fn new(argv: Vec<CString>, env: Vec<CString>, mask: SigSet, dispositions: Vec<(Signal, bool)>) -> Self {
        Self { argv, env, mask, dispositions }
    }

    /// Replaces this process by the program; returns only if that failed.
    pub(crate) fn exec(&self) -> io::Error {
        let (argv, env) = (pointers(&self.argv), pointers(&self.env));
        self.exec_now(&argv, &env);
        io::Error::last_os_error()
    }

    /// Starts the program as a child, by way of vfork: this process sleeps until the child has executed it, failed to,
    /// or was told by `before_exec` (which runs in the child, on memory shared with this sleeping process) not to.
    ///
    /// To be called by a process with one thread.
    pub(crate) fn spawn(&self, before_exec: &mut dyn FnMut() -> bool) -> Result<Started, NotStarted> {
        let mut child =
            Child { program: self, argv: pointers(&self.argv), env: pointers(&self.env), before_exec, result: RUNNING };
        // execvp(3) needs room for a path, and puts the arguments onto the stack once more when it falls back to /bin/sh
        // for a script without an interpreter line. Uninitialised: only what is used is to be touched.
        let mut stack = Vec::<u128>::with_capacity((64 * 1024 + 16 * child.argv.len()) / size_of::<u128>());
        let mut pidfd: c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: the child runs `in_child` on a stack of its own, 16-byte aligned and growing down from its end;
        // everything it is handed outlives the call, because CLONE_VFORK keeps this thread asleep until the child has
        // executed or exited. With CLONE_PIDFD the kernel stores a descriptor where the parent_tid argument points.
        let pid = unsafe {
            libc::clone(
                in_child,
                stack.as_mut_ptr().add(stack.capacity()).cast(),
                flags,
                (&raw mut child).cast(),
                &raw mut pidfd,
            )
        };
        if pid < 0 {
            return Err(NotStarted::NoProcess(io::Error::last_os_error()));
        }
        // SAFETY: read through a pointer the compiler cannot reason about: another process wrote it.
        let result = unsafe { std::ptr::read_volatile(&raw const child.result) };
        // SAFETY: clone succeeded with CLONE_PIDFD, so the descriptor is new and ours.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let pid = Pid::from_raw(pid).ok_or_else(|| NotStarted::NoProcess(io::Error::from_raw_os_error(libc::ESRCH)))?;
        let failed = match result {
            RUNNING => return Ok(Started { pid, pidfd }),
            WITHDRAWN => NotStarted::Withdrawn,
            errno => NotStarted::NoExec(io::Error::from_raw_os_error(errno)),
        };
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        Err(failed)
    }

    fn exec_now(&self, argv: &[*const c_char], env: &[*const c_char]) {
        for &(signal, ignored) in &self.dispositions {
            set_ignored(signal, ignored);
        }
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None);
        // SAFETY: both arrays end in a null pointer and point to strings that live in `self`.
        unsafe { libc::execvpe(argv[0], argv.as_ptr(), env.as_ptr()) };
    }
}

extern "C" fn in_child(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passed its own `Child`, and does not touch it while this runs.
    let child = unsafe { &mut *argument.cast::<Child<'_>>() };
    if !(child.before_exec)() {
        child.result = WITHDRAWN;
        return 0;
    }
    child.program.exec_now(&child.argv, &child.env);
    child.result = io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOEXEC);
    127
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| CStr::as_ptr(s)).chain([std::ptr::null()]).collect()
}
